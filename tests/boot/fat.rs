//! Whose clusters a temporary file has, on images that mkfs.fat and mtools made and that are then damaged. The kernel of a test
//! machine may have no vfat; `tests/guest/bootpart.rs` mounts one.

use std::cell::Cell;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use copal::sys::crash_point::{self, Answer};
use copal::sys::file::{self, ClusterMap, Folder, Obstacle, SweepResult};

use crate::kit::needs::{has, needs};

const TEMPORARY: &str = "CPL00001.TMP";
const LONG: Duration = Duration::from_secs(60);

/// A FAT with `vmlinuz` of 200 clusters, `EFI/BOOT/grub.cfg` of 3, and the temporary file of one in `EFI`.
struct Fat {
    _dir: tempfile::TempDir,
    image: PathBuf,
}

fn tool(argv: &[&str], input: &str) -> String {
    let mut command = Command::new(argv[0]);
    command.args(&argv[1..]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    drop(io::Write::write_all(child.stdin.as_mut().unwrap(), input.as_bytes()));
    let out = child.wait_with_output().unwrap();
    String::from_utf8(out.stdout).unwrap()
}

impl Fat {
    fn of(size: u64, format: &[&str], cluster: usize) -> Fat {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let image = dir.path().join("fat.img");
        File::create(&image).unwrap().set_len(size).unwrap();
        let fat = Fat { _dir: dir, image };
        tool(&[&["mkfs.vfat"], format, &[fat.path()]].concat(), "");
        tool(&["mmd", "-i", fat.path(), "::/EFI", "::/EFI/BOOT"], "");
        fat.add("::/vmlinuz", 200 * cluster);
        fat.add("::/EFI/BOOT/grub.cfg", 3 * cluster);
        fat.add(&format!("::/EFI/{TEMPORARY}"), 100);
        fat
    }

    fn path(&self) -> &str {
        self.image.to_str().unwrap()
    }

    fn add(&self, to: &str, bytes: usize) {
        let file = self.image.with_extension("file");
        std::fs::write(&file, (0..255).cycle().take(bytes).collect::<Vec<u8>>()).unwrap();
        tool(&["mcopy", "-i", self.path(), file.to_str().unwrap(), to], "");
    }

    fn read(&self, from: &str) -> String {
        tool(&["md5sum"], &tool(&["mshowfat", "-i", self.path(), from], ""))
    }

    /// The first cluster of a file.
    fn first(&self, name: &str) -> u16 {
        let text = tool(&["mshowfat", "-i", self.path(), name], "");
        let digits = text.split_once('<').unwrap().1.split(|c: char| !c.is_ascii_digit()).next().unwrap();
        digits.parse().unwrap()
    }

    /// Lets the entry whose 11 bytes are `name` start at a cluster.
    fn start(&self, name: &[u8; 11], cluster: u16) {
        let bytes = std::fs::read(&self.image).unwrap();
        let at = bytes.windows(11).position(|w| w == name).unwrap();
        let file = File::options().write(true).open(&self.image).unwrap();
        file.write_all_at(&cluster.to_le_bytes(), at as u64 + 26).unwrap();
    }

    fn obstacle_of(&self, twin: bool) -> Option<Obstacle> {
        let map = ClusterMap::read(&File::open(&self.image).unwrap(), LONG).unwrap();
        map.obstacle(OsStr::new(TEMPORARY), 0, twin)
    }
}

const SHORT: &[u8; 11] = b"CPL00001TMP";

fn every_kind(test: &str, see: impl Fn(&Fat)) {
    if !["mkfs.vfat", "mcopy", "mshowfat"].iter().all(|tool| has(test, tool)) {
        return;
    }
    see(&Fat::of(1 << 20, &["-F", "12", "-s", "1"], 512));
    see(&Fat::of(6 << 20, &["-F", "16", "-s", "2"], 1024));
    see(&Fat::of(34 << 20, &["-F", "32", "-s", "1"], 512));
}

fn shared(with: &str) -> Option<Obstacle> {
    Some(Obstacle::Shared(vec![with.to_owned()]))
}

#[test]
fn a_temporary_with_clusters_of_its_own_has_no_obstacle() {
    every_kind("a_temporary_with_clusters_of_its_own_has_no_obstacle", |fat| {
        assert_eq!(fat.obstacle_of(false), None);
        fat.start(SHORT, 0);
        assert_eq!(fat.obstacle_of(false), None, "empty");
    });
}

/// Unlinking it would cut the file off there.
#[test]
fn one_that_begins_inside_a_file_of_any_folder_has_one() {
    every_kind("one_that_begins_inside_a_file_of_any_folder_has_one", |fat| {
        fat.start(SHORT, fat.first("::/vmlinuz") + 150);
        assert_eq!(fat.obstacle_of(false), shared("VMLINUZ"));
        fat.start(SHORT, fat.first("::/EFI/BOOT/grub.cfg") + 2);
        assert_eq!(fat.obstacle_of(false), shared("EFI/BOOT/GRUB.CFG"));
        // A folder also has clusters.
        fat.start(SHORT, fat.first("::/EFI/BOOT"));
        assert_eq!(fat.obstacle_of(false), shared("EFI/BOOT"));
    });
}

#[test]
fn a_file_that_runs_into_the_temporary_is_an_obstacle() {
    every_kind("a_file_that_runs_into_the_temporary_is_an_obstacle", |fat| {
        let own = fat.first(&format!("::/EFI/{TEMPORARY}"));
        fat.start(b"GRUB    CFG", own);
        assert_eq!(fat.obstacle_of(false), shared("EFI/BOOT/GRUB.CFG"));
    });
}

/// After half a rename the file beside it has the same chain, and gets a copy. A third file would lose its clusters.
#[test]
fn the_file_that_gets_a_copy_is_no_obstacle_unless_there_is_a_third() {
    every_kind("the_file_that_gets_a_copy_is_no_obstacle_unless_there_is_a_third", |fat| {
        let start = fat.first("::/vmlinuz");
        fat.start(SHORT, start);
        assert_eq!(fat.obstacle_of(true), None);
        fat.start(b"GRUB    CFG", start + 10);
        let both = Obstacle::Shared(vec!["VMLINUZ".to_owned(), "EFI/BOOT/GRUB.CFG".to_owned()]);
        assert_eq!(fat.obstacle_of(true), Some(both));
        // Not the file that starts there.
        fat.start(SHORT, start + 20);
        fat.start(b"GRUB    CFG", 0);
        assert_eq!(fat.obstacle_of(true), shared("VMLINUZ"));
    });
}

/// A chain in a circle, and a folder that is inside itself.
#[test]
fn a_damaged_table_ends_the_reading() {
    every_kind("a_damaged_table_ends_the_reading", |fat| {
        fat.start(b"BOOT       ", fat.first("::/EFI"));
        fat.start(SHORT, fat.first("::/vmlinuz") + 1);
        assert_eq!(fat.obstacle_of(false), shared("VMLINUZ"));
        fat.start(SHORT, u16::MAX);
        assert_eq!(fat.obstacle_of(false), None, "no cluster, so none is freed");
    });
}

#[test]
fn what_is_not_known_is_an_obstacle() {
    every_kind("what_is_not_known_is_an_obstacle", |fat| {
        let device = File::open(&fat.image).unwrap();
        let late = ClusterMap::read(&device, Duration::ZERO).err().unwrap();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
        let map = ClusterMap::read(&device, LONG).unwrap();
        assert!(matches!(map.obstacle(OsStr::new("CPL00002.TMP"), 0, false), Some(Obstacle::Unknown(_))));
        // The kernel has it elsewhere.
        assert!(matches!(map.obstacle(OsStr::new(TEMPORARY), 1, false), Some(Obstacle::Unknown(_))));
        File::options().write(true).open(&fat.image).unwrap().set_len(4096).unwrap();
        let cut = ClusterMap::read(&device, LONG).err().unwrap();
        assert_eq!(cut.kind(), io::ErrorKind::InvalidData);
    });
    let nothing = tempfile::tempfile().unwrap();
    nothing.set_len(1 << 20).unwrap();
    assert_eq!(ClusterMap::read(&nothing, LONG).err().unwrap().kind(), io::ErrorKind::InvalidData);
}

/// What `copal doctor` advises.
#[test]
fn fsck_separates_them_without_a_loss() {
    let test = "fsck_separates_them_without_a_loss";
    needs!(|test| has(test, "fsck.fat"));
    every_kind(test, |fat| {
        let before = fat.read("::/vmlinuz");
        fat.start(SHORT, fat.first("::/vmlinuz") + 150);
        // "Truncate second", on a FAT32 correct the number of free clusters, and write the changes.
        tool(&["fsck.fat", "-r", fat.path()], "2\n1\n1\n");
        assert_eq!(fat.obstacle_of(false), None);
        assert_eq!(fat.read("::/vmlinuz"), before);
    });
}

#[test]
fn a_sweep_leaves_a_temporary_with_an_obstacle() {
    let dir = tempfile::tempdir().unwrap();
    for name in [TEMPORARY, "CPL00002.TMP"] {
        std::fs::write(dir.path().join(name), "x").unwrap();
    }
    let folder = Folder::open(dir.path()).unwrap();
    let first = Cell::new(true);
    let armed = crash_point::arm(move |step, path| match step {
        "owners" if path.file_name() == Some(OsStr::new(TEMPORARY)) => {
            assert!(first.replace(false), "it is asked once");
            Err(io::Error::other(Answer("vmlinuz".into())))
        }
        _ => Ok(()),
    });
    let swept = file::sweep(&folder).unwrap();
    drop(armed);
    let kept = SweepResult::Kept(shared("vmlinuz").unwrap());
    assert_eq!(swept, [(TEMPORARY.into(), kept), ("CPL00002.TMP".into(), SweepResult::Removed)]);
    assert!(dir.path().join(TEMPORARY).exists());
}
