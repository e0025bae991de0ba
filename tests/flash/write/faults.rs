//! Disks that lie, fail and go away.

use copal::error::{Code, Effect};
use nix::libc;

use super::medium::{Call, Disk, Fault};
use super::{Job, image};
use crate::kit::prove;

const MIB: usize = 1 << 20;

fn table_is_gone(disk: &Disk) {
    let now = disk.durable();
    assert!(
        now.len() < MIB || now[..MIB].iter().all(|b| *b == 0),
        "a failed flash left a boot sector or table"
    );
}

/// Bit flips between write and read-back: the disk does it once, and the chunk is written again.
#[test]
fn a_flipped_bit_is_found_and_repaired() {
    let len = 6 * MIB + 777;
    let job = Job { backup: 0, ..Job::new(image(len, 21)) };
    for round in prove::cases("inputs", "a_flipped_bit_is_found_and_repaired", 200, 20) {
        let mut rng = fastrand::Rng::with_seed(round as u64);
        let at = match round {
            // Zero ranges, the last partial chunk, the first byte of the body, its last byte.
            0..60 => (0..).map(|_| rng.usize(MIB..len)).find(|i| job.image[*i] == 0).unwrap(),
            60..90 => rng.usize(6 * MIB..len),
            90 => MIB,
            91 => len - 1,
            _ => rng.usize(MIB..len),
        };
        let bit = 1u8 << rng.u8(0..8);
        let disk = Disk::filled(8 * MIB, 0xA5);
        let mut flushes = 0;
        disk.on_call(move |state, call, _| {
            if call == Call::Flush {
                flushes += 1;
                if flushes == 2 {
                    state.settle();
                    state.durable[at] ^= bit;
                }
            }
            None
        });
        let done = job.run(&disk).unwrap();
        assert_eq!(done.rewritten_chunks, 1, "round {round}: byte {at}");
        assert!(disk.durable()[..len] == job.image[..]);
    }
}

/// A bit that stays as it is, whatever is written: named to the byte, and no table left.
#[test]
fn a_stuck_bit_is_named_exactly() {
    let len = 5 * MIB + 4096;
    for round in prove::cases("inputs", "a_stuck_bit_is_named_exactly", 200, 20) {
        let mut rng = fastrand::Rng::with_seed(round as u64);
        let digested = round % 2 == 0;
        let backup = if round % 3 == 0 { 0 } else { 33 * 512 };
        let job = Job { backup, digested, ..Job::new(image(len, 22)) };
        // All of it: body, zero ranges, first MiB, backup GPT.
        let at = if round % 5 == 0 { rng.usize(len - 33 * 512..len) } else { rng.usize(0..len) };
        let disk = Disk::filled(6 * MIB, 0xA5);
        let wrong = job.image[at] ^ 0x10;
        disk.on_call(move |state, call, _| {
            if call == Call::Flush {
                state.settle();
                // As long as the byte is to be zero, as before the last steps, the fault does not show.
                if state.durable[at] == wrong ^ 0x10 && wrong != 0 {
                    state.durable[at] = wrong;
                }
            }
            None
        });
        let outcome = job.run(&disk);
        disk.behave();
        if wrong == 0 {
            // The flipped value is what a cleared byte has: no such fault can be made with this disk.
            outcome.unwrap();
            continue;
        }
        let e = outcome.unwrap_err();
        assert_eq!(e.code(), Code::VerifyMismatch, "round {round}: {e}");
        assert!(e.message().contains(&format!("byte {at}, sector {}", at / 512)), "round {round}: {at}: {e}");
        assert_eq!(e.effect(), Effect::Written);
        let now = disk.durable();
        assert!(now[510..512] != [0x55, 0xaa] && now[512..520] != *b"EFI PART", "round {round}: {at}");
        assert!(backup == 0 || now[len - 512..len - 504] != *b"EFI PART", "round {round}");
    }
}

