//! What the engine promises when nothing goes wrong, and when power does.

use std::sync::{Arc, Mutex};

use copal::flash::plan::{Cleared, Step};
use copal::flash::write::disarm;
use copal::image::digest::{CHUNK_LEN, Digest256, root};
use proptest::prelude::*;

use super::medium::{Call, Disk, Fault};
use super::{Job, image};

const MIB: usize = 1 << 20;

fn assert_holds(disk: &Disk, image: &[u8], platform: u8) {
    let durable = disk.durable();
    assert!(durable[..image.len()] == *image, "the medium differs from the image");
    assert!(durable[image.len()..].iter().all(|b| *b == platform), "bytes behind the image were touched");
}

#[test]
fn every_byte_arrives_on_a_dirty_disk() {
    for (case, len) in
        [8 * MIB, 5 * MIB + 512, 5 * MIB + 777, 2 * MIB, MIB + 34 * 512].into_iter().enumerate()
    {
        for (digested, sparse, zeroes, block) in [
            (false, true, true, 512),
            (true, false, true, 4096),
            (false, false, false, 512),
            (true, true, false, 512),
        ] {
            let job = Job { digested, sparse, ..Job::new(image(len, case as u64)) };
            let job = Job { backup: if len.is_multiple_of(block) { 8 * block } else { 0 }, ..job };
            let mut disk = Disk::filled(11 * MIB, 0xA5);
            disk.zeroes = zeroes;
            disk.block = block;
            let done = job.run(&disk).unwrap();
            assert_holds(&disk, &job.image, 0xA5);
            assert_eq!(done.size, len as u64);
            assert_eq!(done.verified, len as u64, "{len} {digested} {sparse}");
            assert_eq!(done.written + done.zeroed + done.skipped, len as u64, "{len} {done:?}");
            let chunks: Vec<_> = job.image.chunks(CHUNK_LEN).map(Digest256::of).collect();
            assert_eq!(done.chunk_digest, root(&chunks));
            assert_eq!((done.rewritten_chunks, done.io_retries), (0, 0));
        }
    }
}

#[test]
fn an_image_whose_size_shows_at_its_end_only() {
    let job = Job { size_known: false, backup: 0, ..Job::new(image(6 * MIB + 100, 3)) };
    let disk = Disk::filled(9 * MIB, 0xA5);
    job.run(&disk).unwrap();
    assert_holds(&disk, &job.image, 0xA5);
    let small = Disk::filled(4 * MIB, 0xA5);
    let e = job.run(&small).unwrap_err();
    assert_eq!(e.code().as_str(), "target-too-small");
    assert!(small.durable()[..MIB].iter().all(|b| *b == 0), "left bootable");
}

#[test]
fn the_old_backup_gpt_goes_and_nothing_else_after_the_image() {
    let mut old = vec![0xA5; 8 * MIB];
    let last = old.len() - 512;
    let entries = last - 32 * 512;
    old[last..last + 8].copy_from_slice(b"EFI PART");
    old[last + 72..last + 80].copy_from_slice(&(entries as u64 / 512).to_le_bytes());
    old[last + 80..last + 84].copy_from_slice(&128u32.to_le_bytes());
    old[last + 84..last + 88].copy_from_slice(&128u32.to_le_bytes());
    let disk = Disk::holding(old.clone());
    let job = Job::new(image(4 * MIB, 5));
    let plan = job.plan(&disk);
    let stale = Step::Clear { what: Cleared::StaleBackupGpt, range: entries as u64..8 << 20 };
    assert!(plan.steps.contains(&stale), "{plan}");
    job.run(&disk).unwrap();
    let now = disk.durable();
    assert!(now[..4 * MIB] == job.image[..]);
    assert!(now[4 * MIB..entries] == old[4 * MIB..entries]);
    assert!(now[entries..].iter().all(|b| *b == 0));

    // Nonsense in the header: the header alone goes.
    old[last + 72..last + 80].copy_from_slice(&u64::MAX.to_le_bytes());
    let disk = Disk::holding(old.clone());
    job.run(&disk).unwrap();
    assert!(disk.durable()[4 * MIB..last] == old[4 * MIB..last]);
    assert!(disk.durable()[last..].iter().all(|b| *b == 0));
}

