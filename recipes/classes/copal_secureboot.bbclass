# Secure boot of machines with UEFI and TPM 2: copal does it itself, in the place of meta-balena's two plug-ins and of its module of the
# initramfs.

# "1" leaves it to the plug-ins and the module.
COPAL_KEEP_SECUREBOOT ?= "0"
# "1" leaves unlocking to the module.
COPAL_KEEP_UNLOCK ?= "0"

# In releases since 6.4.0, whose initramfs reads the passphrase out of the TPM. In older ones it looks for a file that only the plug-in writes.
COPAL_SECUREBOOT_NEEDS = "tpm_nvram_store_passphrase"
COPAL_UNLOCK_NEEDS = "tpm_nvram_retrieve_passphrase"

def copal_does_secureboot(d, name, needed):
    """Whether the machine has what copal needs, and a file of the recipe the function that only the supported releases have."""
    features, own = (d.getVar("MACHINE_FEATURES") or "").split(), copal_sources(d).get(name)
    if not d.getVar("SIGN_API") or "efi" not in features or "tpm" not in features or d.getVar("COPAL_KEEP_SECUREBOOT") == "1":
        return False
    return bool(own) and needed in copal_text(own)

def copal_unlock(d):
    """Whether copal takes the place of the initramfs's module."""
    return d.getVar("COPAL_KEEP_UNLOCK") != "1" and copal_does_secureboot(d, "cryptsetup-efi-tpm", d.getVar("COPAL_UNLOCK_NEEDS"))

def copal_secureboot(d):
    """The plug-ins that copal takes the place of, for COPAL_TAKEN."""
    if not copal_does_secureboot(d, "balena-init-flasher-tpm", d.getVar("COPAL_SECUREBOOT_NEEDS")):
        return ""
    folder = d.getVar("libexecdir")
    return "balena-init-flasher-efi:%s/balena-init-flasher-secureboot balena-init-flasher-tpm:%s/balena-init-flasher-diskenc" % (folder, folder)