/// Zeroing that reports success and does nothing.
#[test]
fn a_disk_that_only_says_it_zeroed_is_written() {
    let mut data = image(6 * MIB, 30);
    data[2 * MIB..4 * MIB].fill(0);
    let job = Job { backup: 0, ..Job::new(data) };
    let disk = Disk::filled(6 * MIB, 0xA5);
    disk.on_call(|state, call, _| {
        if call == Call::Flush {
            // Undo what was zeroed but not written.
            let zeroes: Vec<usize> =
                state.pending.iter().filter(|(_, b)| b.iter().all(|x| *x == 0)).map(|(a, _)| *a).collect();
            let second_time = state.calls.get(&Call::Flush).copied().unwrap_or(0) > 2;
            for at in zeroes.into_iter().filter(|a| *a >= MIB && !second_time) {
                state.pending.remove(&at);
            }
        }
        None
    });
    let done = job.run(&disk).unwrap();
    assert!(done.rewritten_chunks >= 2, "{done:?}");
    assert!(disk.durable() == job.image);
}

/// Every kind of fault at every kind of call, early, late and in between.
#[test]
fn every_fault_at_every_call() {
    let job = Job { sparse: false, ..Job::new(image(4 * MIB, 40)) };
    let count = {
        let disk = Disk::filled(5 * MIB, 0xA5);
        job.run(&disk).unwrap();

        disk.state.lock().unwrap().calls.clone()
    };
    let faults: [(Fault, bool); 9] = [
        (Fault::Errno(libc::EIO), true),
        (Fault::Errno(libc::EIO), false),
        (Fault::Errno(libc::ENOSPC), false),
        (Fault::Errno(libc::EINTR), true),
        (Fault::Errno(libc::ENXIO), false),
        (Fault::Short(512), true),
        (Fault::Short(700), true),
        (Fault::Short(0), true),
        (Fault::Shrink(2 * MIB), true),
    ];
    let mut errors = std::collections::BTreeSet::new();
    let mut refused = 0;
    for call in [Call::Size, Call::Read, Call::Write, Call::Zero, Call::Flush, Call::DropCache] {
        let calls = count.get(&call).copied().unwrap_or(0);
        assert!(calls > 0, "{call:?} is never called");
        for (fault, once) in faults {
            for at in [0, 1, calls / 2, calls.saturating_sub(2), calls - 1] {
                let disk = Disk::filled(5 * MIB, 0xA5);
                let plan = job.plan(&disk);
                let mut seen = 0;
                disk.on_call(move |_, c, _| {
                    let hit = c == call && (seen == at || (!once && seen > at));
                    seen += u64::from(c == call);
                    hit.then_some(fault)
                });
                let outcome = job.run_plan(&plan, &disk);
                let what = format!("{fault:?} once={once} at {call:?} {at} of {calls}");
                match &outcome {
                    Ok(_) => {
                        // A device may still shrink after its last bytes were read back.
                        let now = disk.durable();
                        let len = now.len().min(4 * MIB);
                        assert!(now[..len] == job.image[..len], "{what}: success, but not the image");
                        assert!(len == 4 * MIB || matches!(fault, Fault::Shrink(_)), "{what}");
                    }
                    Err(e) => {
                        errors.insert(format!("{call:?} {}", e.code()));
                        if e.effect() == Effect::Refused {
                            assert!(disk.durable().iter().all(|b| *b == 0xA5), "{what}: not untouched");
                            assert!(e.message().contains("nothing on it was changed"), "{what}: {e}");
                            refused += 1;
                        }
                        let allowed: &[Code] = match (fault, call) {
                            (Fault::Shrink(_) | Fault::Errno(libc::ENXIO), _) => {
                                &[Code::TargetVanished, Code::TargetTooSmall]
                            }
                            (_, Call::Read) => &[Code::TargetReadFailed, Code::TargetVanished],
                            (_, Call::Write) => &[Code::TargetWriteFailed, Code::TargetVanished],
                            (_, Call::Flush) => &[Code::TargetFlushFailed],
                            (_, Call::DropCache) => &[Code::Io],
                            (_, Call::Size) => &[Code::TargetReadFailed],
                            // A medium that cannot zero is written instead: never an error.
                            (_, Call::Zero) => &[],
                        };
                        assert!(allowed.contains(&e.code()), "{what}: {e}");
                    }
                }
                let must_pass = match fault {
                    Fault::Errno(libc::EINTR) => matches!(call, Call::Read | Call::Write | Call::Zero),
                    Fault::Errno(libc::EIO) => {
                        call == Call::Zero || (once && matches!(call, Call::Read | Call::Write))
                    }
                    Fault::Errno(_) => call == Call::Zero,
                    Fault::Short(n) => n > 0 || !matches!(call, Call::Read | Call::Write),
                    Fault::Shrink(_) => false,
                };
                assert!(outcome.is_ok() || !must_pass, "{what}: {outcome:?}");
                if outcome.is_err()
                    && (matches!(call, Call::Read | Call::DropCache) || (once && call == Call::Flush))
                {
                    table_is_gone(&disk);
                }
            }
        }
    }
    // The table of expectations above is not empty talk.
    for want in ["Read target-read-failed", "Write target-write-failed", "Flush target-flush-failed"] {
        assert!(errors.contains(want), "{errors:?}");
    }
    assert!(errors.iter().any(|e| e.contains("target-vanished")), "{errors:?}");
    assert!(refused > 0, "a disk that takes no write at all is as it was");
}