#[test]
fn flashing_again_writes_only_what_differs() {
    let job = Job::new(image(12 * MIB, 9));
    let disk = Disk::filled(12 * MIB, 0xA5);
    job.run(&disk).unwrap();
    disk.state.lock().unwrap().bytes_written = 0;
    let again = job.run(&disk).unwrap();
    assert_holds(&disk, &job.image, 0xA5);
    // The first MiB and the backup GPT, which is a stale one too, are cleared and written.
    let edges = (2 * MIB + 3 * 33 * 512) as u64;
    assert!(disk.state.lock().unwrap().bytes_written <= edges, "{again:?}");
    assert!(again.skipped > 3 * MIB as u64, "{again:?}");
    assert_eq!(again.verified, 12 * MIB as u64);

    // One block differs: that block is written.
    let mut changed = disk.durable();
    let at = (2 * MIB..11 * MIB).rev().find(|i| job.image[*i] != 0).unwrap();
    changed[at] ^= 1;
    let disk = Disk::holding(changed);
    let third = job.run(&disk).unwrap();
    assert_holds(&disk, &job.image, 0xA5);
    assert_eq!(third.written, again.written + 65536, "{third:?}");
}

#[test]
fn a_disk_that_cannot_zero_is_not_written_where_it_is_zero() {
    let mut data = vec![0; 24 * MIB];
    fastrand::Rng::with_seed(1).fill(&mut data[..6 * MIB]);
    let job = Job { backup: 0, ..Job::new(data) };
    let mut disk = Disk::filled(24 * MIB, 0xA5);
    disk.zeroes = false;
    assert_eq!(job.run(&disk).unwrap().zeroed, 18 * MIB as u64);
    let again = job.run(&disk).unwrap();
    assert_eq!((again.zeroed, again.skipped), (0, 23 * MIB as u64));
    assert_holds(&disk, &job.image, 0xA5);
}

/// Whether firmware or kernel could take something on this disk for a boot sector or partition table.
fn looks_bootable(disk: &[u8]) -> bool {
    let gpt = |at: usize| disk.get(at..at + 8) == Some(b"EFI PART");
    disk[510..512] == [0x55, 0xaa] || gpt(512) || gpt(4096) || gpt(disk.len() - 512)
}

/// Power cut at every single call, with everything lost, everything kept, or any subset of what was not flushed.
#[test]
fn a_cut_at_any_call_leaves_no_table_or_the_whole_image() {
    let job = Job::new(image(4 * MIB, 11));
    let mut old = image(4 * MIB, 12); // a bootable disk of exactly the image's size
    old[MIB..].fill(0xA5);
    let end = old.len();
    old[end - 512..end - 504].copy_from_slice(b"EFI PART");
    let calls = {
        let disk = Disk::holding(old.clone());
        let plan = job.plan(&disk);
        disk.state.lock().unwrap().calls.clear();
        job.run_plan(&plan, &disk).unwrap();
        disk.state.lock().unwrap().calls.values().sum::<u64>()
    };
    let mut rng = fastrand::Rng::with_seed(4);
    let (mut bootable, mut blank, mut early) = (0, 0, 0);
    for cut in 0..calls {
        let disk = Disk::holding(old.clone());
        let plan = job.plan(&disk);
        let mut before = cut;
        let at_the_cut: Arc<Mutex<Option<Cut>>> = Arc::default();
        let seen = at_the_cut.clone();
        disk.on_call(move |state, _, _| {
            if before > 0 {
                before -= 1;
                return None;
            }
            // The first refused call is the cut: what is there now is all there ever will be.
            seen.lock().unwrap().get_or_insert_with(|| Cut {
                durable: state.durable.clone(),
                pending: state.pending.clone(),
                flushes: state.flushed,
            });
            Some(Fault::Errno(nix::libc::ENXIO))
        });
        let outcome = job.run_plan(&plan, &disk);
        assert!(outcome.is_err(), "cut at call {cut} of {calls} went unnoticed");
        let cut_state = at_the_cut.lock().unwrap().take().unwrap();
        for survive in 0..4 {
            let mut after = cut_state.durable.clone();
            for (at, block) in &cut_state.pending {
                if survive == 1 || (survive > 1 && rng.bool()) {
                    after[*at..at + block.len()].copy_from_slice(block);
                }
            }
            if cut_state.flushes < 2 {
                // First MiB and old backup table are cleared by two flushed steps; until then nothing else was written.
                assert!(after[MIB..end - 33 * 512].iter().all(|b| *b == 0xA5), "cut at call {cut}");
                early += 1;
            } else if looks_bootable(&after) {
                bootable += 1;
                assert!(after[MIB..end - 33 * 512] == job.image[MIB..end - 33 * 512], "cut at call {cut}");
                // What starts by the MBR has no checksum over the sectors behind it.
                if after[510..512] == [0x55, 0xaa] {
                    assert!(after == job.image, "cut at call {cut}: a boot sector before the rest");
                }
            } else {
                blank += 1;
            }
        }
    }
    assert!(early > 4 && blank > 40 && bootable > 4, "{early} {blank} {bootable}");
}

