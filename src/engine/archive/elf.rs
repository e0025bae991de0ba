//! The processor that a program is made for, from the first bytes of its file.

use std::fmt;
use std::fs::File;

use super::read_up_to;
use crate::config::paths::Paths;

/// Bytes of an ELF file up to the end of the field `e_machine`.
pub(super) const HEAD: usize = 20;

/// `e_machine` of ELF headers (System V ABI, chapter 4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Machine(u16);

const I386: u16 = 3;
const ARM: u16 = 40;
const X86_64: u16 = 62;
const AARCH64: u16 = 183;

impl Machine {
    pub(super) fn of(head: &[u8; HEAD]) -> Option<Machine> {
        let [0x7f, b'E', b'L', b'F', _, order, .., a, b] = *head else { return None };
        match order {
            1 => Some(Machine(u16::from_le_bytes([a, b]))),
            2 => Some(Machine(u16::from_be_bytes([a, b]))),
            _ => None,
        }
    }

    /// The machine of copal itself: the device can run it.
    pub(crate) fn of_this_program(paths: &Paths) -> Option<Machine> {
        let mut head = [0; HEAD];
        let mut file = File::open(paths.at("/proc/self/exe")).ok()?;
        (read_up_to(&mut file, &mut head).ok()? == HEAD).then(|| Machine::of(&head))?
    }

    /// Whether a device that runs programs for `self` may run programs for `other`.
    ///
    /// 32 and 64 bits of a family count as one, in both directions: a 64-bit kernel runs both, and a release brings its own kernel, so a board
    /// with a 64-bit processor may change from a 32-bit release to a 64-bit one. A running 32-bit kernel does not show the exact processor.
    pub(crate) fn is_akin_to(self, other: Machine) -> bool {
        self.family() == other.family()
    }

    const fn family(self) -> u16 {
        match self.0 {
            I386 => X86_64,
            ARM => AARCH64,
            other => other,
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            I386 => f.write_str("x86, 32 bits"),
            X86_64 => f.write_str("x86, 64 bits"),
            ARM => f.write_str("ARM, 32 bits"),
            AARCH64 => f.write_str("ARM, 64 bits"),
            other => write!(f, "ELF machine {other}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(order: u8, machine: [u8; 2]) -> [u8; HEAD] {
        let mut head = [0; HEAD];
        head[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, order]);
        head[18..].copy_from_slice(&machine);
        head
    }

    #[test]
    fn families_are_distinguished_and_not_their_widths() {
        let [i386, x86_64, arm, aarch64] = [I386, X86_64, ARM, AARCH64].map(Machine);
        assert!(i386.is_akin_to(x86_64) && x86_64.is_akin_to(i386));
        assert!(arm.is_akin_to(aarch64) && aarch64.is_akin_to(arm));
        for (one, other) in [(x86_64, aarch64), (i386, arm), (Machine(243), x86_64), (Machine(8), arm)] {
            assert!(!one.is_akin_to(other) && !other.is_akin_to(one), "{one}; {other}");
        }
    }

    #[test]
    fn the_machine_of_a_file() {
        assert_eq!(Machine::of(&head(1, [183, 0])), Some(Machine(AARCH64)));
        assert_eq!(Machine::of(&head(2, [0, 8])), Some(Machine(8)));
        assert_eq!(Machine::of(&head(3, [62, 0])), None);
        assert_eq!(Machine::of(b"#!/bin/sh\nexit 0    "), None);
        let this = Machine::of_this_program(&Paths::default()).unwrap();
        let expected = if cfg!(target_arch = "x86_64") { "x86, 64 bits" } else { "ARM, 64 bits" };
        assert_eq!(this.to_string(), expected);
    }
}
