//! An encrypted installation: a new partition table, each partition of the image in a mapping of its own, the boot partition split by the
//! board's plug-in.
//!
//! The order is that of `docs/secure-boot.md`. What can be refused is refused before the plug-in's `secureboot_setup`, which may change the
//! device for good. After a failure, or a loss of power, the disk has no partition table.

mod disk;
pub mod layout;
mod needs;

mod planned;

use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::Ready;
use super::plugin::Plugin;
use super::secure_boot::{self, SecureBoot};
use crate::boot_files::install::{BootPartition, Contents, Install};
use crate::config::paths::Paths;
use crate::disk::partition::{NewTable, Table, fat_label, of_bytes, room_in_fat};
use crate::error::{Code, Error, Result};
use crate::flash;
use crate::flash::parts::Part;
use crate::luks::mapping;
use crate::luks::passphrase::Passphrase;
use crate::luks::recovery::{self, Recovery};
use crate::progress::Progress;
use crate::signature::PublicKey;
use crate::sys::block::major_minor;
use crate::sys::{file, mount};
use crate::tpm::store::Secret;
use layout::Layout;

pub use planned::{Method, Planned, Record};

/// For a program that has just used a folder to leave it.
const UNMOUNT_TIMEOUT: Duration = Duration::from_secs(10);

const MOUNT_TABLE: &str = "/proc/self/mountinfo";

/// An encrypted installation that goes on.
pub(super) struct Encrypted {
    planned: Planned,
    table: NewTable,
    passphrase: Option<Passphrase>,
    /// Of copal's own, until it is stored in the index that the initramfs reads.
    secret: Option<Secret>,
    /// A second one for the owner, and what is kept of it: only the owner can read that.
    recovery: Option<Passphrase>,
    kept_recovery: Option<Vec<u8>>,
    /// Whether that index has been changed: before, it is of an older installation.
    index_changed: bool,
    discarded: bool,
    /// Of the partitions, in the order of the layout.
    nodes: Vec<PathBuf>,
    /// Where the plug-in has mounted the non-encrypted boot partition.
    split: Option<PathBuf>,
}

impl Encrypted {
    /// Refuses a plug-in that lacks a function.
    pub(super) fn need_functions(planned: &Planned, plugin: &mut Plugin) -> Result<()> {
        plugin.need("bootpart_split")?;
        if planned.method == Method::DmCrypt { plugin.need("diskenc_dmsetup") } else { Ok(()) }
    }

    /// Lets the plug-in, which has decided for encryption, make the keys. The last refusals; the disk is not touched.
    pub(super) fn decide(planned: Planned, plugin: &mut Plugin, paths: &Paths) -> Result<Encrypted> {
        let label = plugin.encrypt()?;
        let luks = planned.method == Method::Luks2;
        Self::need_functions(&planned, plugin)?;
        let made = plugin.diskenc_setup();
        // Opened before anything is refused, so that it is wiped.
        let passphrase =
            luks.then(|| Passphrase::open(paths, Path::new(&plugin.must_get("PASSPHRASE_FILE")?)));
        made?;
        let chosen = plugin.get("USE_LUKS")?.unwrap_or_default();
        if luks == (chosen == "0") {
            let message = format!(
                "the secure-boot plug-in has set USE_LUKS={chosen}, against the board's configuration"
            );
            return Err(Error::new(Code::PluginIncomplete, message).object("USE_LUKS"));
        }
        let passphrase = passphrase.transpose()?;
        let layout = planned.layout.named(&label);
        Ok(Encrypted {
            table: layout.table()?,
            planned: Planned { layout, ..planned },
            passphrase,
            secret: None,
            recovery: None,
            kept_recovery: None,
            index_changed: false,
            discarded: false,
            nodes: Vec::new(),
            split: None,
        })
    }

