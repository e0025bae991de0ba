//! `copal unlock`, with variables of the firmware that are files and an emulated TPM: what it completes, and what it refuses.

use std::path::Path;

use copal::measurements::Values;
use copal::tpm::policy;
use copal::tpm::store::{INDEX, SPARE};
use copal::unlock::policies::{List, Policies};

use sha2::{Digest as _, Sha256};

use crate::encrypted::modules;
use crate::kit::emulated_tpm::Emulated;
use crate::kit::prepared::part;
use crate::secure_boot::{DRIVER, FIRMWARE, extend, log_without_protection, of_firmware};
use crate::support::{Disk, Guest, LIMIT, fat_image, folder, gpt_image, not_run};

const SECRET: [u8; 32] = *b"a passphrase of thirty-two bytes";

/// PCRs of the guest: nothing measures into them but the test.
fn values() -> Values {
    let mut pcr7 = [0; 32];
    for digest in of_firmware() {
        pcr7 = Sha256::digest([pcr7, digest].concat()).into();
    }
    [[0; 32], [0; 32], [0; 32], pcr7]
}

/// That of the change: this start, and another one.
fn list() -> List {
    List::of(&[policy::pcr(&values()), [9; 32]], &List::default(), &values())
}

/// What a power cut has left of a change: the first index is gone, and its list is the old one.
fn cut_off(state: &Path, partition: &Path) {
    std::fs::create_dir(state).unwrap();
    let [met, other] = [policy::pcr(&values()), [9; 32]];
    let lists =
        [vec![other], vec![met, other]].map(|branches| List::of(&branches, &List::default(), &values()));
    let on = tempfile::tempdir().unwrap();
    let policies = Policies::at(on.path().to_owned());
    policies.write_current(&lists[0]).unwrap();
    policies.write_second(&lists[1]).unwrap();
    let emulated = Emulated::of(state);
    emulated.tpm().store(SPARE, &lists[1].policy(), &(&SECRET).into()).unwrap();
    let mut files = Vec::new();
    for folder in ["policies.copal", ".policies.new"] {
        for file in std::fs::read_dir(on.path().join(folder)).unwrap() {
            let file = file.unwrap();
            let name = format!("{folder}/{}", file.file_name().to_str().unwrap());
            files.push((name, std::fs::read(file.path()).unwrap()));
        }
    }
    let files: Vec<(&str, &[u8])> =
        files.iter().map(|(name, data)| (name.as_str(), data.as_slice())).collect();
    fat_image(partition, "balena-efi", 4, &files);
}

/// `try NAME`: its exit code, its error, how many partitions are open; then all are closed.
const TRY: &str = r#"
tpm2() { /tpm2/ld-linux-x86-64.so.2 --library-path /tpm2 /tpm2/tpm2 "$@" -T device:/dev/tpmrm0; }
tpm2 getcap handles-nv-index >/host/indices
# `put_into INDEX FILE`: as an attacker puts a passphrase into an index, which needs nobody's password.
put_into() {
    ! tpm2 nvreadpublic "$1" >/dev/null 2>&1 || tpm2 nvundefine "$1" -C o
    tpm2 nvdefine "$1" -C o -s 32 -a 'authwrite|policywrite|policyread' -L /test/policy -p known >/dev/null
    tpm2 nvwrite "$1" -P known -i "$2"
}
var SecureBoot '\1'; var SetupMode '\0'
number=2
for name in boot rootA rootB state data; do
    node=/dev/nvme0n1p$number
    cryptsetup luksFormat -q --type luks2 --pbkdf pbkdf2 --pbkdf-force-iterations 1000 --luks2-metadata-size 16k --luks2-keyslots-size 256k \
        --offset 2048 --key-file /test/secret "$node"
    cryptsetup open --key-file /test/secret "$node" new
    mkfs.ext4 -q -L "resin-$name" /dev/mapper/new
    cryptsetup close new
    number=$((number + 1))
