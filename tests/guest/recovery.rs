//! The recovery passphrase of an encrypted disk, whose TPM no longer unlocks it. Firmware and TPM are those of `secure_boot.rs`.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use copal::tpm::store::{INDEX, SPARE};
use copal::uefi::Guid;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::encrypted::{BEGIN, has};
use crate::kit::emulated_tpm::Emulated;
use crate::kit::prepared::part;
use crate::kit::schema;
use crate::secure_boot::{Board, FIRMWARE, USER_MODE, extend, forbidden, list, measured};
use crate::support::medium::used_disk;
use crate::support::{Disk, Guest, LIMIT, Outcome, not_run, tool};

/// What firmware with the keys of this board measures into PCR 7, without the entries that allow its programs.
fn own_start(board: &Board) -> Vec<u8> {
    let db = [list(&board.loader), list(&board.kernel)].concat();
    let digests = [
        measured("SecureBoot", Guid::GLOBAL, &[1]),
        measured("PK", Guid::GLOBAL, &board.keys),
        measured("KEK", Guid::GLOBAL, &board.keys),
        measured("db", Guid::DATABASE, &db),
        measured("dbx", Guid::DATABASE, &list(&forbidden())),
        Sha256::digest([0; 4]).into(),
    ];
    digests.into_iter().flat_map(|digest| extend(7, digest)).collect()
}

struct Device {
    board: Board,
    disk: std::path::PathBuf,
    tpm: std::path::PathBuf,
    test: &'static str,
}

impl Device {
    /// `start`: what the firmware measures of it.
    fn starts(&self, start: &[u8], recovery: &[u8], script: &str) -> Outcome {
        let at = |name: &str, bytes: &[u8]| {
            let path = self.board.source.dir.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            path
        };
        let key = std::fs::read(self.board.source.dir.path().join("recovery.json")).unwrap();
        let firmware = FIRMWARE.replace("/test/start", "/test/own-start");
        let outcome = self
            .board
            .on(Guest::small(self.test).unwrap())
            .file(&at("own-start", start), "/test/own-start")
            .file(&at("update", &extend(0, [5; 32])), "/test/update")
            .file(&at("recovery", recovery), "/test/recovery")
            .file(&at("config.json", &key), "/mnt/boottmp/config.json")
            .file(Path::new("/usr/bin/script"), "/usr/bin/script")
            .tpm(&self.tpm)
            .disk(Disk::Nvme, &self.disk, "TARGET")
            .script(&format!("{BEGIN}{firmware}{USER_MODE}{TOOLS}{script}"))
            .run(LIMIT)
            .ok();
        println!("took {:?}\n{}", outcome.took, outcome.console);
        outcome
    }
}

/// `try NAME ARGUMENTS`: notes what `copal recover` says, and whether a byte of the headers has changed.
const TOOLS: &str = r#"
parts() { for n in 2 3 4 5 6; do echo /dev/nvme0n1p$n; done; }
slots() {
    for part in $(parts); do
        cryptsetup luksDump $part | sed -n '/^Keyslots:/,/^Tokens:/s/^  \([0-9]*\): .*/\1/p' | tr '\n' ' '
        echo
    done | uniq
}
# With the areas of the first three slots.
headers() { for part in $(parts); do dd if=$part bs=1M count=1 iflag=direct status=none; done | md5sum; }
close() { for name in $(dmsetup ls | grep -o '^luks-[^ 	]*'); do cryptsetup close $name; done; }
recoverable() {
    for part in $(parts); do
        cryptsetup open --test-passphrase --key-slot 1 --key-file /test/recovery $part
    done
}
try() {
    name=$1; shift
    status=0
    before=$(headers)
    copal recover "$@" >/tmp/out 2>/tmp/log || status=$?
    cat /tmp/log >&2
    changed=same
    [ "$before" = "$(headers)" ] || changed=changed
    echo "$name $status $changed $(grep -o '\[[a-z-]*\]' /tmp/log | tail -n 1)$(cat /tmp/out)" >>/host/tried
}
"#;

const INSTALL: &str = r#"
copal flash --plan --conf /etc/resin-init-flasher.conf --image /test/os.img.gz >/host/plan
copal flash -v --conf /etc/resin-init-flasher.conf --image /test/os.img.gz --no-power-off >/host/receipt
dmsetup ls >/host/mappings
slots >/host/slots
cryptsetup luksDump /dev/nvme0n1p6 >/host/dump
mkdir -p /tmp/plain
mount -o ro /dev/nvme0n1p1 /tmp/plain
cp /tmp/plain/recovery.enc /host/
"#;