/// The disk at a power cut.
struct Cut {
    durable: Vec<u8>,
    pending: std::collections::BTreeMap<usize, Vec<u8>>,
    flushes: u64,
}

#[test]
fn steps_are_flushed_one_by_one() {
    let job = Job::new(image(4 * MIB, 11));
    let disk = Disk::filled(4 * MIB, 0xA5);
    job.run(&disk).unwrap();
    let log = std::mem::take(&mut disk.state.lock().unwrap().log);
    let epoch = |pick: &dyn Fn(u64) -> bool| -> Vec<u64> {
        log.iter().filter(|(at, ..)| pick(*at)).map(|(.., flushes)| *flushes).collect()
    };
    let first_sector = epoch(&|at| at == 0);
    let body = epoch(&|at| (MIB as u64..3 << 20).contains(&at));
    assert_eq!(first_sector.len(), 2, "cleared once, written once");
    assert!(body.iter().all(|e| first_sector[0] < *e && *e < first_sector[1]), "{first_sector:?} {body:?}");
    // And it is the very last write.
    assert_eq!(log.last().map(|(at, len, _)| (*at, *len)), Some((0, 512)));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_image_on_any_disk(seed: u64, sectors in 1usize..9000, old: u8, zeroes: bool, sparse: bool, digested: bool,
                             backup in 0usize..2600, size_known: bool,
                             keep in 0usize..9000) {
        let len = (sectors * 512).max(1024);
        // A backup GPT of any length and place: in the first MiB, across chunks, none.
        let backup = if backup * 512 < len { backup * 512 } else { 0 };
        let size_known = size_known || len < MIB || digested;
        let job = Job { backup, digested, sparse, size_known, ..Job::new(image(len, seed)) };
        // So far behind the image that its backup GPT is not at the disk's end, in sectors of 4096 bytes either.
        let mut disk = Disk::filled(len + 8192, old);
        disk.zeroes = zeroes;
        // Some of the image is there already.
        let kept = len.min(keep * 512);
        disk.state.lock().unwrap().durable[..kept].copy_from_slice(&job.image[..kept]);
        let done = job.run(&disk).unwrap();
        assert_holds(&disk, &job.image, old);
        prop_assert_eq!(done.verified, len as u64);
    }
}

#[test]
fn what_was_disarmed_is_read_back() {
    let job = Job::new(image(4 * MIB, 5));
    let disk = Disk::filled(8 * MIB, 0xA5);
    let plan = job.plan(&disk);
    job.run_plan(&plan, &disk).unwrap();
    assert!(disarm(&plan, &disk));
    let durable = disk.durable();
    assert!(durable[..MIB].iter().chain(&durable[4 * MIB - 33 * 512..4 * MIB]).all(|b| *b == 0));

    // A disk that says it has cleared its first sector, and has not.
    disk.on_call(|state, call, _| {
        if call == Call::Read {
            state.durable[510] = 0x55;
        }
        None
    });
    assert!(!disarm(&plan, &disk));
}
