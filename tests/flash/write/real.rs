//! The same promise on a real block device: bits that flip on the medium between the flush and the read-back.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use copal::flash::write::execute;
use copal::progress::Silent;
use copal::sys::block::{Access, Device, Medium};

use super::{Bytes, Job, image};

const MIB: usize = 1 << 20;

/// A loop device over a file, detached when it goes.
struct Loop {
    node: PathBuf,
    backing: PathBuf,
    _dir: tempfile::TempDir,
}

impl Loop {
    fn new(len: usize) -> Option<Loop> {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let backing = dir.path().join("disk.raw");
        std::fs::write(&backing, vec![0xA5; len]).unwrap();
        for _ in 0..20 {
            let out = Command::new("losetup").args(["-f", "--show"]).arg(&backing).output().ok()?;
            if out.status.success() {
                let node = PathBuf::from(String::from_utf8_lossy(&out.stdout).trim());
                return Some(Loop { node, backing, _dir: dir });
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        None
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ignored = Command::new("losetup").arg("-d").arg(&self.node).output();
    }
}

/// A device whose medium changes by itself after the `when`th flush.
struct Flipping<'a> {
    device: Device,
    backing: &'a Path,
    at: u64,
    bit: u8,
    left: Mutex<u32>,
}

impl Medium for Flipping<'_> {
    fn size(&self) -> io::Result<u64> {
        self.device.size()
    }
    fn block_size(&self) -> usize {
        self.device.block_size()
    }
    fn extend(&self, len: u64) -> io::Result<()> {
        self.device.extend(len)
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.device.read_at(buf, offset)
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        self.device.write_at(buf, offset)
    }
    fn zero_range(&self, offset: u64, len: u64) -> io::Result<()> {
        self.device.zero_range(offset, len)
    }
    fn flush(&self) -> io::Result<()> {
        self.device.flush()?;
        let mut left = self.left.lock().unwrap();
        if *left == 1 {
            // Behind the back of the block device, as a failing cell would.
            let file = OpenOptions::new().read(true).write(true).open(self.backing)?;
            let mut byte = [0];
            file.read_exact_at(&mut byte, self.at)?;
            file.write_all_at(&[byte[0] ^ self.bit], self.at)?;
            file.sync_all()?;
        }
        *left = left.saturating_sub(1);
        Ok(())
    }
    fn drop_cache(&self) -> io::Result<()> {
        self.device.drop_cache()
    }
    fn is_direct(&self) -> bool {
        self.device.is_direct()
    }
}

#[test]
fn a_bit_that_flips_on_a_loop_device_is_found() {
    let len = 5 * MIB + 777;
    let job = Job { backup: 0, ..Job::new(image(len, 61)) };
    let Some(disk) = Loop::new(6 * MIB) else {
        eprintln!(
            "not run: a_bit_that_flips_on_a_loop_device_is_found: no loop device can be had (root needed)"
        );
        return;
    };
    let mut rng = fastrand::Rng::with_seed(99);
    let shared: &'static [u8] = Box::leak(job.image.clone().into_boxed_slice());
    for round in 0..200 {
        let at = match round {
            0..60 => (0..).map(|_| rng.usize(MIB..len)).find(|i| job.image[*i] == 0).unwrap(),
            60..90 => rng.usize(5 * MIB..len),
            _ => rng.usize(MIB..len),
        };
        let device = Device::open(&disk.node, Access::ExclusiveDisk).unwrap();
        assert!(device.is_direct(), "a loop device takes direct I/O");
        let sparse = round % 2 == 0;
        // The second flush is the one behind the body: the first is behind the cleared table.
        let (bit, left) = (1 << rng.u8(0..8), Mutex::new(2));
        let medium = Flipping { device, backing: &disk.backing, at: at as u64, bit, left };
        let plan = job.plan_for(&medium, 6 * MIB as u64);
        let open = move || Ok(Box::new(Bytes::new(shared, sparse)) as Box<_>);
        let done = execute(&plan, &open, &medium, &Silent).unwrap();
        assert_eq!(done.rewritten_chunks, 1, "round {round}: byte {at}");
        assert!(std::fs::read(&disk.backing).unwrap()[..len] == job.image[..], "round {round}: byte {at}");
    }
}
