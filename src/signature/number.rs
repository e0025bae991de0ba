//! Large numbers: one power modulo an odd number, in the way that is easiest to see through.

use crate::sys::limits::wipe;

/// Without the zeroes in front of a big-endian number.
pub(super) fn without_zeroes(number: &[u8]) -> &[u8] {
    let zeroes = number.iter().take_while(|b| **b == 0).count();
    number.get(zeroes..).unwrap_or_default()
}

/// The length of a big-endian number.
pub(super) fn bits(number: &[u8]) -> usize {
    let number = without_zeroes(number);
    number.first().map_or(0, |first| number.len() * 8 - first.leading_zeros() as usize)
}

/// `base` to the power of `exponent`, modulo `modulus`, all big-endian; of the length of `modulus`. `None` unless `base` is below `modulus`.
///
/// Some milliseconds for 4096 bits and the usual exponent 65537.
pub(super) fn power(base: &[u8], exponent: u64, modulus: &[u8]) -> Option<Vec<u8>> {
    let len = modulus.len();
    let modulus = Modulus(limbs(modulus, len));
    let base = limbs(without_zeroes(base), len);
    if base.0.len() != modulus.0.0.len() || !is_less(&base.0, &modulus.0.0) {
        return None;
    }
    let mut result = limbs(&[1], len);
    for bit in (0..u64::BITS - exponent.leading_zeros()).rev() {
        result = modulus.product(&result.0, &result.0);
        if exponent >> bit & 1 == 1 {
            result = modulus.product(&result.0, &base.0);
        }
    }
    let bytes: Vec<u8> = result.0.iter().rev().flat_map(|limb| limb.to_be_bytes()).collect();
    bytes.get(bytes.len().checked_sub(len)?..).map(<[u8]>::to_vec)
}

const LIMB: usize = size_of::<u64>();

/// The lowest first; wiped when they are dropped, since what is encrypted is secret.
#[derive(Clone)]
struct Limbs(Vec<u64>);

impl Drop for Limbs {
    fn drop(&mut self) {
        wipe(&mut self.0);
    }
}

/// A big-endian number in as many limbs as `len` bytes need, or as it needs itself.
fn limbs(number: &[u8], len: usize) -> Limbs {
    let count = len.max(number.len()).div_ceil(LIMB);
    let mut limbs = Vec::with_capacity(count);
    let chunks = number.rchunks(LIMB);
    limbs.extend(chunks.map(|chunk| chunk.iter().fold(0, |all, byte| all << 8 | u64::from(*byte))));
    limbs.resize(count, 0);
    Limbs(limbs)
}

fn is_less(a: &[u64], b: &[u64]) -> bool {
    a.iter().rev().lt(b.iter().rev())
}

struct Modulus(Limbs);

impl Modulus {
    /// Of two numbers below the modulus.
    fn product(&self, a: &[u64], b: &[u64]) -> Limbs {
        let mut sum = Limbs(vec![0; self.0.0.len()]);
        for bit in b.iter().rev().flat_map(|limb| (0..u64::BITS).rev().map(move |bit| limb >> bit & 1)) {
            let twice = sum.clone();
            self.add(&mut sum.0, &twice.0);
            if bit == 1 {
                self.add(&mut sum.0, a);
            }
        }
        sum
    }

    /// Adds a number below the modulus to another.
    fn add(&self, sum: &mut [u64], other: &[u64]) {
        let mut carry = false;
        for (limb, other) in sum.iter_mut().zip(other) {
            let (once, first) = limb.overflowing_add(*other);
            let (twice, second) = once.overflowing_add(u64::from(carry));
            (*limb, carry) = (twice, first || second);
        }
        if !carry && is_less(sum, &self.0.0) {
            return;
        }
        let mut borrow = false;
        for (limb, modulus) in sum.iter_mut().zip(&self.0.0) {
            let (once, first) = limb.overflowing_sub(*modulus);
            let (twice, second) = once.overflowing_sub(u64::from(borrow));
            (*limb, borrow) = (twice, first || second);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_number_that_is_too_large_has_no_power() {
        assert_eq!(power(&[7], 3, &[7]), None);
        assert_eq!(power(&[1; 9], 3, &[0xFF]), None);
        assert_eq!(power(&[0, 0, 2], 3, &[0, 7]), Some(vec![0, 1]));
        assert_eq!(power(&[2], 8, &[1, 0xFF, 1]), Some(vec![0, 1, 0]));
        assert_eq!(bits(&[0, 0x40, 0]), 15);
    }

    proptest! {
        /// Of numbers that the machine knows.
        #[test]
        fn powers_are_right(base: u64, exponent: u32, modulus in 1u64..) {
            let modulus = modulus | 1;
            let product = |a: u64, b: u64| u64::try_from(u128::from(a) * u128::from(b) % u128::from(modulus)).unwrap();
            let base = base % modulus;
            let mut expected = 1 % modulus;
            for bit in (0..32).rev() {
                expected = product(expected, expected);
                if exponent >> bit & 1 == 1 {
                    expected = product(expected, base);
                }
            }
            let found = power(&base.to_be_bytes(), exponent.into(), &modulus.to_be_bytes());
            let bytes = if modulus == 1 { vec![0; 8] } else { expected.to_be_bytes().to_vec() };
            prop_assert_eq!(found, if base < modulus { Some(bytes) } else { None });
        }
    }
}
