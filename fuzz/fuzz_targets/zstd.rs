//! zstd frames of every shape, sound and damaged, beside the C library and ruzstd.
//!
//! All three decoders return the content of a sound frame. If copal decodes a damaged frame, no other decoder may return different bytes, and at
//! least one of them must accept a frame with a checksum. Their verdicts on damaged frames differ otherwise: the C library does not check the end
//! of each Huffman stream.
#![no_main]

use std::io::{self, Read};

use copal::image::Image;
use copal::image::chunks::Piece;
use fastrand::Rng;
use libfuzzer_sys::fuzz_target;
use zstd_safe::{CCtx, CParameter, DCtx, DParameter, InBuffer, OutBuffer, zstd_sys::ZSTD_EndDirective};

/// As copal's largest window.
const WINDOW_LOG: u32 = 26;

/// How much more than its content a damaged frame may give before it is left alone.
const MOST_MORE: usize = 1 << 20;

fuzz_target!(|data: &[u8]| {
    let mut choose =
        Rng::with_seed(data.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
        }));
    let content = content(&mut choose, data);
    let sound = frame(&mut choose, &content);
    for read in [of_copal, of_c, of_ruzstd] {
        assert!(read(&sound, content.len()).is_ok_and(|read| read == content));
    }
    for _ in 0..3 {
        let damaged = damage(&mut choose, &sound);
        let most = content.len() + MOST_MORE;
        let (copal, c, ruzstd) = (of_copal(&damaged, most), of_c(&damaged, most), of_ruzstd(&damaged, most));
        if let Ok(bytes) = &copal {
            assert!([&c, &ruzstd].into_iter().flatten().all(|other| other == bytes), "other bytes");
            assert!(c.is_ok() || ruzstd.is_ok() || !has_checksum(&damaged), "only copal reads it");
        }
        assert!(
            copal.is_ok() || c.is_err() || ruzstd.is_err() || c != ruzstd,
            "only copal refuses it: {copal:?}"
        );
    }
});

/// The frame's header says so (RFC 8878, 3.1.1.1.1).
fn has_checksum(frame: &[u8]) -> bool {
    frame.get(4).is_some_and(|descriptor| descriptor & 4 != 0)
}

fn of_copal(frame: &[u8], most: usize) -> Result<Vec<u8>, String> {
    let path = std::env::temp_dir().join(format!("copal-fuzz-zstd-{}", std::process::id()));
    std::fs::write(&path, frame).expect("a file for the frame");
    let mut source = Image::open(&path).and_then(|image| image.source()).map_err(|e| e.to_string())?;
    let (mut all, mut buffer) = (Vec::new(), vec![0; 1 << 20]);
    loop {
        match source.next(&mut buffer).map_err(|e| e.to_string())? {
            Piece::Data(n) => all.extend_from_slice(&buffer[..n]),
            Piece::Zero(n) => all.resize(all.len() + n as usize, 0),
            Piece::End => return Ok(all),
        }
        if all.len() > most {
            return Err("it goes on".into());
        }
    }
}

fn of_ruzstd(mut frame: &[u8], most: usize) -> Result<Vec<u8>, String> {
    let mut decoder = ruzstd::decoding::FrameDecoder::new();
    decoder.set_max_window_size(1 << WINDOW_LOG);
    decoder.init(&mut frame).map_err(|e| e.to_string())?;
    let mut all = Vec::new();
    while !decoder.is_finished() {
        let one = ruzstd::decoding::BlockDecodingStrategy::UptoBlocks(1);
        decoder.decode_blocks(&mut frame, one).map_err(|e| e.to_string())?;
        decoder.by_ref().read_to_end(&mut all).map_err(|e: io::Error| e.to_string())?;
        if all.len() > most {
            return Err("it goes on".into());
        }
    }
    let checksum = decoder.get_checksum_from_data();
    let declared = decoder.content_size();
    if checksum.is_some() && checksum != decoder.get_calculated_checksum()
        || declared != 0 && declared != all.len() as u64
        || !frame.is_empty()
    {
        return Err("checksum, size, or bytes after its end".into());
    }
    Ok(all)
}

