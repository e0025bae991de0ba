//! The disks that power cuts leave.

use crate::support::writelog::{Loss, Request};

/// The disks that cuts leave of one partition, in the order of the log.
pub(super) struct Cuts<'a> {
    requests: &'a [Request],
    range: std::ops::Range<usize>,
    next: usize,
    /// What is on the medium for certain.
    safe: Vec<u8>,
    /// The same, between two disks.
    disk: Vec<u8>,
    /// What may be: indices of requests for this partition.
    pending: Vec<usize>,
}

impl<'a> Cuts<'a> {
    pub(super) fn new(before: &[u8], requests: &'a [Request], range: std::ops::Range<usize>) -> Self {
        let (safe, disk) = (before.to_vec(), before.to_vec());
        Cuts { requests, range, next: 0, safe, disk, pending: Vec::new() }
    }

    fn is_ours(&self, n: usize) -> bool {
        let request = &self.requests[n];
        !request.data.is_empty() && self.range.contains(&usize::try_from(request.at).unwrap())
    }

    fn apply(&self, disk: &mut [u8], n: usize, keeps: impl Fn(usize) -> bool) {
        let at = usize::try_from(self.requests[n].at).unwrap() - self.range.start;
        for (s, sector) in self.requests[n].data.chunks(512).enumerate().filter(|(s, _)| keeps(*s)) {
            disk[at + s * 512..][..sector.len()].copy_from_slice(sector);
        }
    }

    /// Takes the next request; whether it made a difference to this partition.
    fn step(&mut self) -> bool {
        let n = self.next;
        self.next += 1;
        let mut differs = false;
        if self.requests[n].flush && !self.pending.is_empty() {
            let (mut safe, mut disk) = (std::mem::take(&mut self.safe), std::mem::take(&mut self.disk));
            for i in std::mem::take(&mut self.pending) {
                self.apply(&mut safe, i, |_| true);
                self.apply(&mut disk, i, |_| true);
            }
            (self.safe, self.disk) = (safe, disk);
            differs = true;
        }
        if self.is_ours(n) {
            assert!(!self.requests[n].fua, "no FUA on vfat is thought of here");
            self.pending.push(n);
            differs = true;
        }
        differs
    }

    pub(super) fn run(&mut self, window: std::ops::Range<usize>, mut see: impl FnMut(usize, Loss, &[u8])) {
        while self.next < window.start {
            self.step();
        }
        let mut rng = fastrand::Rng::with_seed(4);
        while self.next < window.end {
            if !self.step() {
                continue;
            }
            let losses = self.losses(&mut rng);
            // Changed and changed back: copies of a whole disk would be most of the work.
            let mut disk = std::mem::take(&mut self.disk);
            for loss in losses {
                for n in &self.pending {
                    self.apply(&mut disk, *n, |s| loss.keeps(*n, s));
                }
                see(self.next, loss, &disk);
                for n in &self.pending {
                    let at = usize::try_from(self.requests[*n].at).unwrap() - self.range.start;
                    let there = at..at + self.requests[*n].data.len();
                    disk[there.clone()].copy_from_slice(&self.safe[there]);
                }
            }
            self.disk = disk;
        }
    }

    fn losses(&self, rng: &mut fastrand::Rng) -> Vec<Loss> {
        let Some(last) = self.pending.last().copied() else { return vec![Loss::All] };
        let sectors = self.requests[last].data.len() / 512;
        let mut losses = vec![Loss::None];
        if sectors > 1 {
            losses.push(Loss::Torn(last, rng.usize(1..sectors)));
            losses.push(Loss::Random(rng.u64(..) << 40));
        }
        if self.pending.len() > 1 {
            losses.extend(self.pending.iter().rev().take(3).flat_map(|&n| [Loss::Only(n), Loss::Without(n)]));
            losses.extend((0..6).map(|_| Loss::Random(rng.u64(..) << 40)));
        }
        losses
    }
}
