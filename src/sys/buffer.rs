use std::ops::{Deref, DerefMut};

/// Memory alignment for direct I/O, in bytes: a page, more than any block layer requires.
pub(crate) const ALIGN: usize = 4096;

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
}