fn of_c(frame: &[u8], most: usize) -> Result<Vec<u8>, String> {
    let mut decoder = DCtx::create();
    decoder.set_parameter(DParameter::WindowLogMax(WINDOW_LOG)).expect("a window");
    let (mut all, mut buffer) = (Vec::new(), vec![0; 128 << 10]);
    let mut input = InBuffer::around(frame);
    loop {
        let mut output = OutBuffer::around(&mut buffer[..]);
        let left = decoder.decompress_stream(&mut output, &mut input).map_err(zstd_safe::get_error_name)?;
        let n = output.pos();
        all.extend_from_slice(&buffer[..n]);
        if left == 0 && input.pos() == frame.len() {
            return Ok(all);
        }
        if all.len() > most || left == 0 || n == 0 && input.pos() == frame.len() {
            return Err("it goes on, ends early, or bytes follow its end".into());
        }
    }
}

/// Runs, noise, texts and repetitions; some begin with what libFuzzer gives.
fn content(choose: &mut Rng, data: &[u8]) -> Vec<u8> {
    let most = [200, 5_000, 200_000, 200_000, 1_500_000][choose.usize(..5)];
    let len = choose.usize(..most);
    let mut content = data.to_vec();
    while content.len() < len {
        let part = choose.usize(1..70_000);
        match choose.u8(..6) {
            0 => content.extend((0..part).map(|_| choose.u8(..))),
            1 => content.resize(content.len() + part, choose.u8(..)),
            2 => {
                let letters = choose.u8(1..30);
                content.extend((0..part).map(|_| b'a' + choose.u8(..letters)));
            }
            3 => {
                let word: Vec<u8> = (0..choose.usize(1..40)).map(|_| choose.u8(..)).collect();
                content.extend(word.iter().cycle().take(part));
            }
            4 if !content.is_empty() => {
                let from = choose.usize(..content.len());
                content.extend_from_within(from..content.len().min(from + part));
            }
            _ => content.extend((0..part).map(|_| choose.u8(..) & choose.u8(..) & choose.u8(..))),
        }
    }
    content.truncate(len);
    content
}

/// At any level, with any window, in blocks of any size.
fn frame(choose: &mut Rng, content: &[u8]) -> Vec<u8> {
    let mut encoder = CCtx::create();
    let level = if choose.u8(..8) == 0 {
        choose.i32(-50..0)
    } else {
        choose.i32(1..=if content.len() > 300_000 { 9 } else { 22 })
    };
    let mut set = |parameter| {
        encoder.set_parameter(parameter).expect("a parameter");
    };
    set(CParameter::CompressionLevel(level));
    set(CParameter::ChecksumFlag(choose.bool()));
    set(CParameter::ContentSizeFlag(choose.bool()));
    set(CParameter::WindowLog(choose.u32(10..=WINDOW_LOG - 2)));
    set(CParameter::EnableLongDistanceMatching(choose.u8(..6) == 0));
    if choose.u8(..4) == 0 {
        set(CParameter::TargetCBlockSize(choose.u32(1_340..20_000)));
    }
    if choose.bool() {
        encoder.set_pledged_src_size(Some(content.len() as u64)).expect("a size");
    }
    // A flush ends a block.
    let step = if choose.u8(..3) == 0 {
        choose.usize(1..4_000).max(content.len() / 400 + 1)
    } else {
        content.len() + 1
    };
    let mut made =
        vec![0; zstd_safe::compress_bound(content.len()) + (content.len() / step + 1) * 32 + 1_024];
    let mut output = OutBuffer::around(&mut made[..]);
    let mut parts = content.chunks(step).peekable();
    while let Some(part) = parts.next() {
        let directive = if parts.peek().is_some() {
            ZSTD_EndDirective::ZSTD_e_flush
        } else {
            ZSTD_EndDirective::ZSTD_e_end
        };
        let mut input = InBuffer::around(part);
        while encoder.compress_stream2(&mut output, &mut input, directive).expect("room for it") != 0 {}
    }
    if content.is_empty() {
        let mut input = InBuffer::around(content);
        while encoder
            .compress_stream2(&mut output, &mut input, ZSTD_EndDirective::ZSTD_e_end)
            .expect("room for it")
            != 0
        {}
    }
    let len = output.pos();
    made.truncate(len);
    made
}

/// The magic number stays: without it, the file is no compressed image.
fn damage(choose: &mut Rng, sound: &[u8]) -> Vec<u8> {
    let mut frame = sound.to_vec();
    for _ in 0..choose.usize(1..4) {
        if frame.len() < 6 {
            break;
        }
        let end = if choose.bool() { frame.len().min(40) } else { frame.len() };
        let at = choose.usize(4..end);
        match choose.u8(..5) {
            0 => frame[at] ^= 1 << choose.u8(..8),
            1 => frame[at] = choose.u8(..),
            2 => frame.truncate(at),
            3 => drop(frame.remove(at)),
            _ => frame.insert(at, choose.u8(..)),
        }
    }
    frame
}
