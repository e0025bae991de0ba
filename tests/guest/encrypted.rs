//! Encrypted installations, with stand-ins for the plug-ins of two boards (`tests/kit/plugins`): what is on the disk, what is refused, what a
//! failure leaves.

use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::kit::schema;
use crate::support::medium::{Image, UNIT, noise, used_disk};
use crate::support::writelog::{self, Loss, Request};
use crate::support::{Disk, Guest, LIMIT, Outcome, Shutdown, System, fat_files, folder, part, tool};
use copal::disk::partition::create::{self, Kind, NewPartition};

const MIB: u64 = 1 << 20;

/// Where the partitions of [`Source`] begin, and how many MiB they have. The state's is rounded up to 8.
const PARTITIONS: [(&str, u64, u64); 5] = [
    ("resin-boot", 1, 8),
    ("resin-rootA", 9, 8),
    ("resin-rootB", 17, 8),
    ("resin-state", 25, 5),
    ("resin-data", 30, 8),
];

/// Bytes at each end of a disk that a partition table, and nothing else, is in.
const TABLE: u64 = MIB;

/// An image with the five partitions of a balenaOS, its signature, and the certificate of its signer.
pub(crate) struct Source {
    pub(crate) dir: tempfile::TempDir,
    bytes: Vec<u8>,
    /// How the kernel shows the certificate's key.
    keys: String,
}

impl Source {
    /// For a disk with sectors of so many bytes.
    fn new(sector: u32) -> Source {
        let boot: &[(&str, &[u8])] = &[
            ("boot.img", &noise(1, 300_000)),
            ("config.txt", b"boot_ramdisk=1\n"),
            ("Image.gz", b"a kernel\n"),
            ("os-release", b"ID=balena-os\n"),
            ("system-connections/old", b"an old connection\n"),
        ];
        Source::with_boot_files(sector, boot)
    }

    /// With these files in its boot partition.
    pub(crate) fn with_boot_files(sector: u32, boot: &[(&str, &[u8])]) -> Source {
        let dir = folder();
        let at = |name: &str| dir.path().join(name);
        let mut images: Vec<(&str, PathBuf)> = Vec::new();
        for (label, start, mib) in &PARTITIONS {
            let (label, mib) = (*label, *mib);
            let image = at(label);
            if label == "resin-boot" {
                std::fs::File::create(&image).unwrap().set_len(mib * MIB).unwrap();
                tool(&["mkfs.vfat", "-S", &sector.to_string(), "-n", label, image.to_str().unwrap()]);
                fat_files(&image, boot);
            } else {
                let tree = at(&format!("{label}.tree"));
                std::fs::create_dir(&tree).unwrap();
                std::fs::write(tree.join("content"), noise(*start, 1_000_000)).unwrap();
                if label == "resin-rootA" {
                    a_root(&tree);
                }
                let (tree, image, size) =
                    (tree.to_str().unwrap(), image.to_str().unwrap(), format!("{mib}M"));
                tool(&[
                    "mke2fs", "-q", "-F", "-t", "ext4", "-b", "4096", "-L", label, "-d", tree, image, &size,
                ]);
            }
            images.push((label, image));
        }
        let bytes = disk_image(sector, &images);
        std::fs::write(at("os.img"), &bytes).unwrap();
        let text = |name: &str| at(name).to_str().unwrap().to_owned();
        let request =
            ["openssl", "req", "-x509", "-nodes", "-batch", "-newkey", "rsa:2048", "-subj", "/O=balenaOS"];
        let files = ["-keyout", &text("key"), "-out", &text("kmod.crt")];
        tool(&[&request[..], &files].concat());
        tool(&["openssl", "dgst", "-sha256", "-binary", "-out", &text("digest"), &text("os.img")]);
        let sign = ["openssl", "pkeyutl", "-sign", "-inkey", &text("key"), "-in", &text("digest"), "-out"];
        tool(&[&sign[..], &[&text("os.img.sig")]].concat());
        let id =
            tool(&["openssl", "x509", "-noout", "-ext", "subjectKeyIdentifier", "-in", &text("kmod.crt")]);
        let id = id.lines().nth(1).unwrap().trim().replace(':', "").to_lowercase();
        tool(&["gzip", "-1", "-k", &text("os.img")]);
        let keys = format!("0b2e3c1d I------ 1 perm 1f030000 0 0 asymmetri balenaOS: {id}: X509.rsa []\n");
        Source { dir, bytes, keys }
    }

    /// The bytes of a partition.
    fn part(&self, label: &str) -> &[u8] {
        let (_, start, mib) = PARTITIONS.iter().find(|(l, ..)| *l == label).unwrap();
        let at = |mib: u64| usize::try_from(mib * MIB).unwrap();
        &self.bytes[at(*start)..at(start + mib)]
    }

    /// A guest with the image and what a medium has beside it.
    pub(crate) fn on(&self, guest: Guest) -> Guest {
        modules(guest)
            .copal()
            .file(&self.dir.path().join("os.img.gz"), "/test/os.img.gz")
            .file(&self.dir.path().join("os.img.sig"), "/test/os.img.sig")
            .file(&self.dir.path().join("kmod.crt"), "/mnt/boot/balena-keys/kmod.crt")
            .text("/mnt/boot/balena-image-flasher", "")
            .text("/mnt/boot/system-connections/new", "a new connection\n")
            .text("/mnt/boottmp/config.json", CONFIG_JSON)
            .text("/etc/keys", &self.keys)
            .text(
                "/etc/resin-init-flasher.conf",
                "INTERNAL_DEVICE_KERNEL=\"nvme0n1\"\nBALENA_IMAGE=os.img\nUSE_LUKS=1\n",
            )
    }
}

