//! Secure boot with UEFI and a TPM, without plug-ins: what is refused. The variables of the firmware are files here, the TPM is an emulated one.
//! The scenario `secure-install` of the board farm installs with real firmware.

use copal::tpm::policy;
use copal::tpm::store::{INDEX, SPARE};
use copal::uefi::authenticode::Program;
use copal::uefi::signature_list::of_hashes;
use copal::uefi::{Guid, authenticated};

use std::path::Path;

use sha2::{Digest as _, Sha256};

use crate::encrypted::{BEGIN, Source, has, tried};
use crate::kit::emulated_tpm::{Emulated, no_password};
use crate::kit::prepared::part;
use crate::support::medium::used_disk;
use crate::support::writelog;
use crate::support::{Disk, Guest, LIMIT, Outcome, not_run};

/// Two programs of UEFI that differ.
fn programs() -> (Vec<u8>, Vec<u8>) {
    let mut stub = std::fs::read(part("secure").unwrap().join("stub.efi")).unwrap();
    stub.resize(stub.len().next_multiple_of(8), 0);
    let kernel = [&stub[..], b"a kernel"].concat();
    (stub, kernel)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A program that the firmware's `dbx` forbids.
pub(crate) fn forbidden() -> Vec<u8> {
    [&programs().0[..], b"forbidden"].concat()[..].iter().copied().chain([0; 7]).collect()
}

/// The digest of `UEFI_VARIABLE_DATA` (TCG PC Client Platform Firmware Profile 1.06, 10.4.2.1).
pub(crate) fn measured(name: &str, vendor: Guid, contents: &[u8]) -> [u8; 32] {
    let name: Vec<u8> = name.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let lengths = [name.len() / 2, contents.len()].map(|n| u64::try_from(n).unwrap().to_le_bytes());
    Sha256::digest([&vendor.bytes()[..], lengths.as_flattened(), &name, contents].concat()).into()
}

/// `TPM2_PCR_Extend`, of 65 bytes.
pub(crate) fn extend(pcr: u32, digest: [u8; 32]) -> Vec<u8> {
    let bank = [&1u32.to_be_bytes()[..], &0x000b_u16.to_be_bytes(), &digest].concat();
    let body = [&pcr.to_be_bytes()[..], &no_password(), &bank].concat();
    let size = u32::try_from(10 + body.len()).unwrap();
    [&0x8002_u16.to_be_bytes()[..], &size.to_be_bytes(), &0x182_u32.to_be_bytes(), &body].concat()
}

/// What firmware in setup mode measures into PCR 7.
pub(crate) fn of_firmware() -> Vec<[u8; 32]> {
    let global = ["PK", "KEK"].map(|name| measured(name, Guid::GLOBAL, &[]));
    vec![
        measured("SecureBoot", Guid::GLOBAL, &[0]),
        global[0],
        global[1],
        measured("db", Guid::DATABASE, &[]),
        measured("dbx", Guid::DATABASE, &list(&forbidden())),
        Sha256::digest([0; 4]).into(),
    ]
}

pub(crate) const DRIVER: [u8; 32] = [7; 32];

/// Of firmware without an IOMMU.
const NO_PROTECTION: &[u8] = b"DMA Protection Disabled";

/// The log of a start with all that `of_firmware` has, a driver, and no DMA protection.
pub(crate) fn log_without_protection() -> Vec<u8> {
    let event = |pcr: u32, kind: u32, digest: &[u8; 32], data: &[u8]| {
        let numbers = [pcr, kind, 1].map(u32::to_le_bytes);
        let len = u32::try_from(data.len()).unwrap().to_le_bytes();
        [numbers.as_flattened(), &0x000b_u16.to_le_bytes(), digest, &len, data].concat()
    };
    // One algorithm, SHA-256, of 32 bytes.
    let versions = [0, 0, 0, 0, 0, 2, 0, 2, 1, 0, 0, 0, 0x0b, 0, 32, 0, 0];
    let first = [&b"Spec ID Event03\0"[..], &versions].concat();
    let head =
        [&[0; 4][..], &3u32.to_le_bytes(), &[0; 20], &u32::try_from(first.len()).unwrap().to_le_bytes()]
            .concat();
    let own =
        of_firmware().into_iter().flat_map(|digest| event(7, 0x8000_0001, &digest, b"")).collect::<Vec<u8>>();
    let driver = event(2, 0x8000_0004, &DRIVER, b"");
    let protection = event(7, 0x8000_0007, &Sha256::digest(NO_PROTECTION).into(), NO_PROTECTION);
    [head, first, own, driver, protection].concat()
}

/// A board with UEFI and a TPM, and its medium.
pub(crate) struct Board {
    pub(crate) source: Source,
    pub(crate) loader: Vec<u8>,
    pub(crate) kernel: Vec<u8>,
    /// Of `PK` and `KEK`.
    pub(crate) keys: Vec<u8>,
}

pub(crate) fn list(program: &[u8]) -> Vec<u8> {
    of_hashes(&[Program::parse(program).unwrap().digest], Guid::GLOBAL)
}

impl Board {
    pub(crate) fn new() -> Board {
        let (loader, kernel) = programs();
        let boot: &[(&str, &[u8])] = &[
            ("EFI/BOOT/bootx64.efi", b"unsigned"),
            ("EFI/BOOT/bootx64.efi.secureboot", &loader),
            ("os-release", b"ID=balena-os\n"),
            ("system-connections/old", b"an old connection\n"),
        ];
        let source = Source::with_boot_files(512, boot);
        Board { source, loader, kernel, keys: of_hashes(&[[7; 32]], Guid::GLOBAL) }
    }

    pub(crate) fn on(&self, guest: Guest) -> Guest {
        let put = |name: &str, bytes: &[u8]| {
            let path = self.source.dir.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            path
        };
        let auth = [&authenticated::unsigned(std::time::SystemTime::now())[..], &self.keys].concat();
        let files = [
            ("PK.auth", &auth),
            ("PK.esl", &self.keys),
            ("KEK.auth", &auth),
            ("KEK.esl", &self.keys),
            ("db-loader.esl", &list(&self.loader)),
            ("db-kernel.esl", &list(&self.kernel)),
        ];
        let mut guest = self.source.on(guest);
        for (name, bytes) in files {
            guest = guest.file(&put(name, bytes), &format!("/mnt/boot/balena-keys/{name}"));
        }
        guest
            .file(&put("grub.gpg", include_bytes!("../image/openpgp/rsa2048.gpg")), "/test/grub.gpg")
            .file(&put("start", &of_firmware().into_iter().flat_map(|digest| extend(7, digest)).collect::<Vec<u8>>()), "/test/start")
            .file(&put("driver", &extend(2, DRIVER)), "/test/driver")
            .file(&put("action", &extend(7, Sha256::digest(NO_PROTECTION).into())), "/test/action")
            .file(&put("action.log", &log_without_protection()), "/test/action.log")
            .file(&put("dbx", &list(&forbidden())), "/test/forbidden.esl")
            .file(&put("forbidden", &forbidden()), "/test/forbidden.efi")
            .file(&put("bzImage", &self.kernel), "/boot/bzImage")
            .text("/boot/bzImage.sig", "its signature\n")
            .text("/mnt/boot/grub.cfg_internal_luks", "a configuration\n")
            .text("/mnt/boot/grub.cfg_internal_luks.sig", "its signature\n")
            .text("/test/firmware/efi/efivars/some", "")
            .text(
                "/etc/resin-init-flasher.conf",
                "INTERNAL_DEVICE_KERNEL=\"nvme0n1\"\nBALENA_IMAGE=os.img\nUSE_LUKS=1\nKERNEL_IMAGETYPE=bzImage\n\
                 INTERNAL_DEVICE_BOOTLOADER_CONFIG=grub.cfg_internal\nINTERNAL_DEVICE_BOOTLOADER_CONFIG_PATH=/EFI/BOOT/grub.cfg\n\
                 INTERNAL_DEVICE_BOOTLOADER_CONFIG_LUKS=grub.cfg_internal_luks\n",
            )
    }
}

/// The firmware, before anything else.
pub(crate) const FIRMWARE: &str = r#"
id=8be4df61-93ca-11d2-aa0d-00e098032b8c
database=d719b2cb-3d3a-4596-a3bc-dad00e67656f
variables=/test/firmware/efi/efivars
mount --bind /test/firmware /sys/firmware
mount -t tmpfs log /sys/kernel/security
: >/sys/kernel/security/mounted
var() { printf "\6\0\0\0$2" >"$variables/$1-$id"; }
# Commands of 65 bytes, each in one write. Fails where the TPM refuses one.
tell_tpm() {
    for n in $(seq 0 $(($(stat -c %s "$1") / 65 - 1))); do
        exec 3<>/dev/tpmrm0
        dd if="$1" bs=65 skip="$n" count=1 status=none >&3
        [ "$(head -c 10 <&3 | tail -c 4 | od -An -tx1 | tr -d ' ')" = 00000000 ]
        exec 3>&-
    done
}
until [ -c /dev/tpmrm0 ]; do sleep 0.1; done
tell_tpm /test/start
{ printf '\47\0\0\0'; cat /test/forbidden.esl; } >$variables/dbx-$database
"#;

/// `try NAME`: as in `encrypted.rs`, and whether the variables of the firmware are as before.
const TRY: &str = r#"

var SecureBoot '\0'; var SetupMode '\1'
mkdir /run/kept
cp -a /mnt/boot /run/kept/mnt-boot
cp -a /boot /test /etc /run/kept
sums() { find /test/firmware -type f | sort | xargs md5sum; }
restore() {
    rm -rf /mnt/boot/* /boot/* /test/firmware/* /sys/kernel/security/tpm0
    cp -a /run/kept/boot/. /boot/
    cp -a /run/kept/mnt-boot/. /mnt/boot/
    cp -a /run/kept/test/firmware/. /test/firmware/
    cp -a /run/kept/etc/resin-init-flasher.conf /etc/
    echo '{"installer": {"secureboot": true}}' >/mnt/boottmp/config.json
}
try() {
    status=0
    before=$(sums)
    copal flash --conf /etc/resin-init-flasher.conf --image /test/os.img.gz --no-power-off >/dev/null 2>/tmp/log || status=$?
    cat /tmp/log >&2
    changed=0
    [ "$before" = "$(sums)" ] || changed=1
    echo "$1: $(tail -n 1 /tmp/log)" >>/host/said
    echo "$1 $status $(grep -o '\[[a-z-]*\]' /tmp/log | tail -n 1) $(dmsetup ls | grep -vc 'No devices' || true) $changed" >>/host/tried
    restore
}
"#;

#[test]
fn what_secure_boot_cannot_have_is_refused_with_firmware_tpm_and_disk_as_they_were() {
    let test = "what_secure_boot_cannot_have_is_refused_with_firmware_tpm_and_disk_as_they_were";
    let Some(guest) = Guest::small(test) else { return };
    if let Err(why) = part("tpm").and(part("secure")) {
        return not_run(test, &why);
    }
    let board = Board::new();
    let source = &board.source;
    let dir = source.dir.path();
    let (target, requests, state) =
        (used_disk(dir.join("target"), 160), dir.join("requests"), dir.join("tpm"));
    std::fs::create_dir(&state).unwrap();
    // The certificate of someone else, as far as it counts here, in a list of its own.
    let certificate = [5; 100];
    let fingerprint = hex(&Sha256::digest(certificate));
    let sizes = [28 + 16 + 100u32, 0, 16 + 100].map(u32::to_le_bytes);
    let certificates =
        [&Guid::X509.bytes()[..], sizes.as_flattened(), &Guid::GLOBAL.bytes(), &certificate].concat();
    std::fs::write(dir.join("certificate.esl"), certificates).unwrap();
    let log = include_bytes!("../uefi/logs/ovmf-2025.02-user-mode.gz");
    let log_file = dir.join("log.gz");
    std::fs::write(&log_file, log).unwrap();
    let script = r#"
    keys=/mnt/boot/balena-keys
    plain() { echo '{}' >/mnt/boottmp/config.json; }
    copal flash --plan --conf /etc/resin-init-flasher.conf --image /test/os.img.gz >/host/plan 2>&1 || true
    plain; var SecureBoot '\1'; var SetupMode '\0'; try keys-and-no-wish
    mv /test/firmware/efi /test/firmware/none; try no-uefi
    rm $variables/SecureBoot-$id; try no-secure-boot
    rm $variables/SetupMode-$id; try no-setup-mode
    var SecureBoot '\2'; try odd-variable
    var SetupMode '\0\0'; try long-variable
    var SecureBoot '\1'; var SetupMode '\0'; try other-keys
    var SetupMode '\0'; try switched-off
    for file in PK.auth PK.esl KEK.auth KEK.esl db-loader.esl db-kernel.esl; do rm $keys/$file; try "no-$file"; done
    echo x >>$keys/db-loader.esl; try damaged-list
    : >$keys/db-kernel.esl; try empty-list
    cp $keys/db-loader.esl $keys/PK.esl; try other-list
    head -c 39 $keys/PK.auth >/tmp/short; cp /tmp/short $keys/PK.auth; try short-auth
    rm /mnt/boot/grub.cfg_internal_luks; try no-config
    rm /mnt/boot/grub.cfg_internal_luks.sig; try unsigned-config
    cp /test/grub.gpg $keys/; try forged
    rm /boot/bzImage; try no-kernel
    rm /boot/bzImage.sig; try unsigned-kernel
    mkdir /boot/old; cp /boot/bzImage /boot/old/; try two-kernels
    printf abc >>/boot/bzImage; try odd-length
    echo no program >/boot/bzImage; try no-program
    cp $keys/db-kernel.esl $keys/db-loader.esl; try loader-not-allowed
    cp /test/forbidden.efi /boot/bzImage; cp /test/forbidden.esl $keys/db-kernel.esl; try forbidden
    printf '\47\0\0\0' >$variables/dbx-$database; try not-as-measured
    mkdir -p /sys/kernel/security/tpm0; gunzip -c /test/log.gz >/sys/kernel/security/tpm0/binary_bios_measurements; try other-log
    mkdir -p /sys/kernel/security/tpm0; gunzip -c /test/log.gz | head -c 5000 >/sys/kernel/security/tpm0/binary_bios_measurements; try cut-off-log
    sed -i /KERNEL_IMAGETYPE/d /etc/resin-init-flasher.conf; try not-built-in
    sed -i s/USE_LUKS=1/USE_LUKS=0/ /etc/resin-init-flasher.conf; try not-luks
    truncate -s 48M /boot/bzImage; try full
    mv /dev/tpmrm0 /dev/away; try no-tpm
    mv /dev/away /dev/tpmrm0
    # A firmware that keeps nothing.
    mount -o remount,bind,ro /sys/firmware; try read-only; mount -o remount,bind,rw /sys/firmware
    sed -i -e /CONFIG_PATH/d -e /BOOTLOADER_CONFIG=/d /etc/resin-init-flasher.conf; try no-config-path
    USER_MODE
    cat /test/certificate.esl >>$variables/db-$database; try certificate-of-another
    USER_MODE
    echo '{"installer": {"secureboot": true, "db_certificates": ["abc"]}}' >/mnt/boottmp/config.json; try odd-fingerprint
    USER_MODE
    { printf '\47\0\0\0'; cat $keys/db-loader.esl; } >$variables/dbx-$database; try forbidden-loader
    USER_MODE
    cat /test/certificate.esl /test/forbidden.esl >>$variables/db-$database
    echo '{"installer": {"secureboot": true, "db_certificates": ["FINGERPRINT"]}}' >/mnt/boottmp/config.json
    copal flash --plan --conf /etc/resin-init-flasher.conf --image /test/os.img.gz >/host/second-plan 2>&1
    restore
    # PCR 2 is that of a start with a driver.
    tell_tpm /test/driver; try unknown-driver
    USER_MODE
    try unknown-driver-of-a-locked-device
    tell_tpm /test/action; mkdir -p /sys/kernel/security/tpm0
    cp /test/action.log /sys/kernel/security/tpm0/binary_bios_measurements; try no-dma-protection
    # HierarchyChangeAuth: the owner gets a password.
    exec 3<>/dev/tpmrm0
    printf '\200\2\0\0\0\36\0\0\1\51\100\0\0\1\0\0\0\11\100\0\0\11\0\0\0\0\0\0\1x' >&3
    head -c 10 <&3 | tail -c 4 | od -An -tx1 >/host/owned
    try owned
    "#;
    let outcome = board
        .on(guest)
        .tpm(&state)
        .file(&log_file, "/test/log.gz")
        .file(&dir.join("certificate.esl"), "/test/certificate.esl")
        .disk(Disk::Nvme, &target, "TARGET")
        .logged(&requests)
        .script(&format!(
            "{BEGIN}{FIRMWARE}{TRY}{}",
            script.replace("USER_MODE", USER_MODE).replace("FINGERPRINT", &fingerprint)
        ))
        .run(LIMIT);
    println!("took {:?}\n{}", outcome.took, outcome.console);
    let (state_unfit, files, variable) =
        ("secure-boot-state-unfit", "secure-boot-files-invalid", "firmware-variable-failed");
    let expected = [
        ("keys-and-no-wish", 3, state_unfit),
        ("no-uefi", 3, state_unfit),
        ("no-secure-boot", 3, state_unfit),
        ("no-setup-mode", 3, state_unfit),
        ("odd-variable", 3, variable),
        ("long-variable", 3, variable),
        ("other-keys", 3, state_unfit),
        ("switched-off", 3, state_unfit),
        ("no-PK.auth", 3, files),
        ("no-PK.esl", 3, files),
        ("no-KEK.auth", 3, files),
        ("no-KEK.esl", 3, files),
        ("no-db-loader.esl", 3, files),
        ("no-db-kernel.esl", 3, files),
        ("damaged-list", 3, files),
        ("empty-list", 3, files),
        ("other-list", 3, files),
        ("short-auth", 3, files),
        ("no-config", 3, files),
        ("unsigned-config", 3, files),
        ("forged", 3, files),
        ("no-kernel", 3, files),
        ("unsigned-kernel", 3, files),
        ("two-kernels", 3, files),
        ("odd-length", 3, files),
        ("no-program", 3, files),
        ("loader-not-allowed", 3, files),
        ("forbidden", 3, files),
        ("not-as-measured", 3, "measurements-not-understood"),
        ("other-log", 3, "measurements-not-understood"),
        ("cut-off-log", 3, "measurements-not-understood"),
        ("not-built-in", 3, "encryption-not-available"),
        ("not-luks", 3, "conf-invalid"),
        ("full", 3, "boot-partition-full"),
        ("no-tpm", 3, "tpm-unusable"),
        ("read-only", 3, variable),
        ("no-config-path", 3, files),
        ("certificate-of-another", 3, state_unfit),
        ("odd-fingerprint", 3, "config-json-invalid"),
        ("forbidden-loader", 3, state_unfit),
        ("unknown-driver", 3, "measurements-not-understood"),
        ("unknown-driver-of-a-locked-device", 3, "measurements-not-understood"),
        ("no-dma-protection", 3, state_unfit),
        ("owned", 3, "tpm-unusable"),
    ];
    tried(script, &expected, &outcome);
    let outcome = outcome.ok();
    let said = outcome.file("said");
    for (name, words) in [
        ("no-uefi", "not started by UEFI"),
        ("no-secure-boot", "does not have it"),
        ("other-keys", "other keys"),
        ("damaged-list", "db-loader.esl"),
        ("empty-list", "no entry"),
        ("other-list", "PK.esl"),
        ("short-auth", "PK.auth: it is shorter"),
        ("no-config", "grub.cfg_internal_luks: "),
        ("unsigned-config", "grub.cfg_internal_luks.sig: "),
        ("forged", "grub.cfg_internal_luks.sig: it is no file of OpenPGP"),
        ("no-kernel", "bzImage: it is not on the medium"),
        ("unsigned-kernel", "bzImage.sig: it is not on the medium"),
        ("two-kernels", "more than once"),
        ("odd-length", "no multiple of 8"),
        ("no-program", "no program of UEFI"),
        ("loader-not-allowed", "db does not allow it"),
        ("forbidden", "dbx forbids it"),
        ("certificate-of-another", &fingerprint),
        ("forbidden-loader", &hex(&Program::parse(&board.loader).unwrap().digest)),
        ("not-as-measured", "PCR 7"),
        ("other-log", "PCR 0"),
        ("cut-off-log", "cut off"),
        ("not-luks", "USE_LUKS"),
        ("full", "its EFI folder needs"),
        ("unknown-driver", "PCR 2"),
        ("no-dma-protection", "DMA protection is disabled"),
        ("no-tpm", "/dev/tpmrm0"),
        ("read-only", "cannot write db"),
        ("owned", "password"),
    ] {
        let line = said.lines().find(|line| line.starts_with(&format!("{name}: "))).unwrap();
        assert!(line.contains(words), "{line}");
    }
    assert_eq!(outcome.file("owned").trim(), "00 00 00 00");
    let plan = outcome.file("plan");
    for words in
        ["secure boot: the medium's keys are enrolled, PK last", "PCR 7", "balena-efi", "at the next start"]
    {
        assert!(plan.contains(words), "{words}: {plan}");
    }
    let second_plan = outcome.file("second-plan");
    for sha256 in [&fingerprint, &hex(&Program::parse(&forbidden()).unwrap().digest)] {
        assert!(second_plan.contains(&format!("{sha256}, also in db")), "{sha256}: {second_plan}");
    }
    let written = writelog::read(&requests).iter().filter(|r| !r.data.is_empty() || r.discard).count();
    assert_eq!(written, 0);
    let emulated = Emulated::of(&state);
    let mut tpm = emulated.tpm();
    for index in [INDEX, SPARE] {
        assert!(tpm.public(index).unwrap().is_none(), "{index:#x} is left in the TPM");
    }
}

/// The firmware has the keys already.
pub(crate) const USER_MODE: &str = r#"
var SecureBoot '\1'; var SetupMode '\0'
keys=/mnt/boot/balena-keys
for name in PK KEK; do { printf '\47\0\0\0'; cat $keys/$name.esl; } >$variables/$name-$id; done
{ printf '\47\0\0\0'; cat $keys/db-loader.esl $keys/db-kernel.esl; } >$variables/db-$database
"#;

/// The passphrase, of which the programs of the test have kept a copy, is in no file, no argument, no environment, no output and not on the disk.
fn assert_left_nowhere(outcome: &Outcome, target: &Path) {
    let read = |name: &str| std::fs::read(outcome.host().join(name)).unwrap();
    let secret = read("secret");
    assert_eq!(secret.len(), 32);
    assert!(read("files").len() > 1000 && read("given").len() > 1000);
    let hex: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    for (name, text) in [
        ("the disk", std::fs::read(target).unwrap()),
        ("files", read("files")),
        ("arguments and environment", read("given")),
        ("the receipt", read("receipt")),
        ("the console", outcome.console.clone().into_bytes()),
    ] {
        assert!(!has(&text, &secret) && !has(&text.to_ascii_lowercase(), hex.as_bytes()), "in {name}");
    }
}

#[test]
fn a_device_with_the_keys_is_installed_without_enrolling_and_a_failure_empties_the_tpm() {
    let test = "a_device_with_the_keys_is_installed_without_enrolling_and_a_failure_empties_the_tpm";
    let Some(guest) = Guest::small(test) else { return };
    if let Err(why) = part("tpm").and(part("secure")) {
        return not_run(test, &why);
    }
    let board = Board::new();
    let dir = board.source.dir.path();
    let (target, state) = (used_disk(dir.join("target"), 160), dir.join("tpm"));
    std::fs::create_dir(&state).unwrap();
    let script = r#"
    status=0
    copal flash -v --conf /etc/resin-init-flasher.conf --image /test/os.img.gz --no-power-off >/host/receipt || status=$?
    echo "$status" >/host/returned
    dmsetup ls >/host/mappings
    sfdisk -l -o name /dev/nvme0n1 >/host/table
    mkdir -p /tmp/plain
    if mount -o ro /dev/nvme0n1p1 /tmp/plain; then cp -r /tmp/plain /host/plain; fi
    "#;
    // While copal has the passphrase: what each program is given, and all files in memory but this one.
    let searched = r#"
    tool=$(command -v cryptsetup); mv $tool /test/cryptsetup
    cat >$tool <<'END'
#!/bin/bash
{ printf '%s ' "$@"; cat /proc/self/environ /proc/$PPID/environ; } >>/host/given
case "$*" in *--key-file=-*) cat >/test/secret; exec /test/cryptsetup "$@" </test/secret ;; esac
exec /test/cryptsetup "$@"
END
    chmod 755 $tool
    cat >/usr/bin/resin-init-flasher-board <<'END'
#!/bin/sh
find /tmp /run /etc /var /mnt/boot /mnt/boottmp /dev/shm -xdev -type f -exec cat {} + >/host/files
cp /test/secret /host/secret
END
    chmod 755 /usr/bin/resin-init-flasher-board
    "#;
    let outcome = board
        .on(guest)
        .tpm(&state)
        .disk(Disk::Nvme, &target, "TARGET")
        .script(&format!("{BEGIN}{FIRMWARE}{USER_MODE}{searched}{script}"))
        .run(LIMIT)
        .ok();
    println!("took {:?}\n{}", outcome.took, outcome.console);
    assert_eq!(outcome.file("returned"), "0\n");
    assert_left_nowhere(&outcome, &target);
    assert_eq!(outcome.file("mappings"), "No devices found\n");
    let plain = |name: &str| std::fs::read(outcome.host().join("plain").join(name)).unwrap();
    assert!(plain("EFI/BOOT/bootx64.efi") == board.loader);
    assert!(plain("bzImage") == board.kernel);
    assert_eq!(plain("bzImage.sig"), b"its signature\n");
    assert_eq!(plain("EFI/BOOT/grub.cfg"), b"a configuration\n");
    let mut top: Vec<_> =
        std::fs::read_dir(outcome.host().join("plain")).unwrap().map(|f| f.unwrap().file_name()).collect();
    top.sort();
    assert_eq!(top, ["EFI", "bzImage", "bzImage.sig", "policies.copal"]);
    assert!(!outcome.host().join("plain/EFI/BOOT/bootx64.efi.secureboot").exists());
    // In the order of their names, as the initramfs takes them.
    let policies: [policy::Digest; 2] = {
        let list = copal::unlock::policies::Policies::at(outcome.host().join("plain")).current().unwrap();
        list.branches().try_into().unwrap()
    };
    assert_ne!(policies[0], policies[1]);
    {
        let emulated = Emulated::of(&state);
        let mut tpm = emulated.tpm();
        assert!(tpm.public(INDEX).unwrap().unwrap().holds(&policy::any(&policies)));
        assert!(tpm.public(SPARE).unwrap().is_none(), "at rest there is no spare");
        assert!(tpm.unlock(INDEX, &policies).is_err(), "this is not the start that it is for");
    }

    let fails = "printf '#!/bin/sh\\nexit 7\\n' >/usr/bin/resin-init-flasher-board; chmod 755 /usr/bin/resin-init-flasher-board";
    let outcome = board
        .on(Guest::small(test).unwrap())
        .tpm(&state)
        .disk(Disk::Nvme, &target, "TARGET")
        .script(&format!("{BEGIN}{FIRMWARE}{USER_MODE}{fails}{script}"))
        .run(LIMIT);
    println!("took {:?}\n{}", outcome.took, outcome.console);
    assert_eq!(outcome.file("returned"), "4\n");
    assert_eq!(outcome.file("mappings"), "No devices found\n");
    assert!(!outcome.file("table").contains("resin-"), "{}", outcome.file("table"));
    let emulated = Emulated::of(&state);
    for index in [INDEX, SPARE] {
        assert!(emulated.tpm().public(index).unwrap().is_none(), "{index:#x} is left in the TPM");
    }
}
