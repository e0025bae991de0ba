use std::io;
use std::ops::{Deref, DerefMut};
use std::slice::SliceIndex;

/// Memory alignment for direct I/O, in bytes: a page, more than any block layer requires.
pub(crate) const ALIGN: usize = 4096;

/// A part of a buffer that must be there. An empty part in its place would be written, read back or compared as if there were nothing to do.
///
/// # Errors
/// A defect of copal: the part is outside the buffer.
pub(crate) fn part<R: SliceIndex<[u8], Output = [u8]>>(bytes: &[u8], range: R) -> io::Result<&[u8]> {
    bytes.get(range).ok_or_else(outside)
}

/// [`part`], to be changed.
pub(crate) fn part_mut<R: SliceIndex<[u8], Output = [u8]>>(
    bytes: &mut [u8],
    range: R,
) -> io::Result<&mut [u8]> {
    bytes.get_mut(range).ok_or_else(outside)
}

fn outside() -> io::Error {
    io::Error::other("a piece lies outside its buffer")
}

#[derive(Clone, Copy)]
#[repr(C, align(4096))]
struct Page([u8; ALIGN]);

/// Zeroed bytes that start on a page boundary.
pub(crate) struct Buffer {
    pages: Vec<Page>,
    len: usize,
}

impl Buffer {
    #[must_use]
    pub(crate) fn zeroed(len: usize) -> Self {
        Buffer { pages: vec![Page([0; ALIGN]); len.div_ceil(ALIGN)], len }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    #[allow(unsafe_code)]
    fn deref(&self) -> &[u8] {
        // SAFETY: `pages` is one contiguous allocation of initialised bytes, at least `len` of them.
        unsafe { std::slice::from_raw_parts(self.pages.as_ptr().cast(), self.len) }
    }
}

impl DerefMut for Buffer {
    #[allow(unsafe_code)]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.pages.as_mut_ptr().cast(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_aligned_and_has_its_length() {
        for len in [0, 1, 4096, 4097, 1 << 20] {
            let mut b = Buffer::zeroed(len);
            assert_eq!(b.len(), len);
            assert!(b.iter().all(|&x| x == 0));
            assert_eq!(b.as_ptr() as usize % ALIGN, 0);
            b.fill(7);
            assert!(b.iter().all(|&x| x == 7));
        }
    }

    #[test]
    fn a_part_outside_is_an_error_and_not_nothing() {
        let mut bytes = [1, 2, 3];
        assert_eq!(part(&bytes, 1..3).unwrap(), [2, 3]);
        assert!(part(&bytes, 1..4).is_err() && part(&bytes, 4..).is_err());
        part_mut(&mut bytes, ..1).unwrap().fill(9);
        assert!(part_mut(&mut bytes, ..4).is_err());
        assert_eq!(bytes, [9, 2, 3]);
    }
}