#[test]
fn retries_are_counted() {
    let job = Job::new(image(3 * MIB, 41));
    let disk = Disk::filled(3 * MIB, 0xA5);
    let mut done = false;
    disk.on_call(move |_, c, at| {
        let hit = c == Call::Write && at >= MIB as u64 && !std::mem::replace(&mut done, c == Call::Write);
        hit.then_some(Fault::Errno(libc::EIO))
    });
    let outcome = job.run(&disk).unwrap();
    assert_eq!(outcome.io_retries, 1);
    assert!(disk.durable() == job.image);
}

/// The image is not what was checked before.
#[test]
fn an_image_that_changes_is_refused() {
    let mut job = Job { digested: true, ..Job::new(image(4 * MIB, 50)) };
    let disk = Disk::filled(4 * MIB, 0xA5);
    let plan = job.plan(&disk);
    job.image[100] ^= 1;
    assert_eq!(job.run_plan(&plan, &disk).unwrap_err().code(), Code::ImageChanged);
    table_is_gone(&disk);
    job.image[100] ^= 1;
    job.image[2 * MIB] ^= 1;
    assert_eq!(job.run_plan(&plan, &disk).unwrap_err().code(), Code::ImageChanged);
    table_is_gone(&disk);
    job.image.truncate(3 * MIB);
    assert_eq!(job.run_plan(&plan, &disk).unwrap_err().code(), Code::ImageChanged);
    table_is_gone(&disk);
}

/// A card that claims more than it has: writing one place damages another, which was read back before.
#[test]
fn a_rewrite_that_damages_another_chunk_is_found() {
    let job = Job { backup: 0, ..Job::new(image(6 * MIB, 51)) };
    let disk = Disk::filled(6 * MIB, 0xA5);
    let mut flushes = 0;
    disk.on_call(move |state, call, _| {
        if call == Call::Flush {
            flushes += 1;
            state.settle();
            match flushes {
                2 => state.durable[3 * MIB + 5] ^= 1, // found, and written again
                3 => state.durable[4 * MIB + 9] ^= 1, // by that
                _ => {}
            }
        }
        None
    });
    let e = job.run(&disk).unwrap_err();
    assert_eq!(e.code(), Code::VerifyMismatch);
    assert!(e.message().contains(&format!("byte {},", 4 * MIB + 9)), "{e}");
    table_is_gone(&disk);
}