/// On the device, whose firmware is updated then.
const OWN: &str = r#"
until [ -b /dev/nvme0n1p6 ]; do sleep 0.1; done
copal unlock >/host/unlocked
try whole --passphrase-file /test/recovery
head -c 64 /dev/zero | tr '\0' f | try wrong
echo 0123 >/tmp/short; try short --passphrase-file /tmp/short
try missing --passphrase-file /tmp/missing
var SecureBoot '\0'; try off --passphrase-file /test/recovery; var SecureBoot '\1'
var SetupMode '\1'; try setup --passphrase-file /test/recovery; var SetupMode '\0'
mv /test/firmware/efi /test/firmware/none; try no-uefi --passphrase-file /test/recovery; mv /test/firmware/none /test/firmware/efi
mv /dev/tpmrm0 /dev/away; try no-tpm --passphrase-file /test/recovery; mv /dev/away /dev/tpmrm0

mkdir -p /mnt/sysroot/active /mnt/efi
mount -o ro "$(findfs LABEL=resin-rootA)" /mnt/sysroot/active
mount /dev/nvme0n1p1 /mnt/efi
rm /mnt/boot/balena-image-flasher /etc/resin-init-flasher.conf
copal doctor >/host/doctor 2>&1 || true
tell_tpm /test/update
copal doctor >/host/doctor.updated 2>&1 || true
tr a-f A-F </test/recovery >/tmp/upper
{ echo; cat /tmp/upper; echo; } | try own
slots >/host/slots
try own-again --passphrase-file /test/recovery

# Killed right after so many of these changes.
tool=$(command -v cryptsetup); mv $tool /test/cryptsetup
cat >$tool <<'END'
#!/bin/bash
/test/cryptsetup "$@" || exit
read -r what count </tmp/kill || exit 0
case " $* " in *" $what "*) ;; *) exit 0 ;; esac
count=$((count - 1))
echo "$what $count" >/tmp/kill
[ "$count" != 0 ] || kill -9 $PPID
END
chmod 755 $tool
for kill in "luksAddKey 3" "luksAddKey 5" "luksKillSlot 2"; do
    tell_tpm /test/update
    echo "$kill" >/tmp/kill
    try "killed-after-$kill" --passphrase-file /test/recovery
    : >/tmp/kill
    recoverable
    slots >>/host/slots.killed
    try "repeated-after-$kill" --passphrase-file /test/recovery
    slots >>/host/slots
    try "whole-after-$kill" --passphrase-file /test/recovery
done
recoverable

# At the next start the firmware is another one again, and a person is at the console.
tell_tpm /test/update
umount /mnt/sysroot/active /mnt/efi
close
status=0; copal unlock </dev/null 2>/host/locked || status=$?
echo $status >>/host/locked
mkdir -p /dev/pts; mount -t devpts devpts /dev/pts
mkfifo /tmp/keys
exec 4<>/tmp/keys
script -qefc 'copal unlock' /tmp/shown <&4 >/dev/null &
until grep -q 'digits)' /tmp/shown; do sleep 0.1; done
cat /tmp/upper >&4; echo >&4
wait $!
cp /tmp/shown /host/shown
dmsetup ls | grep -c ^luks- >/host/opened
"#;

const MEDIUM: &str = r#"
until [ -b /dev/nvme0n1p6 ]; do sleep 0.1; done
try medium --passphrase-file /test/recovery
slots >/host/slots
recoverable
"#;

const NEXT: &str = r#"
until [ -b /dev/nvme0n1p6 ]; do sleep 0.1; done
copal unlock >/host/unlocked
try whole --passphrase-file /test/recovery
"#;