    /// For a board without plug-ins: prepares the firmware and the TPM, which are changed from here on.
    pub(super) fn by_copal(
        planned: Planned,
        own: &SecureBoot,
        owner: Option<&PublicKey>,
        paths: &Paths,
    ) -> Result<Encrypted> {
        let table = planned.layout.table()?;
        let (mut recovery, mut kept_recovery) = (None, None);
        if let Some(owner) = owner {
            let new = Recovery::random()?;
            (recovery, kept_recovery) = (Some(new.passphrase()?), Some(new.encrypted_for(owner)?));
        }
        let secret = own.set_up(paths)?;
        let passphrase = Passphrase::of(&secret)?;
        Ok(Encrypted {
            table,
            planned,
            passphrase: Some(passphrase),
            secret: Some(secret),
            recovery,
            kept_recovery,
            index_changed: false,
            discarded: false,
            nodes: Vec::new(),
            split: None,
        })
    }

    fn is_by_copal(&self) -> bool {
        self.planned.secure_boot.is_some()
    }

    pub(super) fn layout(&self) -> &Layout {
        &self.planned.layout
    }

    /// What the disk's table will be.
    pub(super) fn table(&self) -> Table {
        self.layout().as_table()
    }

    pub(super) fn record(&self) -> Record {
        Record {
            method: self.planned.method,
            layout: self.planned.layout.clone(),
            old_content_discarded: self.discarded,
            recovery: self.kept_recovery.as_ref().map(|kept| STANDARD.encode(kept)),
        }
    }

    /// Clears the disk. A refusal means that it is as before.
    pub(super) fn clear(&mut self, ready: &Ready, paths: &Paths) -> Result<()> {
        self.discarded = disk::clear(&ready.prepared, paths)?;
        Ok(())
    }

    /// Makes partitions and mappings on the cleared disk, writes the image's partitions into them and reads them back.
    pub(super) fn write(
        &mut self,
        ready: &Ready,
        plugin: &mut Plugin,
        paths: &Paths,
        progress: &dyn Progress,
    ) -> Result<flash::receipt::Receipt> {
        if let (Some(own), Some(secret)) = (&ready.secure_boot, self.secret.take()) {
            self.index_changed = true;
            own.store(paths, &secret)?;
        }
        let prepared = &ready.prepared;
        let (nodes, held) = disk::add_partitions(self.layout(), &prepared.plan.target, paths)?;
        self.nodes = nodes;
        let parts = self.open_mappings(plugin, paths, held)?;
        let receipt = prepared.run_in_parts(&parts, progress)?;
        let (Some(boot), Some(part)) = (self.nodes.first(), self.planned.layout.partitions.first()) else {
            return Ok(receipt);
        };
        disk::label_boot_partition(boot, &part.name)?;
        mapping::make_ext4(&mapping::node(paths, crate::image::BOOT_LABEL), crate::image::BOOT_LABEL)?;
        super::partitions::settle(paths);
        Ok(receipt)
    }

    /// Returns what goes where. The partitions stay open until their mappings are.
    fn open_mappings(&mut self, plugin: &mut Plugin, paths: &Paths, held: Vec<File>) -> Result<Vec<Part>> {
        let mut parts = Vec::new();
        for (part, node) in self.planned.layout.partitions.iter().zip(&self.nodes) {
            let mut target = node.clone();
            if part.encrypted {
                match &self.passphrase {
                    Some(passphrase) => {
                        mapping::format(node, self.planned.layout.sector, passphrase)?;
                        if let Some(recovery) = &self.recovery {
                            mapping::add_key(node, recovery::SLOT, passphrase, recovery)?;
                        }
                        mapping::open(node, &part.name, passphrase)?;
                    }
                    None => plugin.diskenc_dmsetup(node, &part.name)?,
                }
                target = mapping::check(paths, node, &part.name)?;
            }
            parts.extend(part.image.clone().map(|image| Part { image, node: target }));
        }
        drop(held);
        if !self.is_by_copal() {
            // It is wiped.
            self.passphrase = None;
        }
        parts.sort_by_key(|part| part.image.start);
        Ok(parts)
    }

