//! The starts that are possible while loader, stage-2 kernel and `db` change: the TPM has to unlock each of them.

use super::next_start::{Pair, Start};
use crate::error::Result;
use crate::measurements::Measured;
use crate::tpm::policy::Digest;
use crate::uefi::authenticode::Program;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// To a new release.
    Forward,
    /// To the running one, or to the previous one. No keys change.
    Back,
}

/// The starts that are possible from now until the release is in place, and until the running one is again.
#[derive(Debug)]
pub struct Way<'a> {
    pub start: &'a Start,
    pub now: &'a Measured,
    pub in_place: &'a Pair<'a>,
    /// Of the system that runs.
    pub running: &'a Pair<'a>,
    pub new: &'a Pair<'a>,
    pub direction: Direction,
}

impl Way<'_> {
    /// Of the start that comes if nothing changes; `None` where the firmware does not start what is in place.
    #[must_use]
    pub fn next(&self) -> Option<Vec<Digest>> {
        let [loader, kernel] = self.in_place;
        self.policies(self.now, [loader, kernel])
    }

    fn policies(&self, keys: &Measured, programs: [&Option<Program<'_>>; 2]) -> Option<Vec<Digest>> {
        let [Some(loader), Some(kernel)] = programs else { return Some(Vec::new()) };
        self.start.policies(keys, &[loader, kernel])
    }

    /// The policies of all of them; this start has met `met`. `later`: the variables after the append. An error: they cannot be predicted.
    pub fn branches(&self, later: &Measured, met: Digest) -> Result<Vec<Digest>> {
        let Way { start, in_place, running, new, direction, .. } = self;
        start.must_be_explained_by(&[*running, *in_place])?;
        let [in_place_loader, in_place_kernel] = in_place;
        let [running_loader, running_kernel] = running;
        let [new_loader, new_kernel] = new;
        // The firmware does not start what has no policy: only what replaces it helps.
        let present = self.next();
        // In the order of `programs`.
        let steps = match direction {
            Direction::Forward => vec![
                [in_place_loader, in_place_kernel],
                [in_place_loader, new_kernel],
                [new_loader, new_kernel],
                [running_loader, new_kernel],
                [running_loader, running_kernel],
                [running_loader, in_place_kernel],
            ],
            Direction::Back => vec![[new_loader, in_place_kernel], [new_loader, new_kernel]],
        };
        let mut branches = vec![met];
        let of_steps = steps.into_iter().filter_map(|programs| self.policies(later, programs));
        for branch in present.into_iter().chain(of_steps).flatten() {
            if !branches.contains(&branch) {
                branches.push(branch);
            }
        }
        Ok(branches)
    }
}
