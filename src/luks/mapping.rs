//! Encrypted partitions: made, opened under the name of their partition, closed.

use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::passphrase::Passphrase;
use crate::config::paths::Paths;
use crate::error::{Code, Error, Result};
use crate::sys::block::major_minor;
use crate::sys::command::{Command, Said, Speaker, Stream};
use crate::sys::device_mapper::{DeviceMapper, Mapping};
use crate::sys::file;

/// A slow board derives a key for a minute, and this is no slow derivation, but a hung device.
const LIMIT: Duration = Duration::from_secs(600);

/// For udev, which probes a mapping that was just written, to let go of it, and for its node to appear.
const UDEV_TIMEOUT: Duration = Duration::from_secs(30);

const POLL_INTERVAL: Duration = Duration::from_millis(100);

pub(crate) const CRYPTSETUP: &str = "cryptsetup";
pub(crate) const MKFS: &str = "mkfs.ext4";

/// The kernel's kind of such a mapping.
pub(crate) const CRYPT: &str = "crypt";

pub(crate) const CONTROL: &str = "/dev/mapper/control";

pub(crate) fn node(paths: &Paths, name: &str) -> PathBuf {
    paths.at(format!("/dev/mapper/{name}"))
}

/// Makes an empty LUKS2 partition. `sector`: of the disk, in bytes.
pub(crate) fn format(partition: &Path, sector: u32, passphrase: &Passphrase) -> Result<()> {
    // The initramfs looks for file systems by label over all devices, so the header has none.
    let mut arguments: Vec<String> = [
        "luksFormat",
        "--batch-mode",
        "--type=luks2",
        "--cipher=aes-xts-plain64",
        "--key-size=512",
        "--hash=sha256",
        // 16 MiB, in units of 512 bytes.
        "--offset=32768",
        "--key-file=-",
    ]
    .map(str::to_owned)
    .into();
    // Not cryptsetup's choice: on a disk of 512-byte sectors that are 4096 on the medium, a file system with smaller blocks would not
    // mount any more. Images have had such a state partition until August 2026 (meta-balena f7006438a).
    arguments.push(format!("--sector-size={sector}"));
    if passphrase.is_strong() {
        arguments.extend(["--pbkdf=pbkdf2", "--pbkdf-force-iterations=1000"].map(str::to_owned));
    }
    let input = passphrase.input().map_err(|e| failed("format", partition).because(e))?;
    let command = Command::new(CRYPTSETUP).args(arguments).arg(partition).with_file(input);
    run(command, CRYPTSETUP).map_err(|e| failed("format", partition).because(e))
}

pub(crate) fn open(partition: &Path, name: &str, passphrase: &Passphrase) -> Result<()> {
    let error = |e: io::Error| failed("open", partition).because(e);
    let command = Command::new(CRYPTSETUP)
        .args(["open", "--type=luks", "--key-file=-"])
        .arg(partition)
        .arg(name)
        .with_file(passphrase.input().map_err(error)?);
    run(command, CRYPTSETUP).map_err(error)
}

/// Whether there is a cryptsetup.
pub(crate) fn can_be_tried() -> bool {
    let version = Command::new(CRYPTSETUP).args(["--version"]).limit(Some(LIMIT)).run(|_| ());
    !matches!(version, Err(e) if e.kind() == io::ErrorKind::NotFound)
}

/// Whether the passphrase opens the partition, without opening it.
pub(crate) fn test(partition: &Path, passphrase: &Passphrase) -> Result<()> {
    test_by(partition, passphrase, None)
}

/// Whether this key slot takes the passphrase.
pub(crate) fn test_slot(partition: &Path, slot: u8, passphrase: &Passphrase) -> Result<()> {
    test_by(partition, passphrase, Some(slot))
}

fn test_by(partition: &Path, passphrase: &Passphrase, slot: Option<u8>) -> Result<()> {
    let error = |e: io::Error| failed("open", partition).because(e);
    let command = Command::new(CRYPTSETUP)
        .args(["open", "--test-passphrase", "--type=luks", "--key-file=-"])
        .args(slot.map(|slot| format!("--key-slot={slot}")))
        .arg(partition)
        .with_file(passphrase.input().map_err(error)?);
    run(command, CRYPTSETUP).map_err(error)
}