    /// The encrypted boot partition.
    pub(super) fn boot(paths: &Paths) -> PathBuf {
        mapping::node(paths, crate::image::BOOT_LABEL)
    }

    /// The partition that the firmware reads.
    pub(super) fn non_encrypted(&self) -> Option<&Path> {
        self.nodes.first().map(PathBuf::as_path)
    }

    /// Lets the plug-in distribute the boot files, with the encrypted boot partition mounted. Returns the boot files that come after it.
    pub(super) fn split(
        &mut self,
        ready: &Ready,
        plugin: &mut Plugin,
        boot: &BootPartition,
        paths: &Paths,
    ) -> Result<Contents> {
        if let (Some(own), Some(node)) = (&ready.secure_boot, self.nodes.first()) {
            let (mounted, done) = own.split(paths, node, boot, self.kept_recovery.as_deref());
            self.split = mounted;
            return done.map(|()| self.planned.contents.clone());
        }
        plugin.bootpart_split()?;
        let folder = plugin.must_get("NONENC_BOOT_MOUNT_DIR").map_err(Error::after_write)?;
        self.split = Some(self.mounted_split(Path::new(&folder))?);
        let changed = plugin.get("INTERNAL_DEVICE_BOOTLOADER_CONFIG").map_err(Error::after_write)?;
        let mut conf = ready.conf.clone();
        if !conf.choose_bootloader_config(changed.unwrap_or_default())? {
            return Ok(self.planned.contents.clone());
        }
        Contents::gather(&paths.boot(), &conf, ready.config.path(), Install::Encrypted)
    }

    /// The folder without links, as in the mount table.
    fn mounted_split(&self, folder: &Path) -> Result<PathBuf> {
        let wrong = |what: &str| {
            let folder = folder.display();
            let message =
                format!("the secure-boot plug-in left no non-encrypted boot partition at {folder}: {what}");
            Error::new(Code::PluginIncomplete, message).object("NONENC_BOOT_MOUNT_DIR").after_write()
        };
        let folder = std::fs::canonicalize(folder).map_err(|e| wrong("it cannot be used").because(e))?;
        let node = self.non_encrypted().ok_or_else(|| wrong("it has no partition"))?;
        let dev = std::fs::metadata(node).map_err(|e| wrong("its partition is gone").because(e))?.rdev();
        let mounts =
            mount::read_mounts(Path::new(MOUNT_TABLE)).map_err(|e| wrong("no mount table").because(e))?;
        if mounts.iter().any(|m| m.point == folder && m.dev == major_minor(dev)) {
            Ok(folder)
        } else {
            Err(wrong("the partition is not mounted there"))
        }
    }

    /// Once the boot files are complete.
    pub(super) fn unmount_split(&mut self) -> Result<()> {
        let (Some(folder), Some(node)) = (&self.split, self.nodes.first()) else { return Ok(()) };
        let failed = |e| {
            let folder = folder.display();
            Error::new(Code::BootUnmountFailed, format!("cannot unmount {folder}"))
                .object(node.display())
                .because(e)
                .after_write()
        };
        mount::unmount(folder, UNMOUNT_TIMEOUT).map_err(failed)?;
        file::flush_node(node).map_err(failed)?;
        self.split = None;
        Ok(())
    }

