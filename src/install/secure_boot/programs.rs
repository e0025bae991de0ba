//! What the installed system starts with under secure boot: the loader, which is in the image, and the stage-2 kernel, which is on the medium.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::split;
use crate::config::flasher_conf::FlasherConf;
use crate::config::paths::Paths;
use crate::disk::partition::{ReadAt, file_in_fat, files_in_fat, room_in_fat};
use crate::error::{Code, Error, Result};
use crate::signature::openpgp;

/// Of the programs that the firmware checks, beside those that it would start without secure boot.
pub(super) const SECURE_SUFFIX: &str = ".secureboot";

const LOADER: &str = "EFI/BOOT/bootx64.efi";

/// Clusters of the policies, of their folder and of the recovery passphrase, generously.
const POLICIES_BYTES: usize = 256 << 10;

/// The key that GRUB checks its files with (OpenPGP).
const LOADER_KEYS: &str = "balena-keys/grub.gpg";

const SIGNATURE_SUFFIX: &str = ".sig";

/// Far above any; they are held in memory.
const MAX_PROGRAM_BYTES: u64 = 128 << 20;

#[derive(Debug)]
pub(super) struct Programs {
    /// The folder of the loader, below the boot partition.
    pub(super) folder: PathBuf,
    /// Its programs: each has a variant for secure boot.
    pub(super) names: Vec<OsString>,
    pub(super) loader: Vec<u8>,
    pub(super) kernel_name: String,
    pub(super) kernel: Vec<u8>,
    pub(super) kernel_signature: Vec<u8>,
}

impl Programs {
    /// `boot` reads the image's boot partition.
    pub(super) fn gather(
        paths: &Paths,
        conf: &FlasherConf,
        image: &Path,
        boot: &mut ReadAt<'_>,
    ) -> Result<Programs> {
        let name = conf
            .kernel_image
            .clone()
            .ok_or_else(|| invalid("KERNEL_IMAGETYPE", "the configuration does not set it"))?;
        let config = conf.bootloader_config_luks.as_ref();
        let config = config.ok_or_else(|| {
            invalid("INTERNAL_DEVICE_BOOTLOADER_CONFIG_LUKS", "the configuration does not set it")
        })?;
        if conf.bootloader_config_path.is_none() {
            return Err(invalid(
                "INTERNAL_DEVICE_BOOTLOADER_CONFIG_PATH",
                "the configuration does not set it",
            ));
        }
        for file in [config.clone(), with_suffix(config, SIGNATURE_SUFFIX)] {
            let path = paths.boot().join(file);
            if !path.is_file() {
                return Err(invalid(path.display(), "it is not on the medium"));
            }
        }
        let (folder, loader_name) = LOADER.rsplit_once('/').unwrap_or_default();
        let unreadable = |e: io::Error| {
            let image = image.display();
            Error::new(Code::Io, format!("cannot read the boot partition in image {image}"))
                .object(image)
                .because(e)
        };
        let all = files_in_fat(boot, folder).map_err(unreadable)?.unwrap_or_default();
        let names = programs_of(&all, loader_name).map_err(|name| {
            invalid(format!("{folder}/{name}{SECURE_SUFFIX}"), "it is not in the image's boot partition")
        })?;
        let secure = format!("{LOADER}{SECURE_SUFFIX}");
        let loader = file_in_fat(boot, &secure, MAX_PROGRAM_BYTES).map_err(unreadable)?;
        let loader = loader.ok_or_else(|| invalid(secure, "it is not in the image's boot partition"))?;
        let (kernel, signature) =
            (find_one(paths, &name)?, find_one(paths, &format!("{name}{SIGNATURE_SUFFIX}"))?);
        let (kernel_path, (kernel, kernel_signature)) = (kernel.clone(), (read(&kernel)?, read(&signature)?));
        let config = paths.boot().join(config);
        let config_signature = read(&with_suffix(&config, SIGNATURE_SUFFIX))?;
        refuse_forged(
            paths,
            &[(&config, &read(&config)?, &config_signature), (&kernel_path, &kernel, &kernel_signature)],
        )?;
        // The policies, and a second copy of the loader while it is renamed.
        let extra = loader.len() + POLICIES_BYTES;
        let added = [kernel.len(), kernel_signature.len(), extra].map(|n| n as u64).iter().sum();
        refuse_full(image, boot, added).map_err(unreadable)??;
        Ok(Programs { folder: folder.into(), names, loader, kernel, kernel_signature, kernel_name: name })
    }
}

/// What the loader's key has not signed, the loader does not start. It has that key in itself; the medium has it in a file.
fn refuse_forged(paths: &Paths, files: &[(&Path, &[u8], &[u8])]) -> Result<()> {
    let path = paths.boot().join(LOADER_KEYS);
    if !path.is_file() {
        tracing::warn!(
            "{LOADER_KEYS} is not on the medium: the signatures of the loader's configuration and kernel are not checked"
        );
        return Ok(());
    }
    let keys = openpgp::keys(&read(&path)?).map_err(|why| invalid(LOADER_KEYS, why))?;
    for (file, content, signature) in files {
        match openpgp::is_signed(&keys, content, signature) {
            Ok(true) => {}
            Ok(false) => {
                return Err(invalid(
                    file.display(),
                    "its signature is not by the key in balena-keys/grub.gpg",
                ));
            }
            Err(why) => return Err(invalid(with_suffix(file, SIGNATURE_SUFFIX).display(), why)),
        }
    }
    Ok(())
}