/// What says that it was started, and from where, then switches off.
fn a_root(tree: &Path) {
    for folder in ["bin", "sbin", "proc", "sys", "dev"] {
        std::fs::create_dir(tree.join(folder)).unwrap();
    }
    // With its mode.
    std::fs::copy(part("small").unwrap().join("bin/busybox"), tree.join("bin/busybox")).unwrap();
    let init = tree.join("sbin/init");
    let script = "#!/bin/busybox sh\nwhile read -r from at _; do [ \"$at\" != / ] || echo \"started from $from\"; done </proc/mounts\n\
                  exec /bin/busybox poweroff -f\n";
    std::fs::write(&init, script).unwrap();
    std::fs::set_permissions(&init, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// The partitions in their places, and a table.
fn disk_image(sector: u32, parts: &[(&str, PathBuf)]) -> Vec<u8> {
    let size = 40 * MIB;
    let entry = |(n, (label, start, mib)): (u8, &(&str, u64, u64))| NewPartition {
        number: n.into(),
        start: start * MIB,
        size: mib * MIB,
        kind: Kind::LinuxData,
        name: (*label).to_owned(),
        id: [n; 16],
    };
    let entries: Vec<NewPartition> = (1..).zip(&PARTITIONS).map(entry).collect();
    let table = create::gpt(size, sector, [9; 16], &entries).unwrap();
    let mut disk = vec![0; usize::try_from(size).unwrap()];
    let mut put = |at: u64, bytes: &[u8]| {
        let at = usize::try_from(at).unwrap();
        disk[at..at + bytes.len()].copy_from_slice(bytes);
    };
    put(0, &table.primary);
    put(table.backup_start, &table.backup);
    for ((_, path), (_, start, _)) in parts.iter().zip(&PARTITIONS) {
        put(start * MIB, &std::fs::read(path).unwrap());
    }
    disk
}

const CONFIG_JSON: &str = "{\"installer\": {\"secureboot\": true}, \"uuid\": \"abc\"}\n";

/// A file of the stand-ins.
fn stand_in(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kit/plugins").join(name)
}

fn stand_in_text(name: &str) -> String {
    std::fs::read_to_string(stand_in(name)).unwrap()
}

/// The plug-ins of a board, their helpers and tools, and where they are. They keep the state of the board in `/var/board`.
fn stand_ins(board: &str, tools: &[&str], bin: &str) -> Vec<(PathBuf, String)> {
    let plugins = ["secureboot", "diskenc"]
        .map(|name| (format!("{board}/{name}"), format!("/usr/libexec/balena-init-flasher-{name}")));
    let helpers = ["fs", "logging", "otp"]
        .map(|name| (format!("helpers/os-helpers-{name}"), format!("/usr/libexec/os-helpers-{name}")));
    let tools = tools.iter().map(|name| (format!("tools/{name}"), format!("{bin}/{name}")));
    plugins.into_iter().chain(helpers).chain(tools).map(|(from, to)| (stand_in(&from), to)).collect()
}

/// Until the disks are there. The kernel shows the keys that the test has.
pub(crate) const BEGIN: &str = r#"
. /lib/guest.sh
guest_udev
ln -sfn /proc/self/fd /dev/fd
mount --bind /etc/keys /proc/keys
until [ -b /dev/nvme0n1 ]; do sleep 0.1; done
mkdir -p /host/board /var
ln -s /host/board /var/board
"#;

const INSTALL: &str = r#"
status=0
copal flash -v --conf /etc/resin-init-flasher.conf --image /test/os.img.gz --no-power-off >/host/receipt 2>/host/log || status=$?
echo "$status" >/host/returned
dmsetup ls >/host/mappings
lsblk -o NAME,SIZE,LABEL,FSTYPE,PARTLABEL >/host/lsblk
cat /proc/mounts >/host/mounts
"#;

/// Opens what was installed, as the initramfs of the device does.
const UNLOCK: &str = r#"
guest_udev
ln -sfn /proc/self/fd /dev/fd
until [ -b /dev/nvme0n1p6 ]; do sleep 0.1; done
mkdir -p /tmp/plain /tmp/boot
mount -o ro "$(findfs LABEL=balena-rpi)" /tmp/plain
. /usr/libexec/os-helpers-otp
gpg --decrypt --batch --passphrase "$(otp_read_key)" -o /tmp/key /tmp/plain/balena-luks.enc
(cd /tmp/plain && md5sum -c balenaos.fingerprint)
for part in 2:resin-boot 3:resin-rootA 4:resin-rootB 5:resin-state 6:resin-data; do
    cryptsetup open --type luks2 --key-file /tmp/key "/dev/nvme0n1p${part%:*}" "${part#*:}"
done
"#;

/// Describes what is open.
const DESCRIBE: &str = r#"
for part in 2:resin-boot 3:resin-rootA 4:resin-rootB 5:resin-state 6:resin-data; do
    name=${part#*:}
    cryptsetup luksDump "/dev/nvme0n1p${part%:*}" >"/host/$name.dump"
    blockdev --getsize64 "/dev/mapper/$name" >"/host/$name.size"
    cp "/dev/mapper/$name" "/host/$name"
done
(cd /tmp/plain && find . -type f | sort) >/host/plain.files
mount -o ro /dev/mapper/resin-boot /tmp/boot
(cd /tmp/boot && find . -type f | sort) >/host/boot.files
cat /tmp/boot/config.json >/host/config.json
cat /tmp/boot/flash-receipt.json >/host/receipt
for name in resin-rootA resin-rootB resin-state resin-data; do
    mkdir "/tmp/$name"
    mount -o ro "/dev/mapper/$name" "/tmp/$name"
done
lsblk -nlo NAME,LABEL,FSTYPE,PARTLABEL >/host/lsblk
"#;

/// A guest that is a Raspberry Pi to its plug-ins.
fn with_luks(guest: Guest) -> Guest {
    let files = stand_ins("rpi", &["gpg", "vcmailbox"], "/usr/bin");
    files.iter().fold(guest, |guest, (from, to)| guest.file(from, to))
}

/// The first program of the device, up to the system's own.
fn start() -> String {
    format!(
        "#!/bin/bash
set -eu
. /lib/guest.sh
guest_mounts
mount -t tmpfs run /run
guest_modules
{UNLOCK}
mount /dev/mapper/resin-rootA /mnt
for dir in proc sys dev; do mount --move /$dir /mnt/$dir; done
exec switch_root /mnt /sbin/init
"
    )
}

/// The board of `installed` once more, with the key that it has had since then.
fn restarted(test: &str, target: &Path, installed: &Outcome) -> Guest {
    with_luks(modules(Guest::small(test).unwrap()))
        .file(&installed.host().join("board/otp"), "/var/board/otp")
        .disk(Disk::Nvme, target, "TARGET")
}

pub(crate) fn modules(guest: Guest) -> Guest {
    let names = ["dm_crypt", "ext4", "vfat", "nls_cp437", "nls_iso8859-1", "nls_ascii"];
    names.into_iter().fold(guest, Guest::module).memory(1024)
}

#[test]
fn a_board_with_luks_gets_each_partition_encrypted_and_verified() {
    let test = "a_board_with_luks_gets_each_partition_encrypted_and_verified";
    let Some(guest) = Guest::small(test) else { return };
    let source = Source::new(512);
    let target = used_disk(source.dir.path().join("target"), 160);
    let before = std::fs::read(&target).unwrap();
    let requests = source.dir.path().join("requests");
    let outcome = with_luks(source.on(guest))
        .disk(Disk::Nvme, &target, "TARGET")
        .logged(&requests)
        .script(&format!("{BEGIN}{INSTALL}"))
        .run(LIMIT)
        .ok();
    println!("took {:?}\n{}", outcome.took, outcome.file("log"));
    assert_eq!(outcome.file("returned"), "0\n", "{}", outcome.console);
    assert_eq!(outcome.file("mappings"), "No devices found\n");
    assert!(!outcome.file("mounts").contains("internal_boot"), "{}", outcome.file("mounts"));
    assert_table_last(&before, &target, &writelog::read(&requests));

    let receipt: Value = serde_json::from_str(&outcome.file("receipt")).unwrap();
    let encryption = &receipt["encryption"];
    assert_eq!(encryption["method"], "luks2");
    let list = encryption["partitions"].as_array().unwrap();
    let at = |n: usize| {
        (
            list[n]["number"].clone(),
            list[n]["name"].clone(),
            list[n]["start"].clone(),
            list[n]["size"].clone(),
        )
    };
    assert_eq!(at(0), (json!(1), json!("balena-rpi"), json!(MIB), json!(8 * MIB)));
    assert_eq!(at(1), (json!(2), json!("resin-boot"), json!(9 * MIB), json!(24 * MIB)));
    assert_eq!(at(4), (json!(5), json!("resin-state"), json!(81 * MIB), json!(24 * MIB)));
    assert_eq!(receipt["bytes"]["verified"], json!(37 * MIB));
    assert_eq!(receipt["image"]["signed"]["certificate"], "/mnt/boot/balena-keys/kmod.crt");

    let script = format!(". /lib/guest.sh\n{UNLOCK}{DESCRIBE}");
    let opened = restarted(test, &target, &outcome).script(&script).run(LIMIT).ok();
    let shown = opened.file("lsblk");
    for line in [
        "nvme0n1p1 balena-rpi vfat balena-rpi",
        "nvme0n1p2 crypto_LUKS resin-boot",
        "resin-data resin-data ext4",
    ] {
        let words = |l: &str| l.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(shown.lines().any(|l| words(l) == line), "{line}: {shown}");
    }
    for (label, _, mib) in PARTITIONS {
        assert_eq!(opened.file(&format!("{label}.size")), format!("{}\n", mib.next_multiple_of(4) * MIB));
        let dump = opened.file(&format!("{label}.dump"));
        for words in ["aes-xts-plain64", "pbkdf2", "Iterations: 1000", "Label:         \t(no label)"] {
            assert!(dump.contains(words), "{words}: {dump}");
        }
        if label != "resin-boot" {
            let found = std::fs::read(opened.host().join(label)).unwrap();
            let part = source.part(label);
            assert!(found[..part.len()] == *part, "{label}");
        }
    }
    assert_eq!(
        opened.file("plain.files").lines().collect::<Vec<_>>(),
        ["./Image.gz", "./balena-luks.enc", "./balenaos.fingerprint", "./boot.img", "./config.txt"]
    );
    assert_eq!(
        opened.file("boot.files").lines().collect::<Vec<_>>(),
        [
            "./balenaos.fingerprint",
            "./config.json",
            "./flash-receipt.json",
            "./os-release",
            "./system-connections/new"
        ]
    );
    assert_eq!(opened.file("config.json"), "{\n  \"uuid\": \"abc\"\n}\n");
    let left: Value = serde_json::from_str(&opened.file("receipt")).unwrap();
    assert_eq!(left["encryption"], *encryption);
    assert_eq!(schema::complaints(&left), "");

    let started = restarted(test, &target, &outcome).init(&start()).run(LIMIT);
    assert_eq!(started.ending, Shutdown::PoweredOff, "{}", started.console);
    assert!(started.console.contains("started from /dev/mapper/resin-rootA"), "{}", started.console);
}

/// Whenever the power goes, there is the old disk but for its table, or no table, or the whole of what is there at the end: the old table goes
/// before anything else is written, the new one comes when all else is on the medium.
fn assert_table_last(before: &[u8], after: &Path, requests: &[Request]) {
    let size = before.len() as u64;
    let is_table = |r: &Request| r.at < TABLE || r.at >= size - TABLE;
    let writes = |r: &Request| !r.data.is_empty() && !r.discard;
    let fills = |r: &&Request| writes(r) && r.data.iter().any(|b| *b != 0);
    let first_other = requests.iter().position(|r| writes(r) && !is_table(r)).unwrap();
    let flush_after = |n: usize| n + 1 + requests[n + 1..].iter().position(|r| r.flush).unwrap();
    // A request may flush and write: what it writes comes after its flush.
    let cleared = requests[..first_other].iter().rposition(|r| writes(r) && is_table(r)).unwrap();
    assert!(
        flush_after(cleared) <= first_other,
        "something is written before the old table is gone for certain"
    );
    assert!(
        !requests[..first_other].iter().any(|r| fills(&r)),
        "something else than zeroes is written first"
    );
    let first_table = requests.iter().position(|r| is_table(r) && fills(&r)).unwrap();
    let last_other = requests.iter().rposition(|r| writes(r) && !is_table(r)).unwrap();
    assert!(last_other < first_table && flush_after(last_other) <= first_table, "the table comes too early");

    // Backup, entries, header, first sector: each is on the medium before the next is written.
    let mut pieces: Vec<u64> = Vec::new();
    for (n, request) in requests.iter().enumerate().skip(first_table).filter(|(_, r)| writes(r)) {
        let flushed = requests[..=n].iter().rposition(|r| r.flush).unwrap();
        let before = requests[first_table..n].iter().rposition(writes).map(|i| first_table + i);
        assert!(before.is_none_or(|b| flushed > b), "two pieces of the table at a time");
        pieces.push(request.at);
    }
    assert_eq!(pieces, [size - 33 * 512, 1024, 512, 0]);

    let mut disk = before.to_vec();
    requests.iter().for_each(|request| request.apply(&mut disk));
    assert!(disk == std::fs::read(after).unwrap(), "the log is not complete");
    assert_cuts(before, requests, first_other, last_other);
}

/// What sfdisk says of the disk after a power cut right before or after each write of a table, whatever of it is on the medium.
fn assert_cuts(before: &[u8], requests: &[Request], first_other: usize, last_other: usize) {
    let ends = |disk: &[u8]| {
        let table = usize::try_from(TABLE).unwrap();
        [&disk[..table], &disk[disk.len() - table..]].concat()
    };
    // The ends of the disk alone: nothing else has a table.
    let size = before.len() as u64;
    let moved: Vec<Request> = requests.iter().map(|r| r.in_ends(size, TABLE)).collect();
    let before = ends(before);
    let dir = folder();
    let path = dir.path().join("cut");
    std::fs::File::create(&path).unwrap().set_len(size).unwrap();
    let names = |disk: &[u8]| {
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        let (head, tail) = disk.split_at(disk.len() / 2);
        file.write_all_at(head, 0).unwrap();
        file.write_all_at(tail, size - TABLE).unwrap();
        let out = Command::new("sfdisk").args(["-q", "-l", "-o", "name"]).arg(&path).output().unwrap();
        let text = String::from_utf8(out.stdout).unwrap();
        text.lines()
            .skip(1)
            .map(|line| line.trim().to_owned())
            .filter(|name| !name.is_empty())
            .collect::<Vec<_>>()
    };
    let old = names(&before);
    assert_eq!(old, ["resin-boot", "old"]);
    let labels = PARTITIONS.iter().map(|(label, ..)| (*label).to_owned());
    let new: Vec<String> = std::iter::once("balena-rpi".to_owned()).chain(labels).collect();
    let mut found = [0; 3];
    let cuts: Vec<usize> =
        (0..moved.len()).filter(|n| !moved[*n].data.is_empty()).flat_map(|n| [n, n + 1]).collect();
    for n in cuts {
        let seed = n as u64;
        let torn = (0..4).map(|sectors| Loss::Torn(n.saturating_sub(1), sectors));
        for loss in torn.chain([Loss::All, Loss::None, Loss::Random(seed), Loss::Random(seed + 1)]) {
            let disk =
                writelog::after_a_cut(&before, &moved, n, |request, sector| loss.keeps(request, sector));
            let names = names(&disk);
            let kind = [&old, &Vec::new(), &new].iter().position(|known| **known == names);
            let kind = kind.unwrap_or_else(|| panic!("{names:?} after {n} requests, {loss:?}"));
            assert!(kind != 0 || n <= first_other, "the old table after {n} requests, {loss:?}");
            assert!(kind != 2 || n > last_other, "the new table after {n} requests, {loss:?}");
            found[kind] += 1;
        }
    }
    assert!(found.iter().all(|count| *count > 0), "{found:?}");
}

/// `try NAME`: installs, notes name, exit status, code, mappings and mounts that are left, and undoes what was changed for the case. `own` names a
/// mapping of the case's own, `how` an argument.
const TRY: &str = r#"
mkdir /tmp/kept
cp -a /mnt/boot /usr/libexec /test /etc /tmp/kept
restore() {
    cp -a /tmp/kept/boot/. /mnt/boot/
    cp -a /tmp/kept/libexec/. /usr/libexec/
    cp -a /tmp/kept/test/. /test/
    cp -a /tmp/kept/etc/resin-init-flasher.conf /etc/
    cat /tmp/kept/etc/keys >/etc/keys
    echo '{"installer": {"secureboot": true}}' >/mnt/boottmp/config.json
}
try() {
    status=0
    copal flash --conf /etc/resin-init-flasher.conf --image /test/os.img.gz --no-power-off ${how:-} >/dev/null 2>/tmp/log || status=$?
    cat /tmp/log >&2
    echo "$1 $status $(grep -o '\[[a-z-]*\]' /tmp/log | tail -n 1) $(dmsetup ls | grep -vc -e "${own:-none}" -e 'No devices' || true) $(grep -c internal_boot /proc/mounts || true)" >>/host/tried
    restore
}
plugin() { echo "$1" >>/usr/libexec/balena-init-flasher-diskenc; }
"#;

/// The cases as a script, and what each must come to: its name, the exit status, the code, and nothing mapped or mounted.
pub(crate) fn tried(script: &str, expected: &[(&str, u8, &str)], outcome: &Outcome) {
    let found = outcome.file("tried");
    let lines: Vec<String> =
        expected.iter().map(|(name, status, code)| format!("{name} {status} [{code}] 0 0")).collect();
    assert_eq!(found.lines().collect::<Vec<_>>(), lines, "{script}\n{}", outcome.console);
}

#[test]
fn what_cannot_be_encrypted_is_refused_before_the_disk_is_touched() {
    let test = "what_cannot_be_encrypted_is_refused_before_the_disk_is_touched";
    let Some(guest) = Guest::small(test) else { return };
    let source = Source::new(512);
    let dir = source.dir.path();
    let (target, small) = (used_disk(dir.join("target"), 160), used_disk(dir.join("small"), 120));
    let (requests, of_small) = (dir.join("requests"), dir.join("of_small"));
    let script = r#"
    sig=/test/os.img.sig
    rm $sig; try no-signature
    printf x | dd of=$sig bs=1 seek=100 conv=notrunc status=none; try wrong-signature
    truncate -s 255 $sig; try short-signature
    head -c 1 /dev/zero >>$sig; try long-signature
    : >/etc/keys; try unknown-key
    cat /etc/keys /etc/keys >/tmp/keys; cat /tmp/keys >/etc/keys; try known-twice
    rm /mnt/boot/balena-keys/kmod.crt; try no-certificate
    tool=$(command -v cryptsetup); mv "$tool" /tmp/; try no-cryptsetup
    printf '#!/bin/sh\necho cryptsetup 2.0.6\n' >"$tool"; chmod 755 "$tool"; try old-cryptsetup
    mv /tmp/cryptsetup "$tool"
    mkfs=$(command -v mkfs.ext4); mv "$mkfs" /tmp/; try no-mkfs
    mv /tmp/mkfs.ext4 "$mkfs"
    dmsetup create resin-state --table '0 8 error'; own=resin-state try mapping-there
    dmsetup remove resin-state
    sed -i s/nvme0n1/vda/ /etc/resin-init-flasher.conf; try too-small
    module=$(find /lib/modules -name 'dm-crypt.ko*'); modprobe -r dm_crypt; mv "$module" /tmp/; try no-dm-crypt
    mv /tmp/dm-crypt.ko* "$module"
    plugin 'secureboot_setup() { touch /tmp/too-early; }'; how=--single-pass try single-pass; [ ! -e /tmp/too-early ]
    dmsetup create hold --table '0 8 linear /dev/nvme0n1 0'
    plugin 'secureboot_setup() { touch /tmp/too-early; }'; own=hold try in-use; [ ! -e /tmp/too-early ]
    dmsetup remove hold
    plugin 'secureboot_setup() { exit 1; }'; try exits
    plugin 'secureboot_setup() { reboot; exit 0; }; reboot() { echo reboot; }'; try reboots
    plugin 'secureboot_setup() { sleep 600; }'; COPAL_BOARD_PROGRAM_TIMEOUT=2 try hangs
    plugin 'BALENA_NONENC_BOOT_LABEL='; try no-label
    plugin 'BALENA_NONENC_BOOT_LABEL=resin-boot'; try same-label
    plugin 'BALENA_NONENC_BOOT_LABEL=balena-board1'; try long-label
    plugin 'BALENA_NONENC_BOOT_LABEL=balena/rpi'; try odd-label
    plugin 'unset -f bootpart_split'; try no-split
    plugin 'diskenc_setup() { return 1; }'; try no-keys
    plugin 'diskenc_setup() { :; }'; try no-passphrase
    plugin 'diskenc_setup() { PASSPHRASE_FILE=/tmp/p; : >/tmp/p; }'; try empty
    plugin 'diskenc_setup() { PASSPHRASE_FILE=/tmp/p; printf %064d 0 >/tmp/p; }'; try constant
    plugin 'diskenc_setup() { PASSPHRASE_FILE=/tmp; }'; try folder
    plugin 'diskenc_setup() { PASSPHRASE_FILE=/tmp/missing; }'; try missing
    plugin 'diskenc_setup() { PASSPHRASE_FILE=/host/p; head -c 32 /dev/urandom >/host/p; }'; try on-a-disk
    plugin 'diskenc_setup() { USE_LUKS=0; PASSPHRASE_FILE=/tmp/q; head -c 32 /dev/urandom >/tmp/q; }'; try other-method
    [ ! -e /tmp/q ]
    plugin 'diskenc_setup() { PASSPHRASE_FILE=/tmp/q; head -c 32 /dev/urandom >/tmp/q; return 1; }'; try keys-fail
    [ ! -e /tmp/q ]
    plugin 'diskenc_setup() { PASSPHRASE_FILE=/tmp/q; head -c 32 /dev/urandom >/tmp/q; dmsetup create hold --table "0 8 linear /dev/nvme0n1 0"; }'
    own=hold try in-use-by-the-plug-in
    dmsetup remove hold
    [ ! -e /tmp/q ]
    sed -i s/USE_LUKS=1/USE_LUKS=0/ /etc/resin-init-flasher.conf; try no-dmsetup
    echo '{}' >/mnt/boottmp/config.json; rm $sig; try decides-alone
    echo '{}' >/mnt/boottmp/config.json; rm $sig
    plugin 'secureboot_setup() { touch /tmp/asked; exit 5; }'; try asked-anyway; [ -e /tmp/asked ]
    "#;
    let outcome = with_luks(source.on(guest))
        .disk(Disk::Nvme, &target, "TARGET")
        .logged(&requests)
        .disk(Disk::Virtio, &small, "SMALL")
        .logged(&of_small)
        .script(&format!("{BEGIN}{TRY}{script}"))
        .run(LIMIT);
    println!("took {:?}\n{}", outcome.took, outcome.console);
    let expected = [
        ("no-signature", 3, "signature-missing"),
        ("wrong-signature", 3, "signature-invalid"),
        ("short-signature", 3, "signature-invalid"),
        ("long-signature", 3, "signature-invalid"),
        ("unknown-key", 3, "certificate-untrusted"),
        ("known-twice", 3, "certificate-untrusted"),
        ("no-certificate", 3, "certificate-invalid"),
        ("no-cryptsetup", 3, "encryption-tool-unusable"),
        ("old-cryptsetup", 3, "encryption-tool-unusable"),
        ("no-mkfs", 3, "encryption-tool-unusable"),
        ("mapping-there", 3, "mapping-exists"),
        ("too-small", 3, "target-too-small"),
        ("no-dm-crypt", 3, "kernel-lacks-encryption"),
        ("single-pass", 3, "signature-missing"),
        ("in-use", 3, "target-in-use"),
        ("exits", 3, "plugin-failed"),
        ("reboots", 3, "plugin-failed"),
        ("hangs", 3, "plugin-failed"),
        ("no-label", 3, "plugin-incomplete"),
        ("same-label", 3, "plugin-incomplete"),
        ("long-label", 3, "plugin-incomplete"),
        ("odd-label", 3, "plugin-incomplete"),
        ("no-split", 3, "plugin-incomplete"),
        ("no-keys", 3, "plugin-failed"),
        ("no-passphrase", 3, "plugin-incomplete"),
        ("empty", 3, "passphrase-unusable"),
        ("constant", 3, "passphrase-unusable"),
        ("folder", 3, "passphrase-unusable"),
        ("missing", 3, "passphrase-unusable"),
        ("on-a-disk", 3, "passphrase-unusable"),
        ("other-method", 3, "plugin-incomplete"),
        ("keys-fail", 3, "plugin-failed"),
        ("in-use-by-the-plug-in", 5, "busy"),
        ("no-dmsetup", 3, "plugin-incomplete"),
        ("decides-alone", 3, "signature-missing"),
        ("asked-anyway", 3, "plugin-failed"),
    ];
    tried(script, &expected, &outcome);
    let outcome = outcome.ok();
    for log in [&requests, &of_small] {
        let written = writelog::read(log).iter().filter(|r| !r.data.is_empty() || r.discard).count();
        assert_eq!(written, 0, "{}", log.display());
    }
    assert!(!outcome.host().join("p").exists(), "a passphrase on a disk is wiped");
}

#[test]
fn a_failure_after_the_disk_was_touched_leaves_no_table_and_nothing_open() {
    let test = "a_failure_after_the_disk_was_touched_leaves_no_table_and_nothing_open";
    let Some(guest) = Guest::small(test) else { return };
    let source = Source::new(512);
    let target = used_disk(source.dir.path().join("target"), 160);
    let script = r#"
    again() { try "$1"; head -c 1048576 /dev/nvme0n1 | tr -d '\0' | wc -c; tail -c 1048576 /dev/nvme0n1 | tr -d '\0' | wc -c; }
    tables() { again "$1" | tr '\n' ' ' >>/host/tables; }
    plugin 'bootpart_split() { return 1; }'; tables split-fails
    plugin 'bootpart_split() { exit 1; }'; tables split-exits
    plugin 'bootpart_split() { NONENC_BOOT_MOUNT_DIR=/tmp; }'; tables split-lies
    plugin 'bootpart_split() { mkdir -p /tmp/m; mount /dev/nvme0n1p1 /tmp/m; return 1; }'; tables split-leaves-a-mount
    ! grep -q /tmp/m /proc/mounts
    plugin 'secureboot_bootloader_setup() { return 1; }'; tables setup-fails
    printf '#!/bin/sh\nexit 7\n' >/usr/bin/resin-init-flasher-board; chmod 755 /usr/bin/resin-init-flasher-board; tables board-fails
    rm /usr/bin/resin-init-flasher-board
    sed -i s/USE_LUKS=1/USE_LUKS=0/ /etc/resin-init-flasher.conf
    plugin 'diskenc_dmsetup() { return 1; }'; tables mapping-fails
    sed -i s/USE_LUKS=1/USE_LUKS=0/ /etc/resin-init-flasher.conf
    plugin 'diskenc_dmsetup() { :; }'; tables no-mapping
    sed -i s/USE_LUKS=1/USE_LUKS=0/ /etc/resin-init-flasher.conf
    plugin 'diskenc_dmsetup() { dmsetup create "$2" --table "0 8192 linear $1 0"; }'; tables plain-mapping
    sed -i s/USE_LUKS=1/USE_LUKS=0/ /etc/resin-init-flasher.conf
    plugin 'diskenc_dmsetup() { dmsetup create "$2" --table "0 8192 crypt aes-cbc-plain 00112233445566778899aabbccddeeff 0 /dev/nvme0n1p6 0"; }'; tables wrong-device
    # The disk is complete by then.
    plugin 'secureboot_bootloader_postsetup() { kill -TERM $PPID; return 1; }'
    copal flash --conf /etc/resin-init-flasher.conf --image /test/os.img.gz --no-power-off >/dev/null 2>/host/late
    sfdisk -l -o name /dev/nvme0n1 >/host/table
    "#;
    let outcome = with_luks(source.on(guest))
        .disk(Disk::Nvme, &target, "TARGET")
        .script(&format!("{BEGIN}{TRY}{script}"))
        .run(LIMIT);
    println!("took {:?}\n{}", outcome.took, outcome.console);
    let expected = [
        ("split-fails", 4, "plugin-failed"),
        ("split-exits", 4, "plugin-failed"),
        ("split-lies", 4, "plugin-incomplete"),
        ("split-leaves-a-mount", 4, "plugin-failed"),
        ("setup-fails", 4, "plugin-failed"),
        ("board-fails", 4, "board-program-failed"),
        ("mapping-fails", 4, "plugin-failed"),
        ("no-mapping", 4, "encryption-failed"),
        ("plain-mapping", 4, "encryption-failed"),
        ("wrong-device", 4, "encryption-failed"),
    ];
    tried(script, &expected, &outcome);
    let outcome = outcome.ok();
    assert_eq!(outcome.file("tables"), "0 0 ".repeat(expected.len()), "what is where tables are");
    assert!(outcome.file("late").contains("secureboot_bootloader_postsetup"), "{}", outcome.file("late"));
    assert!(outcome.file("table").contains("resin-data"), "{}", outcome.file("table"));
}

/// [`OPEN`] for an i.MX.
const OPEN_IMX: &str = r#"
. /lib/guest.sh
guest_udev
until [ -b /dev/nvme0n1p6 ]; do sleep 0.1; done
mkdir -p /tmp/plain /tmp/boot
mount -o ro "$(findfs LABEL=balena-imx)" /tmp/plain
caam-keygen import /tmp/plain/balena_32.enc key
keyctl padd logon logkey: @u </tmp/keys/key >/dev/null
(cd /tmp/plain && md5sum -c balenaos.fingerprint)
for part in 2:resin-boot 3:resin-rootA 4:resin-rootB 5:resin-state 6:resin-data; do
    name=${part#*:} device=/dev/nvme0n1p${part%:*}
    dmsetup create "$name" --table "0 $(blockdev --getsz "$device") crypt capi:cbc(aes)-plain :32:logon:logkey: 0 $device 0"
    cp "/dev/mapper/$name" "/host/$name"
    mkdir -p "/tmp/$name"
    mount -o ro "/dev/mapper/$name" "/tmp/$name"
done
(cd /tmp/plain && find . -type f | sort) >/host/plain.files
(cd /tmp/resin-boot && find . -type f | sort) >/host/boot.files
"#;

#[test]
fn a_board_with_a_cipher_of_its_own_is_installed_by_the_service_on_4096_byte_sectors() {
    let test = "a_board_with_a_cipher_of_its_own_is_installed_by_the_service_on_4096_byte_sectors";
    let Some(guest) = Guest::system(test, "PARTLABEL=flash-rootA") else { return };
    let Some(system) = System::new(test) else { return };
    let source = Source::new(4096);
    let dir = source.dir.path();
    let image = Image { path: dir.join("os.img"), bytes: source.bytes.clone(), boot: 0..0 };
    let target = used_disk(dir.join("target"), 160);
    let system = system
        .flasher(&image, "INTERNAL_DEVICE_KERNEL=nvme0n1\nUSE_LUKS=0")
        .flashing()
        .file(&dir.join("os.img.sig"), "/opt/balena.img.sig")
        .text("/etc/keys", &source.keys)
        .text(
            &format!("/etc/systemd/system/{UNIT}.d/keys.conf"),
            "[Service]\nExecStartPre=/bin/mount --bind /etc/keys /proc/keys\n",
        )
        .text("/var/board/fuses/closed", "");
    let tools = ["caam-keygen", "imx-otp-tool", "jq", "dmsetup"];
    let files = stand_ins("imx", &tools, "/usr/local/bin");
    let system = files.iter().fold(system, |system, (from, to)| system.file(from, to));
    let certificate = std::fs::read(dir.join("kmod.crt")).unwrap();
    let files: &[(&str, &[u8])] =
        &[("config.json", CONFIG_JSON.as_bytes()), ("balena-keys/kmod.crt", &certificate)];
    let medium = system.medium(dir, 640, files);
    let outcome = ["dm_crypt"]
        .into_iter()
        .fold(guest, Guest::module)
        .disk(Disk::Usb, &medium, "STICK")
        .disk(Disk::Nvme, &target, "TARGET")
        .blocks_of_4096()
        .run(LIMIT);
    let own = |e: &Value| e["SYSLOG_IDENTIFIER"] == "resin-init-flasher";
    let journal = outcome.journal();
    let log: Vec<&str> = journal.iter().filter(|e| own(e)).filter_map(|e| e["MESSAGE"].as_str()).collect();
    println!("took {:?}\n{}", outcome.took, log.join("\n"));
    assert_eq!(outcome.ending, Shutdown::PoweredOff, "{}", outcome.console);

    let guest = modules(Guest::small(test).unwrap());
    let guest = guest.file(&stand_in("tools/caam-keygen"), "/usr/bin/caam-keygen");
    let opened = guest.disk(Disk::Nvme, &target, "TARGET").blocks_of_4096().script(OPEN_IMX).run(LIMIT).ok();
    for (label, _, _) in PARTITIONS.iter().filter(|(label, ..)| *label != "resin-boot") {
        let found = std::fs::read(opened.host().join(label)).unwrap();
        let part = source.part(label);
        assert!(found[..part.len()] == *part, "{label}");
    }
    assert_eq!(
        opened.file("plain.files").lines().collect::<Vec<_>>(),
        ["./Image.gz", "./balena_32.enc", "./balenaos.fingerprint"]
    );
    assert_eq!(
        opened.file("boot.files").lines().collect::<Vec<_>>(),
        [
            "./balenaos.fingerprint",
            "./boot.img",
            "./config.json",
            "./config.txt",
            "./flash-receipt.json",
            "./os-release",
            "./system-connections/old"
        ]
    );
}

/// Looks for the passphrase while the flasher runs with the mappings open: in its memory, in each file system in memory, in the swap. Says what
/// it finds, and whether it finds what is there for certain.
const SEARCH: &str = r#"
# This grep ends a line at a zero byte.
contains() { tr '\0' '\n' | grep -qF -- "$1"; }
in_memory() {
    found=0
    while read -r range rights _; do
        case $rights in rw*) ;; *) continue ;; esac
        start=$((0x${range%-*} / 4096)) end=$((0x${range#*-} / 4096))
        if dd if="/proc/$PPID/mem" bs=4096 skip="$start" count=$((end - start)) 2>/dev/null | contains "$1"; then found=1; fi
    done <"/proc/$PPID/maps"
    echo "$found"
}
bootpart_split() {
    {
        echo "program $(cat "/proc/$PPID/comm")"
        echo "known $(in_memory /test/os.img.gz)"
        echo "passphrase $(in_memory "$(cat /test/secret)")"
        find /tmp /run /etc /var /mnt/boot /mnt/boottmp /dev/shm -xdev -type f 2>/dev/null | while read -r file; do
            if contains "$(cat /test/secret)" <"$file"; then echo "file $file"; fi
        done
        if contains "$(cat /test/secret)" </dev/zram0; then echo swap; fi
    } >/host/found
    split_bootpartition
}
"#;

#[test]
fn the_passphrase_is_left_nowhere() {
    let test = "the_passphrase_is_left_nowhere";
    let Some(guest) = Guest::small(test) else { return };
    let source = Source::new(512);
    let target = used_disk(source.dir.path().join("target"), 160);
    let secret: String = noise(fastrand::u64(..), 24).iter().map(|byte| format!("{byte:02x}")).collect();
    let (makes, takes) = ("random_key >\"$PASSPHRASE_FILE\"", "cat /test/secret >\"$PASSPHRASE_FILE\"");
    let diskenc = stand_in_text("rpi/diskenc");
    assert!(diskenc.contains(makes));
    let setup = "
        modprobe zram num_devices=1; echo 64M >/sys/block/zram0/disksize; mkswap /dev/zram0 >/dev/null; swapon /dev/zram0
        tool=$(command -v cryptsetup); mv $tool /test/cryptsetup
        cat >$tool <<'END'
#!/bin/bash
{ printf '%s ' \"$@\"; echo; } >>/host/arguments
{ tr '\\0' '\\n' </proc/self/environ; tr '\\0' '\\n' </proc/$PPID/environ; } >>/host/environment
ulimit -c >>/host/core
exec /test/cryptsetup \"$@\"
END
        chmod 755 $tool
    ";
    let outcome = with_luks(source.on(guest))
        .text("/test/secret", &secret)
        .text(
            "/usr/libexec/balena-init-flasher-secureboot",
            &format!("{}{SEARCH}", stand_in_text("rpi/secureboot")),
        )
        .text("/usr/libexec/balena-init-flasher-diskenc", &diskenc.replace(makes, takes))
        .disk(Disk::Nvme, &target, "TARGET")
        .script(&format!("{BEGIN}{setup}{INSTALL}"))
        .run(LIMIT)
        .ok();
    println!("took {:?}\n{}", outcome.took, outcome.file("log"));
    assert_eq!(outcome.file("returned"), "0\n", "{}", outcome.console);
    assert_eq!(outcome.file("found"), "program copal\nknown 1\npassphrase 0\n");
    assert!(outcome.file("arguments").matches("luksFormat").count() == 5, "{}", outcome.file("arguments"));
    assert!(outcome.file("core").lines().all(|limit| limit == "0"), "{}", outcome.file("core"));
    let files = std::fs::read_dir(outcome.host()).unwrap().map(|f| f.unwrap().path()).filter(|f| f.is_file());
    for file in files.chain([outcome.host().join("board/otp")]) {
        let bytes = std::fs::read(&file).unwrap();
        assert!(!has(&bytes, secret.as_bytes()), "{}", file.display());
    }
    assert!(!outcome.console.contains(&secret));
    assert!(!has(&std::fs::read(&target).unwrap(), secret.as_bytes()), "on the disk");

    // The plug-in of the test did use it.
    let script = format!(". /lib/guest.sh\n{UNLOCK}{DESCRIBE}");
    let opened = restarted(test, &target, &outcome).script(&script).run(LIMIT).ok();
    assert!(opened.file("boot.files").contains("./config.json"));
}

pub(crate) fn has(bytes: &[u8], searched: &[u8]) -> bool {
    bytes.windows(searched.len()).any(|window| window == searched)
}
