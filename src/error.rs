//! Errors with stable codes.
//!
//! Every failure a user can see is an [`Error`]: one sentence that says what could not be done and to which object, the
//! cause, and what to do about it. The code is part of the interface: scripts branch on it, `docs/errors.md` lists it,
//! and a test keeps the two equal.

use std::fmt;

/// Result of anything that can fail towards the user.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What had happened to the target by the time of the failure. Decides the exit code of `copal …` verbs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// Refused: nothing was written (exit code 3).
    Refused,
    /// Writing had begun; the target holds no partition table, or the message says that one may be left (exit code 4).
    Written,
    /// The job itself succeeded; what failed came after it (exit code 1).
    Completed,
}

impl Effect {
    const ALL: [Effect; 3] = [Effect::Refused, Effect::Written, Effect::Completed];

    /// The word for programs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Effect::Refused => "refused",
            Effect::Written => "written",
            Effect::Completed => "completed",
        }
    }

    /// The effect that is called so.
    #[must_use]
    pub fn named(word: &str) -> Option<Effect> {
        Effect::ALL.into_iter().find(|e| e.as_str() == word)
    }
}

macro_rules! codes {
    ($($variant:ident = $code:literal, $remedy:literal;)*) => {
        /// Stable error codes, in kebab-case where they are printed.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Code {
            $(#[doc = concat!("`", $code, "`: ", $remedy)] $variant,)*
        }

        impl Code {
            /// Every code, in the order of `docs/errors.md`.
            pub const ALL: &[Code] = &[$(Code::$variant,)*];

            /// The code as printed.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Code::$variant => $code,)* }
            }

            /// The code that is printed so.
            #[must_use]
            pub fn named(word: &str) -> Option<Code> {
                Code::ALL.iter().copied().find(|c| c.as_str() == word)
            }

            /// What the owner of the device can do, unless the error at hand knows better.
            #[must_use]
            pub const fn remedy(self) -> &'static str {
                match self { $(Code::$variant => $remedy,)* }
            }
        }
    };
}

