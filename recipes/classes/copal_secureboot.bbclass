# Secure boot of machines with UEFI and TPM 2: copal does it itself, in the place of meta-balena's two plug-ins.

# "1" leaves it to the plug-ins.
COPAL_KEEP_SECUREBOOT ?= "0"

# In releases since 6.4.0, whose initramfs reads the passphrase out of the TPM. In older ones it looks for a file that only the plug-in writes.
COPAL_SECUREBOOT_NEEDS = "tpm_nvram_store_passphrase"

def copal_secureboot(d):
    """The plug-ins that copal takes the place of, for COPAL_TAKEN."""
    features, sources = (d.getVar("MACHINE_FEATURES") or "").split(), copal_sources(d)
    if not d.getVar("SIGN_API") or "efi" not in features or "tpm" not in features or d.getVar("COPAL_KEEP_SECUREBOOT") == "1":
        return ""
    own = sources.get("balena-init-flasher-tpm")
    if not own or d.getVar("COPAL_SECUREBOOT_NEEDS") not in copal_text(own):
        return ""
    folder = d.getVar("libexecdir")
    return "balena-init-flasher-efi:%s/balena-init-flasher-secureboot balena-init-flasher-tpm:%s/balena-init-flasher-diskenc" % (folder, folder)
