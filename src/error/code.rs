//! The table of codes: cause, name, remedy.

use std::fmt;

macro_rules! mark {
    () => {
        false
    };
    (never_after_write) => {
        true
    };
}

macro_rules! codes {
    ($($(#[doc = $cause:literal])+ $variant:ident = $code:literal, $remedy:literal $(, $mark:ident)?;)*) => {
        /// In kebab-case where they are printed.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Code {
            $($(#[doc = $cause])+ $variant,)*
        }

        impl Code {
            pub const ALL: &[Code] = &[$(Code::$variant,)*];

            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Code::$variant => $code,)* }
            }

            #[must_use]
            pub fn named(word: &str) -> Option<Code> {
                Code::ALL.iter().copied().find(|c| c.as_str() == word)
            }

            /// Whether no error with this code comes after a write: a job ends with it before it changes anything.
            #[must_use]
            pub const fn never_after_write(self) -> bool {
                match self { $(Code::$variant => mark!($($mark)?),)* }
            }

            /// For `copal explain` and the documentation.
            #[must_use]
            pub const fn cause(self) -> &'static str {
                match self { $(Code::$variant => concat!($($cause),+),)* }
            }

            /// Used where the error has no hint of its own.
            #[must_use]
            pub const fn remedy(self) -> &'static str {
                match self { $(Code::$variant => $remedy,)* }
            }
        }
    };
}