#[test]
fn the_owner_recovers_a_disk_after_another_firmware_and_after_another_tpm() {
    let test = "the_owner_recovers_a_disk_after_another_firmware_and_after_another_tpm";
    if Guest::small(test).is_none() {
        return;
    }
    if let Err(why) = part("tpm").and(part("secure")) {
        return not_run(test, &why);
    }
    let board = Board::new();
    let dir = board.source.dir.path().to_owned();
    let at = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    let (key, public) = (at("owner.pem"), at("owner.pub"));
    tool(&[
        "openssl",
        "genpkey",
        "-quiet",
        "-algorithm",
        "RSA",
        "-pkeyopt",
        "rsa_keygen_bits:2048",
        "-out",
        &key,
    ]);
    tool(&["openssl", "pkey", "-in", &key, "-pubout", "-out", &public]);
    let config =
        json!({"installer": {"secureboot": true, "recovery_key": std::fs::read_to_string(&public).unwrap()}});
    std::fs::write(at("recovery.json"), config.to_string()).unwrap();
    let own = own_start(&board);
    let device = Device { disk: used_disk(dir.join("target"), 160), tpm: dir.join("tpm"), board, test };
    std::fs::create_dir(&device.tpm).unwrap();

    let installed = device.starts(&own, b"", INSTALL);
    assert_eq!(installed.file("mappings"), "No devices found\n");
    assert_eq!(installed.file("slots"), "0 1 \n");
    let dump = installed.file("dump");
    // Of both slots, and of the digest.
    assert_eq!(dump.matches("Iterations: 1000").count(), 3, "{dump}");
    assert!(
        installed.file("plan").contains("recovery passphrase in key slot 1"),
        "{}",
        installed.file("plan")
    );
    let kept = std::fs::read(installed.host().join("recovery.enc")).unwrap();
    let receipt: Value = serde_json::from_str(&installed.file("receipt")).unwrap();
    assert_eq!(schema::complaints(&receipt), "");
    assert_eq!(receipt["encryption"]["recovery"], STANDARD.encode(&kept));
    let how = ["-pkeyopt", "rsa_padding_mode:oaep", "-pkeyopt", "rsa_oaep_md:sha256", "-in"];
    std::fs::write(at("recovery.enc"), &kept).unwrap();
    let decrypt = ["openssl", "pkeyutl", "-decrypt", "-inkey", &key];
    let recovery = tool(&[&decrypt[..], &how, &[&at("recovery.enc")]].concat());
    assert!(recovery.len() == 64 && !recovery.contains(|c: char| !matches!(c, '0'..='9' | 'a'..='f')));
    let nowhere = |text: &[u8]| !has(&text.to_ascii_lowercase(), recovery.as_bytes());
    assert!(nowhere(installed.console.as_bytes()) && nowhere(&std::fs::read(&device.disk).unwrap()));

    let running = device.starts(&own, recovery.as_bytes(), OWN);
    assert_eq!(running.file("unlocked"), "5 encrypted partitions are open\n");
    let tried = running.file("tried");
    let sealed = |slot: u8| {
        format!(
            "all encrypted partitions have a new key, in slot {slot}, and the TPM gives its passphrase to this start and to the next one; the old key was removed; the recovery passphrase is the same as before"
        )
    };
    let whole = "nothing to do: the TPM gives the passphrase, all encrypted partitions take it, and the next start is unlocked";
    let expected = [
        format!("whole 0 same {whole}"),
        "wrong 3 same [recovery-passphrase-wrong]".to_owned(),
        "short 3 same [recovery-passphrase-wrong]".to_owned(),
        "missing 3 same [io]".to_owned(),
        "off 3 same [recovery-not-possible]".to_owned(),
        "setup 3 same [recovery-not-possible]".to_owned(),
        "no-uefi 3 same [recovery-not-possible]".to_owned(),
        "no-tpm 3 same [would-not-unlock]".to_owned(),
        format!("own 0 changed {}", sealed(28)),
        format!("own-again 0 same {whole}"),
        "killed-after-luksAddKey 3 137 changed ".to_owned(),
        format!("repeated-after-luksAddKey 3 0 changed {}", sealed(29)),
        format!("whole-after-luksAddKey 3 0 same {whole}"),
        "killed-after-luksAddKey 5 137 changed ".to_owned(),
        format!("repeated-after-luksAddKey 5 0 changed {}", sealed(28)),
        format!("whole-after-luksAddKey 5 0 same {whole}"),
        "killed-after-luksKillSlot 2 137 changed ".to_owned(),
        "repeated-after-luksKillSlot 2 0 changed the TPM gives the passphrase already; the old key was removed from the partitions".to_owned(),
        format!("whole-after-luksKillSlot 2 0 same {whole}"),
    ];
    assert_eq!(tried.lines().collect::<Vec<_>>(), expected, "{}", running.console);
    println!("{}\n{}", running.file("slots"), running.file("slots.killed"));
    assert!(running.file("doctor").contains("there is a recovery slot"), "{}", running.file("doctor"));
    let doctor = running.file("doctor.updated");
    assert!(doctor.contains("[would-not-unlock]; run `copal recover`"), "{doctor}");
    let locked = running.file("locked");
    assert!(locked.contains("[would-not-unlock]") && locked.ends_with("\n3\n"), "{locked}");
    let shown = running.file("shown");
    assert!(
        shown.contains("until `copal recover` was run in the system") && nowhere(shown.as_bytes()),
        "{shown}"
    );
    assert_eq!(running.file("opened"), "5\n");
    assert!(nowhere(running.console.as_bytes()));

    {
        let emulated = Emulated::of(&device.tpm);
        emulated.end_lockout();
        assert!(emulated.tpm().public(SPARE).unwrap().is_none(), "at rest there is no spare");
        emulated.tpm().remove(INDEX).unwrap();
    }
    let medium = device.starts(&[&own[..], &extend(7, [3; 32])].concat(), recovery.as_bytes(), MEDIUM);
    assert!(
        medium.file("tried").starts_with("medium 0 changed all encrypted partitions"),
        "{}",
        medium.file("tried")
    );
    assert!(medium.file("tried").contains("the next start from this disk"), "{}", medium.file("tried"));

    let next = device.starts(&own, recovery.as_bytes(), NEXT);
    assert_eq!(next.file("unlocked"), "5 encrypted partitions are open\n");
    assert_eq!(next.file("tried"), format!("whole 0 same {whole}\n"));
}