/// Puts a passphrase, which has to be strong, into a key slot that is free. `known` opens the partition.
pub(crate) fn add_key(partition: &Path, slot: u8, known: &Passphrase, new: &Passphrase) -> Result<()> {
    let error = |e: io::Error| failed("add a key to", partition).because(e);
    let input = new.input().map_err(error)?;
    let new = format!("/proc/self/fd/{}", input.as_raw_fd());
    let command = Command::new(CRYPTSETUP)
        .args([
            "luksAddKey",
            "--batch-mode",
            "--key-file=-",
            "--pbkdf=pbkdf2",
            "--pbkdf-force-iterations=1000",
        ])
        .arg(format!("--key-slot={slot}"))
        .arg(partition)
        .arg(new)
        .with_file(known.input().map_err(error)?)
        .with_another_file(input);
    run(command, CRYPTSETUP).map_err(error)
}

/// Empties a key slot. `known` has to be in another one.
pub(crate) fn remove_key(partition: &Path, slot: u8, known: &Passphrase) -> Result<()> {
    let error = |e: io::Error| failed("remove a key from", partition).because(e);
    let command = Command::new(CRYPTSETUP)
        .args(["luksKillSlot", "--batch-mode", "--key-file=-"])
        .arg(partition)
        .arg(slot.to_string())
        .with_file(known.input().map_err(error)?);
    run(command, CRYPTSETUP).map_err(error)
}

/// The key slots that are in use.
pub(crate) fn slots(partition: &Path) -> Result<Vec<u8>> {
    Ok(slots_of(&dump(partition)?))
}

/// How the data is encrypted, and the key slots that are in use.
pub(crate) fn cipher_and_slots(partition: &Path) -> Result<(String, Vec<u8>)> {
    let dump = dump(partition)?;
    Ok((cipher_of(&dump).unwrap_or_else(|| "an unknown cipher".to_owned()), slots_of(&dump)))
}

/// Of the data segment of LUKS2, or of LUKS1.
fn cipher_of(dump: &str) -> Option<String> {
    let value = |key: &str| {
        dump.lines().find_map(|line| Some(line.trim_start().strip_prefix(key)?.trim().to_owned()))
    };
    value("cipher: ").or_else(|| Some(format!("{}-{}", value("Cipher name:")?, value("Cipher mode:")?)))
}

/// Whether the data or a key is encrypted by a cipher that changes nothing.
pub(crate) fn has_null_cipher(partition: &Path) -> Result<bool> {
    Ok(dump(partition)?.contains("cipher_null"))
}

fn dump(partition: &Path) -> Result<String> {
    let error = |e: io::Error| failed("read the header of", partition).because(e);
    let mut text = String::new();
    let end =
        Command::new(CRYPTSETUP).arg("luksDump").arg(partition).limit(Some(LIMIT)).apart().run(|said| {
            if let Said::Line(Stream::Out, line) = said {
                text.push_str(line);
                text.push('\n');
            }
        });
    match end.map_err(error)? {
        end if end.is_success() => Ok(text),
        end => Err(error(io::Error::other(end.to_string()))),
    }
}

/// As cryptsetup shows them: in a section of LUKS2, in lines of LUKS1. Devices that were installed before meta-balena 2.115.10 have the latter,
/// until the scripts of a later initramfs convert it.
fn slots_of(dump: &str) -> Vec<u8> {
    let section = dump.lines().skip_while(|line| *line != "Keyslots:").skip(1);
    let entries = section.take_while(|line| line.starts_with(char::is_whitespace));
    let of_luks2 = entries.filter_map(|line| line.trim_start().split_once(": ")?.0.parse().ok());
    let of_luks1 = dump
        .lines()
        .filter_map(|line| line.strip_prefix("Key Slot ")?.strip_suffix(": ENABLED")?.parse().ok());
    of_luks2.chain(of_luks1).collect()
}