// `UPDATE_DOCS=1 cargo test --test docs errors` makes `docs/errors.md` of this table.
codes! {
    /// The command line has an unknown argument, lacks a required one, or has a wrong value. Nothing was done.
    Usage = "usage", "run `copal help`", never_after_write;
    /// copal knows the name but does not implement it: its file is a shell file to be sourced. Nothing was done.
    NotInThisBuild = "not-in-this-build", "source the shell file of this name, or use a newer release of copal", never_after_write;
    /// This user may not open the named disk or file. A disk needs root; a plain file as target does not.
    NotRoot = "not-root", "run as root, or as a user who may open the named disk or file";
    /// Another program holds the device or the lock that the job needs.
    Busy = "busy", "wait for the other program that holds the device, or stop it";
    /// The operating system reported an error for a file, folder or device, and no other code fits; the message has its text.
    Io = "io", "look in the kernel log for the device named here";
    /// A value that cannot be missing is missing. The job ended before it was used.
    Internal = "internal", "report this as a defect of copal, with the log";
    /// A result, a receipt or a log could not be written to its destination.
    OutputFailed = "output-failed", "free space where the output goes, or send it elsewhere";
    /// The board's configuration file does not exist, or is not a regular file.
    ConfMissing = "conf-missing", "name the file with --conf, or install it where the board's recipe puts it";
    /// A line of the configuration is not `KEY=value`, or a quotation does not end; the message has line and column.
    ConfSyntax = "conf-syntax", "write the line as KEY=value, with the value quoted where it has blanks";
    /// A value of the configuration has `$VAR`, `$(…)` or backticks; the message has line and column.
    ConfExpansion = "conf-expansion", "write the literal value: nothing is expanded or executed";
    /// A value of the configuration is not what its key needs, or keys that belong together are not all there.
    ConfInvalid = "conf-invalid", "correct the named key in the board's recipe";
    /// config.json does not exist at the expected path.
    ConfigJsonMissing = "config-json-missing", "put config.json on the medium's boot partition, or set CONFIG_PATH";
    /// config.json is not one JSON object, or is far too large; the message has line and column.
    ConfigJsonInvalid = "config-json-invalid", "download config.json again for this device";
    /// Neither the configuration nor config.json nor the command line names the disk to flash.
    NoTargetPattern = "no-target-pattern", "set INTERNAL_DEVICE_KERNEL in the conf, or name the disk with --target";
    /// A pattern for the target is not valid.
    TargetPattern = "target-pattern", "correct the pattern; brace lists {a,b} and the wildcards * ? [] are supported";
    /// No disk that may be flashed matches the patterns; the message lists every disk with the reason against it.
    NoTarget = "no-target", "attach the internal disk, or correct INTERNAL_DEVICE_KERNEL";
    /// The named target does not exist, or is neither a disk nor a plain file.
    TargetMissing = "target-missing", "name an existing block device or a plain file below an existing folder";
    /// The target is a block device but not a whole disk: a partition, a volume, an eMMC boot partition, an optical drive.
    TargetNotDisk = "target-not-disk", "name the whole disk, not a partition of it or anything else";
    /// The target is a reader without a medium: its size is zero.
    TargetNoMedium = "target-no-medium", "insert a medium";
    /// The target is the disk that holds the running system, or a part of it.
    TargetIsMedium = "target-is-medium", "name another disk: this one holds the running system";
    /// The target is the image file itself, under this or another name, or one of the files beside it: its `.bmap`, `.sha256` or `.sig`.
    TargetIsImage = "target-is-image", "name another target: this one is the image itself, or belongs to it";
    /// The uncompressed image is larger than the target.
    TargetTooSmall = "target-too-small", "use a larger disk or a smaller image";
    /// The kernel reports that the target cannot be written.
    TargetReadOnly = "target-read-only", "lift the write protection";
    /// A file system of the target is mounted.
    TargetMounted = "target-mounted", "unmount it first";
    /// The target or a partition of it is in use as swap.
    TargetSwap = "target-swap", "run `swapoff` on it first";
    /// Something is stacked on the target or on one of its partitions: LVM, device-mapper, RAID, a loop device, btrfs. Or copal itself has it open, as its
    /// standard output for example.
    TargetInUse = "target-in-use", "first deactivate what is stacked on it (LVM, device-mapper, RAID)";
    /// The target is a member of an MD array or of a firmware RAID (IMSM, DDF); writing to it would damage the array.
    TargetRaidMember = "target-raid-member", "name the array (md/…), or wipe the member with `mdadm --zero-superblock` (firmware RAID: `wipefs --all`)";
    /// Between the check and the opening, the name came to lead to another device; or a plain file was replaced, renamed or removed
    /// while it was written.
    TargetChanged = "target-changed", "check the cabling and power of a disk, or which other program writes a plain file: the checked target is not the written one";
    /// The target was removed or failed during the job.
    TargetVanished = "target-vanished", "check cabling, power and the kernel log";
    /// The device for a bootloader does not exist, or is neither a disk nor raw flash.
    FlashDeviceMissing = "flash-device-missing", "name a device that `copal bootloader show` lists, or a disk";
    /// The device for a bootloader is of a kind that copal does not write, such as NAND.
    FlashDeviceUnsupported = "flash-device-unsupported", "let the board's own program write it";
    /// An erase block in the bootloader's place is marked bad.
    FlashDeviceBad = "flash-device-bad", "put the bootloader elsewhere, or replace the chip";
    /// The bootloader has more than 64 MiB.
    BootloaderTooLarge = "bootloader-too-large", "name the bootloader alone, not an image of a disk";
    /// The bootloader would not fit the device at this offset.
    SpanOutsideDevice = "span-outside-device", "correct block size and blocks to skip, or use a smaller bootloader";
    /// The bootloader would overwrite the partition table.
    SpanOverTable = "span-over-table", "correct block size and blocks to skip";
    /// The bootloader would overwrite a partition that has a file system or is in use.
    SpanOverFileSystem = "span-over-file-system", "correct block size and blocks to skip, or the layout of the disk";
    /// The bootloader was written and verified, but the eMMC boot partition could not be protected again.
    LeftWritable = "left-writable", "run `copal bootloader protect`";
    /// The configuration is used, and /mnt/boot is mounted from another disk than the running system's: an older flasher on the
    /// internal disk has the same label.
    MediumBootElsewhere = "medium-boot-elsewhere", "mount the medium's own boot partition at /mnt/boot, or name config.json with CONFIG_PATH";
    /// The image, the archive of an update or the bootloader does not exist at the named or expected path.
    ImageMissing = "image-missing", "name a file that exists";
    /// Several files have the image's name; the message lists them.
    ImageAmbiguous = "image-ambiguous", "remove all but one, or name the file with --image";
    /// The image was found below /tmp, and it, its `.bmap`, its `.sha256` or a folder on its path belongs to another user than
    /// root, can be written by others, or has a second name. An image that is named with --image is not checked for this.
    ImageUntrusted = "image-untrusted", "remove it if you do not know it; otherwise chown root, chmod go-w, or name it with --image";
    /// The image is a folder, a pipe or a device; or, below /tmp, a link.
    ImageNotRegular = "image-not-regular", "name a regular file";
    /// The image has no bytes.
    ImageEmpty = "image-empty", "fetch the image again";
    /// The compressed image does not decode to its end, does not match its own checksum, or is followed by other bytes.
    ImageDamaged = "image-damaged", "fetch the image again: it is truncated, damaged, or has bytes after its end";
    /// The size or the modification time of the image changed while it was read, or a second read gave other bytes.
    ImageChanged = "image-changed", "do not change the file while copal reads it, and check the medium that holds it";
    /// The compressed image needs more memory to decode than allowed.
    WindowTooLarge = "window-too-large", "compress again with a smaller window: at most 64 MiB for an image (zstd --long=26, xz -9), 8 MiB for the archive of an update (zstd -19, xz -6)";
    /// The image is compressed in a known but unsupported way.
    UnsupportedCompression = "unsupported-compression", "use gzip, xz, zstd, bzip2, or no compression";
    /// The `.bmap` beside the image is not a block map of version 1 or 2, contradicts itself, or has more than 1 MiB.
    BmapInvalid = "bmap-invalid", "make the .bmap again with bmaptool, or remove it: copal flashes the image without it, too";
    /// The `.bmap` beside the image describes another content: size, a checksum, or a gap that is not zero.
    BmapMismatch = "bmap-mismatch", "fetch image and .bmap again: they do not belong together";
    /// The `.sha256` beside the image has no digest for it.
    ChecksumFileInvalid = "checksum-file-invalid", "make the .sha256 again with sha256sum, or remove it";
    /// The SHA-256 of the image is not the one in `.sha256` or `--sha256`.
    ImageDigestMismatch = "image-digest-mismatch", "fetch the image again";
    /// The image has neither a GPT nor an MBR.
    NoPartitionTable = "no-partition-table", "use a whole-disk image; --force-raw writes anything";
    /// The image's partition table contradicts itself, its checksum, or the image's size.
    PartitionTableInvalid = "partition-table-invalid", "make the image again; --force-raw writes anything";
    /// No partition of the image has a file system labelled `resin-boot`.
    NoBootPartition = "no-boot-partition", "use a balenaOS image; --force-raw writes anything";
    /// The image's partition table counts in sectors of another size than the target's.
    SectorSizeMismatch = "sector-size-mismatch", "use an image made for this disk's logical block size";
    /// The target could not be read at the offset in the message.
    TargetReadFailed = "target-read-failed", "look in the kernel log; the disk may be failing";
    /// The target could not be written at the offset in the message.
    TargetWriteFailed = "target-write-failed", "look in the kernel log; the disk may be failing";
    /// The target did not confirm that the written data is on the medium.
    TargetFlushFailed = "target-flush-failed", "look in the kernel log; the disk may be failing";
    /// The read-back differs from the written data, even after a second write.
    VerifyMismatch = "verify-mismatch", "replace the disk: it does not keep written data";
    /// `copal verify` found a difference between image and target; the message has the first offset.
    TargetDiffers = "target-differs", "flash the image to this target";
    /// A program of the board (`resin-init-board`, `resin-init-flasher-board`) cannot run, or failed; the message has its status
    /// and its last line.
    BoardProgramFailed = "board-program-failed", "read the program's lines in the log, and fix it in the board's recipe";
    /// A secure-boot plug-in of the board cannot be used, ended, or failed in a function that must succeed.
    PluginFailed = "plugin-failed", "read the plug-in's lines in the log, and fix it in the board's recipe";
    /// A function or a variable that an encrypted installation needs is missing in a secure-boot plug-in, or has a value that cannot be used.
    PluginIncomplete = "plugin-incomplete", "correct the plug-in in the board's recipe: docs/secure-boot.md lists what it has to provide";
    /// config.json asks for secure boot, and the medium provides neither plug-ins nor copal's own for UEFI and TPM 2 (`KERNEL_IMAGETYPE` in its
    /// configuration). The disk was not written.
    EncryptionNotAvailable = "encryption-not-available", "use a medium that is built for secure boot (docs/secure-boot.md), or remove installer.secureboot from config.json", never_after_write;
    /// cryptsetup 2.1 or newer, or mkfs.ext4, is needed for an encrypted installation, and cannot be used. The disk was not written.
    EncryptionToolUnusable = "encryption-tool-unusable", "add cryptsetup and e2fsprogs-mke2fs to the medium's system", never_after_write;
    /// The running kernel cannot encrypt a disk. The disk was not written.
    KernelLacksEncryption = "kernel-lacks-encryption", "build the medium's kernel with CONFIG_DM_CRYPT, or add its module", never_after_write;
    /// A mapping has the name of a partition that is to be encrypted. The disk was not written.
    MappingExists = "mapping-exists", "close the mapping, or restart the medium", never_after_write;
    /// The passphrase that a secure-boot plug-in has made protects nothing, or would be left on a disk. The disk was not written.
    PassphraseUnusable = "passphrase-unusable", "correct diskenc_setup of the plug-in: 16 to 8192 random bytes in a file on tmpfs", never_after_write;
    /// `installer.recovery_key` in config.json cannot be used: it is not one public RSA key of 2048 to 4096 bits in PEM, or the board's plug-in
    /// makes the key of the disk. The disk was not written.
    RecoveryKeyUnusable = "recovery-key-unusable", "put the public key into config.json, as `openssl pkey -in key.pem -pubout` prints it, or remove installer.recovery_key", never_after_write;
    /// What was entered is not the recovery passphrase of this disk. Nothing was changed.
    RecoveryPassphraseWrong = "recovery-passphrase-wrong", "decrypt recovery.enc, or the copy in the receipt, with the private key: docs/secure-boot.md has the command", never_after_write;
    /// This device, as it was started, cannot seal a new passphrase in the TPM. Nothing was changed.
    RecoveryNotPossible = "recovery-not-possible", "start the device by UEFI with secure boot on, from its own disk or from a medium that is signed for it", never_after_write;
    /// A partition could not be encrypted, opened, or closed.
    EncryptionFailed = "encryption-failed", "read the lines of cryptsetup and of the plug-in in the log, and flash again";
    /// The image's partitions do not fit the layout of an encrypted disk: one is missing or exists twice, is not aligned, or would overlap another.
    /// The message has the partition and the positions. The disk was not written.
    ImageLayoutUnfit = "image-layout-unfit", "use an image that its maker supports for encrypted installations", never_after_write;
    /// A variable of the firmware could not be read or written, or has not kept what was written.
    FirmwareVariableFailed = "firmware-variable-failed", "start the device again, and look into the firmware's setup; after an update of the firmware, its maker knows more";
    /// What secure boot needs is missing on the medium or in the image, or does not fit: the loader or the stage-2 kernel, a signature, or a key file.
    SecureBootFilesInvalid = "secure-boot-files-invalid", "use a medium of a build that is signed for secure boot";
    /// The TPM cannot keep the passphrase of an encrypted disk. The disk was not written.
    TpmUnusable = "tpm-unusable", "look into the firmware's setup: the TPM has to be on, without an owner's password, with SHA-256", never_after_write;
    /// A command of the TPM failed.
    TpmFailed = "tpm-failed", "switch the device off and on, and start the medium again";
    /// The firmware's measurements do not follow from its log and its variables, so that those of the next start cannot be predicted. The disk was not
    /// written.
    MeasurementsNotUnderstood = "measurements-not-understood", "update the firmware, or install without secure boot", never_after_write;
    /// Keys are enrolled, or secure boot is off, in a way that does not go with what config.json asks for. The disk was not written.
    SecureBootStateUnfit = "secure-boot-state-unfit", "put the firmware into setup mode, or change installer.secureboot in config.json", never_after_write;
    /// Secure boot is on, and the firmware or the loader would not start the new release. It was not selected.
    ReleaseNotAllowed = "release-not-allowed", "update to a release that is signed for this device's keys";
    /// The new release is signed with a key that the running loader does not contain: a power cut during the update would leave a device that does not
    /// start. The running system is still selected.
    LoaderKeyChanged = "loader-key-changed", "where the power cannot fail, update with --accept-loader-key, or with ACCEPT_LOADER_KEY=1 in update.conf";
    /// The next start of this device would not unlock its encrypted disk, or a change of its policy failed. The old way to unlock it was left.
    WouldNotUnlock = "would-not-unlock", "see `copal doctor`: it shows what differs; do not change firmware or keys before it is clear";
    /// The TPM keeps the passphrase of the encrypted disk as releases before 6.4.0 did, which copal does not read. Nothing was changed.
    EncryptionOutdated = "encryption-outdated", "update to a release of balenaOS from 6.4.0 to 8.0.2 first: its hooks put the passphrase into the memory of the TPM", never_after_write;
    /// The installation is complete, but the device could neither power off nor reboot.
    ShutdownFailed = "shutdown-failed", "switch the device off and on: it is installed";
    /// The freshly written disk does not show exactly one partition labelled `resin-boot` within 30 seconds; the message lists
    /// its partitions.
    BootPartitionNotFound = "boot-partition-not-found", "look in the kernel log for the disk named here, and check the image's partitions";
    /// A certificate could not be read, or is not an X.509 certificate with an RSA key of 2048 to 4096 bits. Nothing was written.
    CertificateInvalid = "certificate-invalid", "name a certificate in PEM or DER whose key is RSA", never_after_write;
    /// The running kernel was not built with the key of the medium's certificate, or has it more than once. Nothing was written.
    CertificateUntrusted = "certificate-untrusted", "use a medium whose kernel and certificate are of one build", never_after_write;
    /// A signature of the image is required, and there is no file `IMAGE.sig`. Nothing was written.
    SignatureMissing = "signature-missing", "put the signature beside the image: the name of the uncompressed image, then .sig", never_after_write;
    /// The signature of the image is damaged, is of another key, or is over another image. Nothing was written.
    SignatureInvalid = "signature-invalid", "get image and signature again from their maker, and check which key signs", never_after_write;
    /// A signal asked the program to end. A flash or an installation that had started to write leaves a disk without a partition table;
    /// an update leaves the running system selected; no further hook runs.
    Interrupted = "interrupted", "run it again";
    /// A person stopped the flasher before it wrote: a key was pressed, as the screen offered. Nothing was written, and the device stays on.
    Aborted = "aborted", "switch the device off and on to see the question again", never_after_write;
    /// `installer.confirm` is `key`, and the device has no keyboard that could answer. Nothing was written.
    NoInputDevice = "no-input-device", "plug in a keyboard, or set `installer.confirm` to `countdown:SECONDS` or `none`", never_after_write;
    /// The internal boot partition could not be mounted, or its mount point holds something else.
    BootMountFailed = "boot-mount-failed", "look in the kernel log, and check what is mounted at /tmp/internal_boot";
    /// The internal boot partition could not be unmounted within ten seconds, or the drive did not confirm that all data is on the
    /// medium.
    BootUnmountFailed = "boot-unmount-failed", "end the programs named here, which still use the internal boot partition";
    /// The files do not fit the internal boot partition, including the second copy that a file needs while it is replaced; the
    /// message has the required and the free size.
    BootPartitionFull = "boot-partition-full", "on a medium: remove large files from its boot partition, or use an image with a larger one; on a device: move your own files and FSCK*.REC, which fsck has recovered, off the boot partition, or use a release with smaller boot files";
    /// A path or a symbolic link leads out of the medium's or the internal boot partition.
    BootPathEscapes = "boot-path-escapes", "correct the path or the link named here: nothing may lead out of a boot partition";
    /// The owner's settings name a device tree that no place has in which the bootloader would look for it after the update; the
    /// message has the name and the places. The running system is still selected.
    DeviceTreeMissing = "device-tree-missing", "copy the file into /mnt/sysroot/active/current/boot, or remove its name from the settings";
    /// The file that a setting names is damaged, or is not a device tree or overlay: the bootloader may stop with it. The message has the file and the
    /// damage. The running system is still selected.
    DeviceTreeInvalid = "device-tree-invalid", "copy the file again, or remove its name from the settings; `dtc -I dtb -O dts FILE` shows whether it can be read";
    /// A name is not possible on the internal boot partition: FAT does not allow it, it differs from another name only in case, or
    /// it is a folder there and a file here.
    BootNameInvalid = "boot-name-invalid", "rename the file on the medium's boot partition";
    /// A file could not be read from the medium or written to the internal boot partition, or its read-back differs.
    BootCopyFailed = "boot-copy-failed", "look in the kernel log for the devices named here";
    /// /mnt/sysroot/active or /mnt/sysroot/inactive has no mount, or the mount is not a root partition; the message says which and
    /// why.
    SlotUnknown = "slot-unknown", "check what is mounted at /mnt/sysroot/active and /mnt/sysroot/inactive";
    /// /mnt/sysroot/active and /mnt/sysroot/inactive are the same device: an update would erase the running system. Nothing
    /// was written.
    SlotSame = "slot-same", "restart the device: the other root partition is not mounted where it should be", never_after_write;
    /// The file that selects the root for the bootloader is not valid, or has no such entry.
    BootStateInvalid = "boot-state-invalid", "select a root in the file named here: docs/boot-selection.md has its format";
    /// The file that selects the root for the bootloader could not be written, or its read-back differs.
    BootStateUnwritable = "boot-state-unwritable", "look in the kernel log for the boot partition: nothing else may change until this file can be written";
    /// A small file on the state partition, or below /run/copal, could not be written or removed.
    StateUnwritable = "state-unwritable", "look in the kernel's log for the state partition, and free space on it";
    /// A small file of an update, on the state partition or below /run/copal, is damaged. copal did not guess its content.
    StateInvalid = "state-invalid", "remove the file named here once no update runs and the device works";
    /// A file on the data partition could not be written or removed.
    DataUnwritable = "data-unwritable", "free space on the data partition, and look in the kernel log for it";
    /// A hook of an update failed; the message has its name and its status.
    HookFailed = "hook-failed", "read the hook's lines in the log, and fix it in its release";
    /// On an encrypted device the signed bootloader, or the signature of the configuration, is neither on the boot partition nor
    /// among the release's boot files. The release was not selected.
    SecureLoaderMissing = "secure-loader-missing", "build the release with signed boot files: an encrypted device boots no others";
    /// A release has no readable folder `/resin-boot`, or, on an encrypted device, a bootloader without its variant for secure
    /// boot. An update is refused before a boot file changes; an undo deploys the other files.
    BootFilesInvalid = "boot-files-invalid", "use a release whose folder /resin-boot is complete";
    /// No process answers on the socket of the container engine for host apps, or it has no version of the API that copal knows.
    EngineUnreachable = "engine-unreachable", "start balena-host.service, and read its log";
    /// The container engine refused or failed; the message has its text.
    EngineFailed = "engine-failed", "read the log of balena-host.service";
    /// The archive of an update is not an image archive, has several images, or is truncated.
    ImageArchiveInvalid = "image-archive-invalid", "fetch the archive again: it is not an image as `docker save` writes it";
    /// The image of an update is not a host OS: it does not have `/boot/init`, which starts a host OS.
    ImageNotHostOs = "image-not-host-os", "name an image of the host OS";
    /// The programs in the archive of an update are for another processor family than the device's. Nothing was changed.
    ImageWrongArchitecture = "image-wrong-architecture", "use the release for this device type", never_after_write;
    /// An update is a delta, and the running slot does not have its base image. An archive is refused before anything is changed; of a pull, the engine
    /// says it.
    DeltaBaseMissing = "delta-base-missing", "install the whole release, or a delta for the running release";
    /// The registry or the engine has no image with that name.
    ImageUnknown = "image-unknown", "correct the image reference, or the tag in it";
    /// The registry requires credentials, or does not accept those that were sent.
    RegistryRefused = "registry-refused", "log in to the registry, or correct the credentials in config.json of the engine's client";
    /// The registry could not be reached, or the connection was lost and all retries failed.
    RegistryUnreachable = "registry-unreachable", "check the network, and run the update again";
    /// The inactive slot, the data partition or the boot partition has too little free space for the release; the message has the
    /// sizes.
    SlotFull = "slot-full", "use a smaller image, or free space where the message says";
    /// The state of the device allows no update now: the running system is on trial, or a rollback is in progress. Nothing was
    /// written.
    UpdateRefused = "update-refused", "wait for the verdict on the running system, or run `copal update --force`", never_after_write;
    /// A manual verdict does not fit the device's phase; the message says what is in progress. Nothing was written.
    RollbackRefused = "rollback-refused", "see `copal status`: the request fits another phase", never_after_write;
    /// A required health check of the running system failed; the message has its reason.
    HealthCheckFailed = "health-check-failed", "read the log of the check named here, and fix the release", never_after_write;
    /// `rollback-stop` would leave a system selected that may not boot, or stop an unfinished rollback. Nothing was written.
    StopRefused = "stop-refused", "reboot, and let the rollback finish; `--force` stops it in any case", never_after_write;
    /// The previous OS is older than 2.30.0, and a rollback to it is not possible.
    PreviousTooOld = "previous-too-old", "do nothing: an update from such a system is committed without health checks", never_after_write;
    /// `copal doctor` found a problem that would stop a flash, an update or a rollback.
    ProblemsFound = "problems-found", "see the lines above, each with its remedy", never_after_write;
    /// An update failed; the message says what boots next.
    UpdateFailed = "update-failed", "run the update again: the running system is still selected";
    /// The service was asked for a flash or its plan, and the running system is not a flasher medium.
    NotAFlasher = "not-a-flasher", "boot the device from a flasher medium, or run `copal flash` yourself", never_after_write;
    /// The service cannot connect to the system bus, another program has its name there, or systemd does not start a job's unit.
    BusUnreachable = "bus-unreachable", "start dbus.service, and read its log";
    /// The process of a job ended without a result: it was killed, or ran out of memory.
    JobLost = "job-lost", "read the log of the job, `journalctl -u 'copal-job@*'`, then `copal status`, and run it again";
    /// The device was to reboot, and neither systemd, nor the kernel, nor sysrq did it; all earlier steps are complete.
    RebootFailed = "reboot-failed", "restart the device yourself: the message has the result of each method";
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
