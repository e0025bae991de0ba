//! Partition tables, file systems and labels of a disk that begins with these bytes and is zero beyond.
#![no_main]

use std::io;

use copal::disk::partition;
use libfuzzer_sys::fuzz_target;

/// Size of the disk in bytes.
const SIZE: u64 = 64 << 20;

fuzz_target!(|data: &[u8]| {
    let mut read_at = |offset: u64, buf: &mut [u8]| {
        let length = u64::try_from(buf.len()).expect("it fits");
        if offset.checked_add(length).is_none_or(|end| end > SIZE) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for (at, byte) in (offset..).zip(buf.iter_mut()) {
            *byte = usize::try_from(at).ok().and_then(|at| data.get(at)).copied().unwrap_or(0);
        }
        Ok(())
    };
    let _tables = (partition::of_disk(&mut read_at, SIZE), partition::analyse(&mut read_at, None));
    let _label = partition::label::label(&mut read_at);
});