done
label() { sfdisk -q --part-label /dev/nvme0n1 "$1" "$2"; udevadm settle; }
try() {
    status=0
    copal unlock >/tmp/log 2>&1 || status=$?
    cat /tmp/log >&2
    tail -n 1 /tmp/log >>/host/said
    echo "$1 $status $(grep -o '\[[a-z-]*\]' /tmp/log | tail -n 1) $(dmsetup ls | grep -c luks- || true)" >>/host/tried
    if tpm2 nvreadpublic 0x1500001 >/dev/null 2>&1; then echo "$1" >>/host/spares; fi
    for name in $(dmsetup ls | sed -n 's/^\(luks-[^[:space:]]*\).*/\1/p'); do cryptsetup close "$name"; done
}
"#;

/// tpm2-tools, which know nothing of copal.
fn tpm2(guest: Guest) -> Guest {
    let root = part("unlock").unwrap().join("root");
    let libraries =
        std::fs::read_dir(root.join("usr/lib/x86_64-linux-gnu")).unwrap().map(|entry| entry.unwrap().path());
    libraries.chain([root.join("usr/bin/tpm2")]).filter(|path| path.is_file()).fold(guest, |guest, path| {
        let to = format!("/tpm2/{}", path.file_name().unwrap().to_str().unwrap());
        guest.file(&path, &to)
    })
}

