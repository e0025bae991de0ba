//! Cards that confirm what they do not do: they keep nothing, or have less space than they say.

use std::io;
use std::ops::Range;
use std::sync::Mutex;

use copal::error::{Code, Effect, Error};
use copal::sys::block::Medium;

use super::medium::Disk;
use super::{Job, image};

const MIB: usize = 1 << 20;
const BLOCK: usize = 512;

/// A disk in memory that says more of itself than is true.
struct Liar {
    disk: Disk,
    /// What it says to have. What lies behind its end comes to lie at its start.
    size: usize,
    /// Blocks in here stay as they are.
    deaf: Range<usize>,
    /// Where it was asked to write.
    asked: Mutex<Vec<usize>>,
}

impl Liar {
    fn new(disk: Vec<u8>) -> Liar {
        Liar { size: disk.len(), disk: Disk::holding(disk), deaf: 0..0, asked: Mutex::default() }
    }

    fn place(&self, at: usize) -> u64 {
        (at % self.disk.len() as usize) as u64
    }
}

impl Medium for Liar {
    fn size(&self) -> io::Result<u64> {
        Ok(self.size as u64)
    }

    fn block_size(&self) -> usize {
        BLOCK
    }

    fn extend(&self, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let at = offset as usize;
        let len = buf.len().min(self.size.saturating_sub(at));
        for (i, block) in buf[..len].chunks_mut(BLOCK).enumerate() {
            self.disk.read_at(block, self.place(at + i * BLOCK))?;
        }
        Ok(len)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        let at = offset as usize;
        let len = buf.len().min(self.size.saturating_sub(at));
        self.asked.lock().unwrap().push(at);
        for (i, block) in buf[..len].chunks(BLOCK).enumerate() {
            let at = at + i * BLOCK;
            if !self.deaf.contains(&at) {
                self.disk.write_at(block, self.place(at))?;
            }
        }
        Ok(len)
    }

    fn zero_range(&self, _: u64, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn flush(&self) -> io::Result<()> {
        self.disk.flush()
    }

    fn drop_cache(&self) -> io::Result<()> {
        Ok(())
    }

    fn is_direct(&self) -> bool {
        true
    }
}

fn fails(job: &Job, card: &Liar) -> Error {
    let plan = job.plan_for(card, card.size as u64);
    card.asked.lock().unwrap().clear();
    let e = job.run_plan(&plan, card).unwrap_err();
    assert_eq!(e.code(), Code::VerifyMismatch, "{e}");
    e
}

/// Of the places that were written, those that are neither the first MiB nor the image's backup table.
fn body_writes(job: &Job, card: &Liar) -> usize {
    let body = MIB..job.image.len() - job.backup;
    card.asked.lock().unwrap().iter().filter(|at| body.contains(at)).count()
}

#[test]
fn a_card_that_keeps_nothing_is_refused_as_it_was() {
    let job = Job::new(image(5 * MIB, 70));
    let old = image(5 * MIB, 71);
    let card = Liar { deaf: 0..usize::MAX, ..Liar::new(old.clone()) };
    let e = fails(&job, &card);
    assert_eq!(e.effect(), Effect::Refused, "{e}");
    assert!(e.message().contains("nothing on it was changed"), "{e}");
    assert_eq!(body_writes(&job, &card), 0);
    assert!(card.disk.durable() == old);
}

#[test]
fn a_card_that_keeps_its_old_table_gets_no_body() {
    let job = Job::new(image(5 * MIB, 72));
    let old = image(5 * MIB, 73);
    for deaf in [0..BLOCK, BLOCK..2 * BLOCK, 5 * MIB - BLOCK..5 * MIB] {
        let card = Liar { deaf: deaf.clone(), ..Liar::new(old.clone()) };
        let e = fails(&job, &card);
        assert_eq!(e.effect(), Effect::Written, "{e}");
        assert!(e.message().contains("partition table may be left"), "{e}");
        assert_eq!(body_writes(&job, &card), 0, "{deaf:?}");
        let now = card.disk.durable();
        assert!(now[deaf.clone()] == old[deaf.clone()]);
        let cleared = |at: usize| deaf.contains(&at) || now[at] == 0;
        assert!((0..MIB).chain(5 * MIB - job.backup..5 * MIB).all(cleared), "{deaf:?}");
    }
}

#[test]
fn a_body_that_comes_back_at_the_start_of_the_card_leaves_no_table_there() {
    let mut data = image(8 * MIB, 74);
    // Behind the card's true end: what firmware would start.
    fastrand::Rng::with_seed(74).fill(&mut data[4 * MIB..5 * MIB]);
    data[4 * MIB + 510..4 * MIB + 512].copy_from_slice(&[0x55, 0xaa]);
    data[4 * MIB + 512..4 * MIB + 520].copy_from_slice(b"EFI PART");
    let job = Job::new(data);
    let card = Liar { size: 8 * MIB, ..Liar::new(vec![0xA5; 4 * MIB]) };
    let e = fails(&job, &card);
    assert_eq!(e.effect(), Effect::Written, "{e}");
    assert!(!e.message().contains("may be left"), "{e}");
    assert!(card.disk.durable()[..MIB].iter().all(|b| *b == 0), "it looks bootable");
}

/// Less than a MiB, or less than the empty space before the first partition: the body shows nothing of it.
#[test]
fn a_card_with_a_little_less_space_than_the_image_gets_no_table() {
    let with_backup = {
        let mut data = image(24 * MIB, 76);
        data[MIB..4 * MIB].fill(0);
        data[16 * MIB..24 * MIB - 33 * 512].fill(0);
        Job::new(data)
    };
    let without = {
        let mut data = with_backup.image.clone();
        data[16 * MIB..].fill(0);
        Job { backup: 0, ..Job::new(data) }
    };
    for missing in [512, 1024, 4096, 20 * 512, 33 * 512, 100 * 512, MIB - 512, MIB, 3 * MIB] {
        for job in [&with_backup, &without] {
            let card = Liar { size: 24 * MIB, ..Liar::new(vec![0xA5; 24 * MIB - missing]) };
            let e = fails(job, &card);
            assert_eq!(e.effect(), Effect::Written, "{missing}: {e}");
            assert!(!e.message().contains("may be left"), "{missing}: {e}");
            let now = card.disk.durable();
            assert!(now[..MIB].iter().all(|b| *b == 0), "{missing}: it looks bootable");
            assert!(
                now[now.len() - 512..][..8] != *b"EFI PART",
                "{missing}: firmware would restore its table"
            );
        }
    }
}