/// Waits for the node of a mapping, and fails unless it encrypts `partition` and nothing else. Returns the node.
pub(crate) fn check(paths: &Paths, partition: &Path, name: &str) -> Result<PathBuf> {
    let wrong = |what: &str| {
        let (partition, shown) = (partition.display(), name);
        let message = format!("{shown} is not the encrypted {partition}: {what}");
        Error::new(Code::EncryptionFailed, message).object(shown).after_write()
    };
    let io_error = |e: io::Error| wrong("it cannot be looked at").because(e);
    let mapping = find(paths, name).map_err(io_error)?.ok_or_else(|| wrong("there is no such mapping"))?;
    if mapping.kinds.is_empty() || mapping.kinds.iter().any(|kind| kind != CRYPT) {
        return Err(wrong(&format!("it is of the kind {}", mapping.kinds.join(", "))));
    }
    let below = major_minor(std::fs::metadata(partition).map_err(io_error)?.rdev());
    if mapping.lower.iter().any(|lower| *lower != below) || mapping.lower.is_empty() {
        return Err(wrong("it is on another device"));
    }
    let node = node(paths, name);
    let end = Instant::now() + UDEV_TIMEOUT;
    loop {
        match std::fs::metadata(&node) {
            Ok(meta) if major_minor(meta.rdev()) == mapping.dev => return Ok(node),
            Ok(_) => return Err(wrong(&format!("{} leads elsewhere", node.display()))),
            Err(e) if e.kind() == io::ErrorKind::NotFound && Instant::now() < end => {
                std::thread::sleep(POLL_INTERVAL);
            }
            Err(e) => return Err(io_error(e)),
        }
    }
}

/// An empty ext4 file system. A block of 4096 bytes mounts on sectors of any size.
pub(crate) fn make_ext4(node: &Path, label: &str) -> Result<()> {
    let command = Command::new(MKFS).args(["-q", "-F", "-b", "4096", "-L", label]).arg(node);
    run(command, MKFS).map_err(|e| failed("make the file system of", node).because(e))?;
    file::flush_node(node).map_err(|e| failed("flush", node).because(e))
}

/// The mapping of that name, whether it has a node or not.
pub(crate) fn find(paths: &Paths, name: &str) -> io::Result<Option<Mapping>> {
    DeviceMapper::open(&paths.at(CONTROL)).and_then(|mapper| mapper.mapping(name))
}

/// Flushes and closes the mapping, if there is one. One that cannot be flushed is closed all the same.
pub(crate) fn close(paths: &Paths, name: &str) -> Result<()> {
    let node = node(paths, name);
    if find(paths, name).map_err(|e| failed("look at", &node).because(e))?.is_none() {
        return Ok(());
    }
    let flushed = file::flush_node(&node).map_err(|e| failed("flush", &node).because(e));
    let end = Instant::now() + UDEV_TIMEOUT;
    loop {
        match run(Command::new(CRYPTSETUP).args(["close", name]), CRYPTSETUP) {
            Ok(()) => return flushed,
            Err(_) if Instant::now() < end => std::thread::sleep(POLL_INTERVAL),
            Err(e) => return Err(failed("close", &node).because(e)),
        }
    }
}

fn failed(what: &str, device: &Path) -> Error {
    let device = device.display();
    Error::new(Code::EncryptionFailed, format!("cannot {what} {device}")).object(device).after_write()
}

fn run(command: Command, name: &str) -> io::Result<()> {
    let speaker = Speaker { name, full: name, hook: None, levels: false };
    let ended = command.limit(Some(LIMIT)).run_logged(speaker, |_| ())?;
    if ended.end.is_success() { Ok(()) } else { Err(ended.because()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_read() {
        let dump = "LUKS header information\nVersion:       \t2\n\nData segments:\n  0: crypt\n\toffset: 16777216 [bytes]\n\n\
                    Keyslots:\n  0: luks2\n\tKey:        512 bits\n  12: luks2 (unbound)\nTokens:\n  5: x\nDigests:\n  0: pbkdf2\n";
        assert_eq!(slots_of(dump), [0, 12]);
        assert_eq!(cipher_of(dump), None);
        assert_eq!(
            cipher_of("Data segments:\n  0: crypt\n\tcipher: aes-xts-plain64\n"),
            Some("aes-xts-plain64".to_owned())
        );
        assert_eq!(slots_of("Keyslots:\nTokens:\n  0: x\n"), [0; 0]);
        let dump = "LUKS header information for x\n\nVersion:       \t1\nCipher name:   \taes\nCipher mode:   \txts-plain64\n\nKey Slot 0: ENABLED\n\tIterations:         \t1000\n\
                    Key Slot 1: DISABLED\nKey Slot 7: ENABLED\n";
        assert_eq!(slots_of(dump), [0, 7]);
        assert_eq!(cipher_of(dump), Some("aes-xts-plain64".to_owned()));
    }
}