/// A sector that cannot be written keeps what was in it; everything around it goes, and the error says so.
#[test]
fn a_bad_sector_in_the_first_mebibyte_does_not_save_the_old_table() {
    let mut old = image(4 * MIB, 60);
    old[1000 * 512..1001 * 512].fill(0xEE);
    let disk = Disk::holding(old);
    let job = Job::new(image(4 * MIB, 52));
    let plan = job.plan(&disk);
    // Every write that touches sector 1000 fails: large ones as a whole, but for the very first.
    disk.fail_writes_over(1000 * 512);
    let mut first = true;
    disk.on_call(move |_, call, _| {
        (call == Call::Write && std::mem::take(&mut first)).then_some(Fault::Short(4096))
    });
    let e = job.run_plan(&plan, &disk).unwrap_err();
    assert_eq!((e.code(), e.effect()), (Code::TargetWriteFailed, Effect::Written));
    assert!(e.message().contains("may be left"), "{e}");
    let now = disk.durable();
    assert!(now[510..512] != [0x55, 0xaa] && now[512..520] != *b"EFI PART", "the old table is still there");
    assert!(now[1000 * 512..1001 * 512].iter().all(|b| *b == 0xEE));
}

/// Old unreadable sectors heal when they are written: they are no reason to fail.
#[test]
fn an_unreadable_sector_that_heals_is_written() {
    let job = Job { backup: 0, ..Job::new(image(6 * MIB, 53)) };
    let mut disk = Disk::filled(6 * MIB, 0xA5);
    disk.zeroes = false;
    let plan = job.plan(&disk);
    disk.on_call(|state, call, at| {
        let healed = state.log.iter().any(|(offset, ..)| *offset == at);
        (call == Call::Read && (MIB as u64..4 << 20).contains(&at) && !healed)
            .then_some(Fault::Errno(libc::EIO))
    });
    job.run_plan(&plan, &disk).unwrap();
    assert!(disk.durable() == job.image);
    // The last sector, in which an old backup table may be, can be such a one too.
    for block in [512, 4096] {
        let mut disk = Disk::filled(6 * MIB + block, 0xA5);
        disk.block = block;
        disk.on_call(|_, call, at| (call == Call::Read && at == 6 << 20).then_some(Fault::Errno(libc::EIO)));
        let plan = job.plan(&disk);
        job.run_plan(&plan, &disk).unwrap();
        assert!(disk.durable()[6 * MIB..].iter().all(|b| *b == 0));
    }
}

/// As a bridge has it that reports one sector too many: no table is there, and none will ever be read from there.
#[test]
fn an_end_that_neither_reads_nor_writes_stops_nothing() {
    let job = Job { backup: 0, ..Job::new(image(6 * MIB, 53)) };
    let mut disk = Disk::filled(7 * MIB, 0xA5);
    disk.block = 512;
    let end = (7 * MIB - 512) as u64;
    let dead = move |call, at| {
        (matches!(call, Call::Read | Call::Write) && at == end).then_some(Fault::Errno(libc::EIO))
    };
    disk.on_call(move |_, call, at| dead(call, at));
    let plan = job.plan(&disk);
    job.run_plan(&plan, &disk).unwrap();
    assert!(disk.durable()[..6 * MIB] == job.image);
    assert!(copal::flash::write::disarm(&plan, &disk), "its table was taken off again");
    table_is_gone(&disk);
    // Where it can be read, what is there could be found by firmware.
    let mut old = vec![0xA5; 7 * MIB];
    old[7 * MIB - 512..7 * MIB - 504].copy_from_slice(b"EFI PART");
    let disk = Disk::holding(old);
    disk.on_call(move |_, call, at| (call == Call::Write && at == end).then_some(Fault::Errno(libc::EIO)));
    let plan = job.plan(&disk);
    assert_eq!(job.run_plan(&plan, &disk).unwrap_err().code(), Code::TargetWriteFailed);
}