    /// Closes the mappings, and writes the partition table: from then on the device starts from this disk.
    pub(super) fn make_bootable(&mut self, ready: &Ready, paths: &Paths) -> Result<()> {
        for part in self.planned.layout.partitions.iter().filter(|p| p.encrypted) {
            mapping::close(paths, &part.name)?;
        }
        let encrypted =
            self.planned.layout.partitions.iter().zip(&self.nodes).filter(|(part, _)| part.encrypted);
        if let Some(passphrase) = &self.passphrase {
            // As the device will, with what is on the medium by now.
            encrypted.clone().try_for_each(|(_, node)| mapping::test(node, passphrase))?;
        }
        if let Some(recovery) = self.recovery.take() {
            encrypted
                .map(|(_, node)| node)
                .try_for_each(|node| mapping::test_slot(node, recovery::SLOT, &recovery))?;
        }
        let layout = &self.planned.layout;
        disk::write_table(&ready.prepared, &self.table, layout.sector, paths)?;
        if let Some(own) = &ready.secure_boot {
            own.enrol_pk()?;
        }
        self.passphrase = None;
        // The table was read back from the medium: what the kernel makes of it only matters to programs that follow.
        if let Err(e) = super::partitions::find(paths, &ready.prepared.plan.target, Some(&layout.as_table()))
        {
            tracing::warn!("{}", e.message());
        }
        Ok(())
    }

    /// After a failure: leaves nothing mounted, mapped, or secret.
    pub(super) fn let_go(&mut self, paths: &Paths) {
        (self.passphrase, self.recovery) = (None, None);
        self.secret = None;
        if self.index_changed {
            SecureBoot::undo(paths);
        }
        let quiet = |done: Result<()>| {
            if let Err(e) = done {
                tracing::warn!("{}", e.message());
            }
        };
        quiet(self.unmount_split());
        let encrypted = self.planned.layout.partitions.iter().filter(|p| p.encrypted);
        let mappings = encrypted.clone().map(|part| mapping::node(paths, &part.name));
        // A plug-in that failed may have mounted one without saying where.
        let devices: Vec<(u32, u32)> = (self.nodes.iter().cloned().chain(mappings))
            .filter_map(|node| std::fs::metadata(node).ok())
            .map(|meta| major_minor(meta.rdev()))
            .collect();
        let mounts = mount::read_mounts(Path::new(MOUNT_TABLE)).unwrap_or_default();
        for left in mounts.iter().rev().filter(|mount| devices.contains(&mount.dev)) {
            if let Err(e) = mount::unmount(&left.point, UNMOUNT_TIMEOUT) {
                tracing::warn!("cannot unmount {}: {e}", left.point.display());
            }
        }
        encrypted.for_each(|part| quiet(mapping::close(paths, &part.name)));
    }
}

/// What the image's boot partition `boot` needs, beside what [`Planned::new`] has checked: a label that can be changed, and content that fits the
/// encrypted partition.
pub(super) fn check_boot_partition(image: &Path, boot: &[u8], planned: &Planned) -> Result<()> {
    let shown = image.display();
    let unfit = |why: &str| {
        let message = format!("cannot install {shown} encrypted: its boot partition {why}");
        Error::new(Code::ImageLayoutUnfit, message).object(&shown)
    };
    let mut read_at = of_bytes(boot);
    match fat_label(&mut read_at, "x") {
        Ok(Some(_)) => {}
        Ok(None) => return Err(unfit("has no FAT file system with a label in its root folder")),
        Err(e) => return Err(unfit("is damaged").because(e)),
    }
    let mut used = |folder| room_in_fat(&mut read_at, folder).ok().flatten().map_or(0, |(_, used)| used);
    // All but the folder of the loader goes to the encrypted one.
    let needed = used("").saturating_sub(used(secure_boot::EFI)) + planned.contents.bytes();
    let encrypted = planned.layout.partitions.get(1).map_or(0, |part| part.size);
    // The rest is for the encryption's header and the file system's own.
    let free = encrypted.saturating_sub(layout::LUKS_HEADER) / 10 * 8;
    if needed <= free {
        return Ok(());
    }
    let message = format!(
        "the encrypted boot partition of {shown} has {free} bytes for files, and {needed} are needed"
    );
    Err(Error::new(Code::BootPartitionFull, message).object(shown))
}
