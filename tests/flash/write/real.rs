//! The same promise on a real block device: bits that flip on the medium between the flush and the read-back.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use copal::flash::write::execute;
use copal::progress::Silent;
use copal::sys::block::{Access, Device, Medium};
use nix::libc;

use super::{Bytes, Job, image};
use crate::kit::disk::Loop;
use crate::kit::needs::{can_run, needs};
use crate::kit::process::HANG;
use crate::kit::prove;

const MIB: usize = 1 << 20;

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

/// Opens the disk exclusively. A process that a test in another thread forks inherits every open file until it executes its program, also the
/// device of the last round.
fn exclusive(node: &Path) -> Device {
    let start = Instant::now();
    loop {
        match Device::open(node, Access::ExclusiveDisk) {
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) && start.elapsed() < HANG => {
                std::thread::sleep(Duration::from_millis(5));
            }
            opened => return opened.unwrap(),
        }
    }
}

#[test]
fn a_bit_that_flips_on_a_loop_device_is_found() {
    let len = 5 * MIB + 777;
    let job = Job { backup: 0, ..Job::new(image(len, 61)) };
    needs!(can_run);
    let disk = Loop::dirty(6 * MIB as u64);
    let shared: &'static [u8] = Box::leak(job.image.clone().into_boxed_slice());
    for round in prove::cases("inputs", "a_bit_that_flips_on_a_loop_device_is_found", 200, 20) {
        let mut rng = fastrand::Rng::with_seed(round as u64);
        let at = match round {
            0..60 => (0..).map(|_| rng.usize(MIB..len)).find(|i| job.image[*i] == 0).unwrap(),
            60..90 => rng.usize(5 * MIB..len),
            _ => rng.usize(MIB..len),
        };
        let device = exclusive(&disk.node);
        assert!(device.is_direct(), "a loop device takes direct I/O");
        let sparse = round % 2 == 0;
        // The second flush is the one behind the body: the first is behind the cleared table.
        let (bit, left) = (1 << rng.u8(0..8), Mutex::new(2));
        let medium = Flipping { device, backing: &disk.file, at: at as u64, bit, left };
        let plan = job.plan_for(&medium, 6 * MIB as u64);
        let open = move || Ok(Box::new(Bytes::new(shared, sparse)) as Box<_>);
        let done = execute(&plan, &open, &medium, &Silent).unwrap();
        assert_eq!(done.rewritten_chunks, 1, "round {round}: byte {at}");
        assert!(std::fs::read(&disk.file).unwrap()[..len] == job.image[..], "round {round}: byte {at}");
    }
}

/// A plain file on a file system that cannot punch holes.
struct NoHoles(Device);

impl Medium for NoHoles {
    fn size(&self) -> io::Result<u64> {
        self.0.size()
    }
    fn block_size(&self) -> usize {
        self.0.block_size()
    }
    fn extend(&self, len: u64) -> io::Result<()> {
        self.0.extend(len)
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(buf, offset)
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        self.0.write_at(buf, offset)
    }
    fn zero_range(&self, _: u64, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn flush(&self) -> io::Result<()> {
        self.0.flush()
    }
    fn drop_cache(&self) -> io::Result<()> {
        self.0.drop_cache()
    }
    fn is_direct(&self) -> bool {
        self.0.is_direct()
    }
}

/// The zeroes that are written early are not looked for behind the end of a file that grows with the image.
#[test]
fn zeroes_behind_the_end_of_a_growing_file_are_written_later() {
    let mut bytes = image(24 * MIB, 5);
    // Nothing after them makes the file longer.
    bytes[2 * MIB..].fill(0);
    for sparse in [true, false] {
        let dir = crate::kit::disk::folder();
        let path = dir.path().join("disk");
        let medium = NoHoles(Device::open(&path, Access::ExclusiveFile).unwrap());
        let job = Job { size_known: false, sparse, backup: 0, ..Job::new(bytes.clone()) };
        job.run_plan(&job.plan_for(&medium, 0), &medium).unwrap();
        assert!(std::fs::read(&path).unwrap() == bytes);
    }
}