codes! {
    Usage = "usage", "run `copal help`";
    NotInThisBuild = "not-in-this-build", "use a newer release of copal, or the script this name replaces";
    NotRoot = "not-root", "run as root, or as a user who may open what is named here";
    Busy = "busy", "wait for the other program that holds the device, or stop it";
    Io = "io", "look at the kernel log for the device named here";
    OutputFailed = "output-failed", "make room where the output goes, or send it elsewhere";
    ConfMissing = "conf-missing", "name the file with --conf, or install it where the board's recipe puts it";
    ConfSyntax = "conf-syntax", "write the line as KEY=value, with the value quoted where it has blanks";
    ConfExpansion = "conf-expansion", "write the literal value: nothing is expanded or executed";
    ConfInvalid = "conf-invalid", "correct the named key in the board's recipe";
    ConfigJsonMissing = "config-json-missing", "put config.json on the medium's boot partition, or set CONFIG_PATH";
    ConfigJsonInvalid = "config-json-invalid", "download config.json again for this device";
    NoTargetPattern = "no-target-pattern", "set INTERNAL_DEVICE_KERNEL in the conf, or name the disk with --target";
    TargetPattern = "target-pattern", "correct the pattern; braces and the wildcards * ? [] are understood";
    NoTarget = "no-target", "attach the internal disk, or correct INTERNAL_DEVICE_KERNEL";
    TargetMissing = "target-missing", "name an existing block device or a plain file below an existing folder";
    TargetNotDisk = "target-not-disk", "name the whole disk, not a partition of it or anything else";
    TargetNoMedium = "target-no-medium", "insert a medium";
    TargetIsMedium = "target-is-medium", "name another disk: this one holds the running system";
    TargetIsImage = "target-is-image", "name another target: this one is the image itself";
    TargetTooSmall = "target-too-small", "use a larger disk or a smaller image";
    TargetReadOnly = "target-read-only", "lift the write protection";
    TargetMounted = "target-mounted", "unmount it first";
    TargetSwap = "target-swap", "run `swapoff` on it first";
    TargetHeld = "target-held", "deactivate what is stacked on it (LVM, device-mapper, RAID) first";
    TargetRaidMember = "target-raid-member", "name the array (md/…), or wipe the member with `mdadm --zero-superblock`";
    TargetChanged = "target-changed", "look at cabling and power: the disk that was checked is not the one that was opened";
    TargetVanished = "target-vanished", "look at cabling, power and the kernel log";
    FlashDeviceMissing = "flash-device-missing", "name a device that `copal bootloader show` lists, or a disk";
    FlashDeviceUnsupported = "flash-device-unsupported", "let the board's own program write it";
    FlashDeviceBad = "flash-device-bad", "put the bootloader elsewhere, or replace the chip";
    LoaderTooLarge = "loader-too-large", "name the bootloader alone, not an image of a disk";
    SpanOutsideDevice = "span-outside-device", "correct block size and blocks to skip, or use a smaller bootloader";
    SpanOverTable = "span-over-table", "correct block size and blocks to skip";
    SpanOverFileSystem = "span-over-file-system", "correct block size and blocks to skip, or the layout of the disk";
    LeftWritable = "left-writable", "run `copal bootloader protect`";
    MediumBootElsewhere = "medium-boot-elsewhere", "mount the medium's own boot partition at /mnt/boot, or name config.json by CONFIG_PATH";
    ImageMissing = "image-missing", "correct BALENA_IMAGE, or name the file with --image";
    ImageAmbiguous = "image-ambiguous", "remove all but one, or name the file with --image";
    ImageNotRegular = "image-not-regular", "name a regular file";
    ImageEmpty = "image-empty", "fetch the image again";
    ImageDamaged = "image-damaged", "fetch the image again: it is truncated, damaged, or has bytes after its end";
    ImageChanged = "image-changed", "do not change the image while it is being flashed, and check the medium it is read from";
    WindowTooLarge = "window-too-large", "compress again with a window of 64 MiB or less (zstd --long=26, xz -9)";
    UnsupportedCompression = "unsupported-compression", "use gzip, xz, zstd, or no compression";
    BmapInvalid = "bmap-invalid", "make the .bmap again with bmaptool, or remove it";
    BmapMismatch = "bmap-mismatch", "fetch image and .bmap again: they do not belong together";
    ChecksumFileInvalid = "checksum-file-invalid", "make the .sha256 again with sha256sum, or remove it";
    ImageDigestMismatch = "image-digest-mismatch", "fetch the image again";
    NoPartitionTable = "no-partition-table", "use a whole-disk image; --force-raw writes anything";
    PartitionTableInvalid = "partition-table-invalid", "make the image again; --force-raw writes anything";
    NoBootPartition = "no-boot-partition", "use a balenaOS image; --force-raw writes anything";
    SectorSizeMismatch = "sector-size-mismatch", "use an image made for this disk's logical block size";
    TargetReadFailed = "target-read-failed", "look at the kernel log; the disk may be failing";
    TargetWriteFailed = "target-write-failed", "look at the kernel log; the disk may be failing";
    TargetFlushFailed = "target-flush-failed", "look at the kernel log; the disk may be failing";
    VerifyMismatch = "verify-mismatch", "replace the disk: it does not keep what is written to it";
    TargetDiffers = "target-differs", "flash the image to this target";
    BoardProgramFailed = "board-program-failed", "look at the program's lines in the log, and mend it in the board's recipe";
    PluginFailed = "plugin-failed", "look at the plug-in's lines in the log, and mend it in the board's recipe";
    EncryptionNotInThisBuild = "encryption-not-in-this-build", "use the script that this program replaces for encrypted installations";
    EndingFailed = "ending-failed", "switch the device off and on by hand: it is installed";
    BootPartitionNotFound = "boot-partition-not-found", "look at the kernel log for the disk named here, and at the image's partitions";
    Interrupted = "interrupted", "run the installation again: the disk was made unbootable";
    BootMountFailed = "boot-mount-failed", "look at the kernel log, and at what is mounted at /tmp/internal_boot";
    BootUnmountFailed = "boot-unmount-failed", "end the programs named here, which still use the internal boot partition";
    BootPartitionFull = "boot-partition-full", "remove large files from the medium's boot partition, or use an image with a larger one";
    BootPathEscapes = "boot-path-escapes", "correct the path or the link named here: nothing may lead out of a boot partition";
    BootNameInvalid = "boot-name-invalid", "rename the file on the medium's boot partition";
    BootCopyFailed = "boot-copy-failed", "look at the kernel log for the devices named here";
    SlotUnknown = "slot-unknown", "run `copal doctor`, and look at what is mounted at /mnt/sysroot/active and /mnt/sysroot/inactive";
    SlotSame = "slot-same", "restart the device: the other root partition is not mounted where it should be";
    BootStateInvalid = "boot-state-invalid", "run `copal doctor`; the file named here says which root boots";
    BootStateUnwritable = "boot-state-unwritable", "look at the kernel log for the boot partition: nothing else may be changed until this file can be";
    StateUnwritable = "state-unwritable", "make room on the state partition, and look at the kernel log for it";
    StateInvalid = "state-invalid", "remove the file named here once no update runs and the device is known to be well";
    DataUnwritable = "data-unwritable", "make room on the data partition, and look at the kernel log for it";
    HookFailed = "hook-failed", "look at the hook's lines in the log, and mend it in the release it is part of";
    SecureLoaderMissing = "secure-loader-missing", "build the release with signed boot files: an encrypted device starts no others";
    BootFilesInvalid = "boot-files-invalid", "use a release whose folder /resin-boot is complete";
    EngineUnreachable = "engine-unreachable", "start balena-host.service, and look at its log";
    EngineFailed = "engine-failed", "look at the log of balena-host.service";
    ImageArchiveInvalid = "image-archive-invalid", "fetch the archive again: it is no image as `docker save` writes it";
    ImageUnknown = "image-unknown", "correct the image reference, or the tag in it";
    RegistryRefused = "registry-refused", "log in to the registry, or correct the credentials in config.json of the engine's client";
    RegistryUnreachable = "registry-unreachable", "look at the network, and run the update again: what was fetched is kept";
    SlotFull = "slot-full", "use a smaller image: the other root partition has no room for it";
    UpdateRefused = "update-refused", "wait for the verdict on the running system, or run `copal update --force`";
    RollbackRefused = "rollback-refused", "see `copal status`: what was asked for fits another phase";
    HealthCheckFailed = "health-check-failed", "look at the log of the check named here, and mend what it found in the release";
    StopRefused = "stop-refused", "reboot, and let the rollback come to its end; `--force` stops it all the same";
    PreviousTooOld = "previous-too-old", "nothing is to be done: an update from such a system is kept without health checks";
    ProblemsFound = "problems-found", "see the lines above, each with its remedy";
    UpdateFailed = "update-failed", "run the update again: the running system is selected as before";
    NotAFlasher = "not-a-flasher", "boot the device from a flasher medium, or run `copal flash` by hand";
    BusUnreachable = "bus-unreachable", "start dbus.service, and look at its log";
    JobLost = "job-lost", "look at the log of copal.service, then at `copal status`, and run it again";
    DaemonLost = "daemon-lost", "run `copal status`, and look at the log of copal.service: the update may still be running";
    RebootFailed = "reboot-failed", "restart the device by hand: the message says what each way to do so came to";
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One failure, ready to be shown once.
#[derive(Debug)]
pub struct Error {
    code: Code,
    message: String,
    object: Option<String>,
    hint: Option<String>,
    note: Option<String>,
    effect: Effect,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// A failure with nothing written yet. `message` says what could not be done, to which object.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Error {
            code,
            message: message.into(),
            object: None,
            hint: None,
            note: None,
            effect: Effect::Refused,
            source: None,
        }
    }

    /// The object (path, device, key) the failure is about, for machines.
    #[must_use]
    pub fn object(mut self, object: impl fmt::Display) -> Self {
        self.object = Some(object.to_string());
        self
    }

    /// What to do, where the remedy of the code is not exact enough.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The cause, shown after the message.
    #[must_use]
    pub fn because(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Adds to the message what else must be known.
    #[must_use]
    pub fn and_also(mut self, text: &str) -> Self {
        self.note = Some(text.to_owned());
        self
    }

    /// Marks that writing to the target had begun.
    #[must_use]
    pub fn after_write(mut self) -> Self {
        self.effect = Effect::Written;
        self
    }

    /// Marks that the job itself had succeeded.
    #[must_use]
    pub fn after_success(mut self) -> Self {
        self.effect = Effect::Completed;
        self
    }

    /// Sets whether anything had been written.
    #[must_use]
    pub fn with_effect(mut self, effect: Effect) -> Self {
        self.effect = effect;
        self
    }

    /// The stable code.
    #[must_use]
    pub fn code(&self) -> Code {
        self.code
    }

    /// Whether anything had been written.
    #[must_use]
    pub fn effect(&self) -> Effect {
        self.effect
    }

    /// The object this is about, where there is one.
    #[must_use]
    pub fn subject(&self) -> Option<&str> {
        self.object.as_deref()
    }

    /// What the owner can do.
    #[must_use]
    pub fn hint(&self) -> &str {
        self.hint.as_deref().unwrap_or(self.code.remedy())
    }

    /// The message with its chain of causes, on one line, without code and remedy.
    #[must_use]
    pub fn message(&self) -> String {
        let mut text = self.message.clone();
        let mut cause = std::error::Error::source(self);
        while let Some(c) = cause {
            text.push_str(": ");
            text.push_str(&c.to_string());
            cause = c.source();
        }
        if let Some(note) = &self.note {
            text.push_str("; ");
            text.push_str(note);
        }
        text.replace(['\n', '\r'], " ")
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} [{}]; {}", self.message(), self.code, self.hint())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|s| s as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_with_object_cause_code_and_remedy() {
        let e = Error::new(Code::TargetMounted, "cannot flash /dev/sda")
            .object("/dev/sda")
            .because(std::io::Error::other("mounted\nat /mnt"));
        assert_eq!(
            e.to_string(),
            "cannot flash /dev/sda: mounted at /mnt [target-mounted]; unmount it first"
        );
        assert_eq!(e.effect(), Effect::Refused);
        assert_eq!(e.after_write().effect(), Effect::Written);
    }

    #[test]
    fn codes_are_unique_kebab_case() {
        let mut seen = std::collections::HashSet::new();
        for &code in Code::ALL {
            assert!(seen.insert(code.as_str()), "{code} twice");
            assert!(code.as_str().bytes().all(|b| b.is_ascii_lowercase() || b == b'-'), "{code}");
            assert!(!code.remedy().is_empty());
            assert_eq!(Code::named(code.as_str()), Some(code));
        }
        assert_eq!(Code::named("no-such-code"), None);
        for effect in Effect::ALL {
            assert_eq!(Effect::named(effect.as_str()), Some(effect));
        }
        assert_eq!(Effect::named(""), None);
    }
}