/// Beside `EFI`, which stays, `added` bytes have to fit: all else of the boot partition goes to the encrypted one.
fn refuse_full(image: &Path, boot: &mut ReadAt<'_>, added: u64) -> io::Result<Result<()>> {
    let Some((size, used)) = room_in_fat(boot, split::EFI)? else { return Ok(Ok(())) };
    if used + added <= size {
        return Ok(Ok(()));
    }
    let image = image.display();
    let message = format!(
        "the boot partition of image {image} has {size} bytes: its EFI folder needs {used}, the stage-2 kernel with all that belongs to it {added}"
    );
    Ok(Err(Error::new(Code::BootPartitionFull, message).object(image)))
}

/// The programs among the files of a folder, and the loader in any case; the name of one without its variant.
fn programs_of<'a>(files: &'a [String], loader: &str) -> std::result::Result<Vec<OsString>, &'a str> {
    let is_program =
        |name: &&String| name.to_ascii_lowercase().ends_with(".efi") && !name.eq_ignore_ascii_case(loader);
    let programs: Vec<&String> = files.iter().filter(is_program).collect();
    let has_variant =
        |name: &str| files.iter().any(|other| other.eq_ignore_ascii_case(&format!("{name}{SECURE_SUFFIX}")));
    match programs.iter().find(|name| !has_variant(name)) {
        Some(name) => Err(name),
        None => Ok([loader]
            .into_iter()
            .chain(programs.into_iter().map(String::as_str))
            .map(OsString::from)
            .collect()),
    }
}

/// The only file of that name on the medium: on its root file system, or among the files of an initramfs in `/tmp`.
fn find_one(paths: &Paths, name: &str) -> Result<PathBuf> {
    let mut found = BTreeSet::new();
    for top in ["/", "/tmp"].map(|top| paths.at(top)) {
        if let Ok(meta) = std::fs::metadata(&top) {
            walk(&top, meta.dev(), OsStr::new(name), &mut found);
        }
    }
    let mut found = found.into_iter();
    match (found.next(), found.next()) {
        (Some(path), None) => Ok(path),
        (Some(one), Some(other)) => {
            let message =
                format!("the medium has {name} more than once: {} and {}", one.display(), other.display());
            Err(Error::new(Code::SecureBootFilesInvalid, message).object(name))
        }
        (None, _) => Err(invalid(name, "it is not on the medium")),
    }
}

/// The files of that name on the file system `dev`.
fn walk(folder: &Path, dev: u64, name: &OsStr, found: &mut BTreeSet<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        match std::fs::symlink_metadata(&path) {
            Ok(meta) if meta.is_dir() && meta.dev() == dev => walk(&path, dev, name, found),
            Ok(meta) if meta.is_file() && entry.file_name() == name => {
                found.insert(path);
            }
            _ => {}
        }
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let unreadable = |e: io::Error| invalid(path.display(), "it cannot be read").because(e);
    if std::fs::metadata(path).map_err(unreadable)?.len() > MAX_PROGRAM_BYTES {
        return Err(invalid(path.display(), "it has more than 128 MiB"));
    }
    std::fs::read(path).map_err(unreadable)
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

pub(super) fn invalid(what: impl std::fmt::Display, why: &str) -> Error {
    let message = format!("cannot install with secure boot: {what}: {why}");
    Error::new(Code::SecureBootFilesInvalid, message).object(what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_program_needs_its_variant() {
        let names = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        let all = names(&[
            "grub.cfg",
            "bootx64.efi",
            "BOOTX64.EFI.SECUREBOOT",
            "mmx64.efi",
            "mmx64.efi.secureboot",
            "grubenv",
        ]);
        let both = Ok(vec!["bootx64.efi".into(), "mmx64.efi".into()]);
        assert_eq!(programs_of(&all, "bootx64.efi"), both);
        assert_eq!(programs_of(&all[..4], "bootx64.efi"), Err("mmx64.efi"));
        assert_eq!(programs_of(&names(&["BOOTX64.EFI"]), "bootx64.efi"), Ok(vec!["bootx64.efi".into()]));
        assert_eq!(programs_of(&[], "bootx64.efi"), Ok(vec!["bootx64.efi".into()]), "the variant alone");
    }

    #[test]
    fn the_kernel_is_on_the_medium_once() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(dir.path());
        let put = |path: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "x").unwrap();
        };
        assert_eq!(find_one(&paths, "bzImage").unwrap_err().code(), Code::SecureBootFilesInvalid);
        put("boot/bzImage-6.1");
        put("boot/bzImage.sig");
        std::os::unix::fs::symlink("bzImage-6.1", dir.path().join("boot/bzImage")).unwrap();
        assert_eq!(find_one(&paths, "bzImage").unwrap_err().code(), Code::SecureBootFilesInvalid);
        put("tmp/bzImage");
        assert_eq!(find_one(&paths, "bzImage").unwrap(), dir.path().join("tmp/bzImage"));
        put("boot/other/bzImage");
        let e = find_one(&paths, "bzImage").unwrap_err();
        assert!(e.message().contains("more than once"), "{e}");
        assert_eq!(find_one(&paths, "bzImage.sig").unwrap(), dir.path().join("boot/bzImage.sig"));
    }
}