#[test]
fn the_partitions_of_one_disk_are_opened_or_none() {
    let test = "the_partitions_of_one_disk_are_opened_or_none";
    let Some(guest) = Guest::small(test) else { return };
    if let Err(why) = part("tpm").and(part("secure")).and(part("unlock")) {
        return not_run(test, &why);
    }
    let dir = folder();
    let at = |name: &str| dir.path().join(name);
    let put = |name: &str, bytes: &[u8]| {
        std::fs::write(at(name), bytes).unwrap();
        at(name)
    };
    cut_off(&at("tpm"), &at("efi"));
    std::fs::File::create(at("empty")).unwrap().set_len(4 << 20).unwrap();
    let names = ["balena-efi", "resin-boot", "resin-rootA", "resin-rootB", "resin-state", "resin-data"];
    let images = names.map(|name| (name, if name == "balena-efi" { at("efi") } else { at("empty") }));
    gpt_image(&at("disk"), &images.each_ref().map(|(name, image)| (*name, image.as_path())), 0);
    let script = r#"
    try cut-off
    try whole
    var SecureBoot '\0'; try secure-boot-is-off
    var SecureBoot '\1'; var SetupMode '\1'; try setup-mode
    var SetupMode '\0'
    label 5 balena-state; label 5 other; try no-state
    label 5 resin-rootA; try two-of-a-name
    label 3 resin-state; try exchanged
    label 3 resin-rootA; label 5 resin-state; label 6 balena-efi; try two-plain-ones
    label 6 resin-data; try right-again
    cp /dev/nvme0n1p6 /tmp/data; dd if=/dev/zero of=/dev/nvme0n1p6 bs=1M count=1 conv=notrunc status=none; try not-encrypted
    cat /tmp/data >/dev/nvme0n1p6
    truncate -s 2M /tmp/other; mkfs.ext4 -q -F -L resin-state /tmp/other
    losetup /dev/loop0 /tmp/other; try another-disk
    mkfs.ext4 -q -F -L 'resin-data ' /tmp/other; try space-after-a-label
    mkfs.ext4 -q -F -L balena-efi /tmp/other; try another-plain-one
    losetup -d /dev/loop0
    cryptsetup luksFormat -q --type luks2 --cipher cipher_null-ecb --pbkdf pbkdf2 --pbkdf-force-iterations 1000 --luks2-metadata-size 16k \
        --luks2-keyslots-size 256k --offset 2048 --key-file /test/secret /dev/nvme0n1p6
    try encrypted-with-nothing
    cat /tmp/data >/dev/nvme0n1p6; try right-at-last
    put_into 0x1500001 /test/secret; try as-an-older-copal
    mkdir -p /sys/kernel/security/tpm0
    log=/sys/kernel/security/tpm0/binary_bios_measurements
    : >$log; try empty-log
    head -c -60 /test/action.log >$log; try damaged-log
    { cat /test/action.log; echo; } >$log; try no-dma-protection-in-a-damaged-log
    rm $log
    # As before LUKS2; a recovery that an older copal began has put another key beside the first one.
    for number in 2 3 4 5 6; do
        node=/dev/nvme0n1p$number
        label=$(lsblk -nro PARTLABEL $node)
        cryptsetup luksFormat -q --type luks1 --pbkdf-force-iterations 1000 --key-file /test/secret $node
        cryptsetup luksAddKey -q --pbkdf-force-iterations 1000 --key-file /test/secret $node /test/theirs
        cryptsetup open --key-file /test/secret $node new
        mkfs.ext4 -q -L $label /dev/mapper/new
        cryptsetup close new
    done
    try first-version
    put_into 0x1500001 /test/theirs; try two-that-open-all
    cryptsetup luksRemoveKey -q /dev/nvme0n1p6 /test/theirs
    put_into 0x1500001 /test/theirs; try two-passphrases
    tell_tpm /test/driver; try another-card
    cp /test/action.log $log; try no-dma-protection
    "#;
    let start: Vec<u8> = of_firmware().into_iter().flat_map(|digest| extend(7, digest)).collect();
    let outcome = tpm2(modules(guest))
        .copal()
        .module("loop")
        .tpm(&at("tpm"))
        .disk(Disk::Nvme, &at("disk"), "DISK")
        .file(&put("secret", &SECRET), "/test/secret")
        .file(&put("theirs", &[7; 32]), "/test/theirs")
        .file(&put("policy", &list().policy()), "/test/policy")
        .file(&put("start", &start), "/test/start")
        .file(&put("driver", &extend(2, DRIVER)), "/test/driver")
        .file(&put("action.log", &log_without_protection()), "/test/action.log")
        .text("/test/forbidden.esl", "")
        .text("/test/firmware/efi/efivars/some", "")
        .script(&format!("{BEGIN}{FIRMWARE}{TRY}{script}"))
        .run(LIMIT);
    println!("took {:?}\n{}", outcome.took, outcome.console);
    let refused = |name: &str| format!("{name} 3 [would-not-unlock] 0");
    let opened = |name: &str| format!("{name} 0  5");
    let expected = [
        opened("cut-off"),
        opened("whole"),
        "secure-boot-is-off 0  0".to_owned(),
        "setup-mode 0  0".to_owned(),
        refused("no-state"),
        refused("two-of-a-name"),
        refused("exchanged"),
        refused("two-plain-ones"),
        opened("right-again"),
        refused("not-encrypted"),
        refused("another-disk"),
        refused("space-after-a-label"),
        refused("another-plain-one"),
        refused("encrypted-with-nothing"),
        opened("right-at-last"),
        opened("as-an-older-copal"),
        opened("empty-log"),
        opened("damaged-log"),
        refused("no-dma-protection-in-a-damaged-log"),
        opened("first-version"),
        opened("two-that-open-all"),
        refused("two-passphrases"),
        refused("another-card"),
        refused("no-dma-protection"),
    ];
    assert_eq!(outcome.file("tried").lines().collect::<Vec<_>>(), expected, "{}", outcome.console);
    let outcome = outcome.ok();
    let said = outcome.file("said");
    // The independent witness: those that were refused afterwards have not looked at it.
    assert_eq!(outcome.file("spares"), "two-passphrases\nanother-card\nno-dma-protection\n");
    assert!(outcome.file("indices").contains("0x1500001"), "{}", outcome.file("indices"));
    for words in ["/dev/loop0", "encrypted with nothing", "two passphrases", "PCR 2 (drivers"] {
        assert!(said.contains(words), "{words}:\n{said}");
    }
    let emulated = Emulated::of(&at("tpm"));
    let mut tpm = emulated.tpm();
    assert!(tpm.public(INDEX).unwrap().unwrap().holds(&list().policy()), "it was completed");
}

const BEGIN: &str = r#"
. /lib/guest.sh
guest_udev
ln -sfn /proc/self/fd /dev/fd
until [ -b /dev/nvme0n1p6 ]; do sleep 0.1; done
"#;
