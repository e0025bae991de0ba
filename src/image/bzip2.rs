//! bzip2 streams, as bzip2 1.0.8 writes and reads them.
//!
//! The decoder is copal's own: the maintained one in Rust (libbz2-rs-sys) has a licence of its own, is mostly `unsafe`,
//! and adds 30 KB to the program, four times as much as this one. It needs 3.7 MB at most: a block has 900 KB, with four
//! bytes for each byte.

use std::io::{self, BufRead};

/// Magic numbers of a block and of the end of a stream: the digits of pi, and of its square root.
const BLOCK: u64 = 0x3141_5926_5359;
const END: u64 = 0x1772_4538_5090;

const MAX_BITS: u32 = 20;

/// Symbols until the next code is used.
const GROUP: u32 = 50;

/// Some programs write more code numbers than that, which are never used.
const MAX_GROUPS: usize = 18_002;

#[derive(Default)]
pub(crate) struct Bzip2 {
    bits: Bits,
    most: usize,
    stream_sum: u32,
    block: Block,
}

impl Bzip2 {
    /// Puts at least one byte into `buf`, which is not empty. Returns 0 at the end of `from`, when every checksum matched.
    pub(crate) fn read(&mut self, from: &mut dyn BufRead, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            let n = self.block.read(buf)?;
            if n > 0 {
                return Ok(n);
            }
            if !self.next_block(from)? {
                return Ok(0);
            }
        }
    }

    fn next_block(&mut self, from: &mut dyn BufRead) -> io::Result<bool> {
        if self.most == 0 {
            if self.bits.is_at_end(from)? {
                return Ok(false);
            }
            let [b'B', b'Z', b'h', level @ b'1'..=b'9'] = self.bits.take(from, 32)?.to_be_bytes() else {
                return Err(damaged("bytes that are not a bzip2 stream follow"));
            };
            self.most = usize::from(level - b'0') * 100_000;
            self.stream_sum = 0;
        }
        let magic = u64::from(self.bits.take(from, 24)?) << 24 | u64::from(self.bits.take(from, 24)?);
        let sum = self.bits.take(from, 32)?;
        match magic {
            BLOCK => {
                self.block.sum = Some(sum);
                self.stream_sum = self.stream_sum.rotate_left(1) ^ sum;
                self.block.fill(&mut self.bits, from, self.most)?;
            }
            END if sum == self.stream_sum => {
                self.most = 0;
                self.bits.align();
            }
            END => return Err(damaged("the checksum of a bzip2 stream does not match")),
            _ => return Err(damaged("a bzip2 block has no header")),
        }
        Ok(true)
    }
}

/// Reads the input bit by bit, the highest bit of each byte first.
#[derive(Default)]
struct Bits {
    bits: u64,
    count: u32,
}

impl Bits {
    fn refill(&mut self, from: &mut dyn BufRead, n: u32) -> io::Result<()> {
        while self.count < n {
            let bytes = from.fill_buf()?;
            let mut taken = 0;
            for byte in bytes {
                if self.count > 56 {
                    break;
                }
                self.bits = self.bits << 8 | u64::from(*byte);
                self.count += 8;
                taken += 1;
            }
            if taken == 0 {
                break;
            }
            from.consume(taken);
        }
        Ok(())
    }

    fn take(&mut self, from: &mut dyn BufRead, n: u32) -> io::Result<u32> {
        self.refill(from, n)?;
        let value = self.peek(n);
        self.skip(n)?;
        Ok(value)
    }

    fn peek(&self, n: u32) -> u32 {
        let bits = if self.count < n { self.bits << (n - self.count) } else { self.bits >> (self.count - n) };
        u32::try_from(bits & ((1 << n) - 1)).unwrap_or(u32::MAX)
    }

    fn skip(&mut self, n: u32) -> io::Result<()> {
        self.count = self.count.checked_sub(n).ok_or(io::ErrorKind::UnexpectedEof)?;
        Ok(())
    }

    fn flag(&mut self, from: &mut dyn BufRead) -> io::Result<bool> {
        Ok(self.take(from, 1)? == 1)
    }

    fn align(&mut self) {
        self.count -= self.count % 8;
    }

    fn is_at_end(&mut self, from: &mut dyn BufRead) -> io::Result<bool> {
        self.refill(from, 1)?;
        Ok(self.count == 0)
    }
}

/// A decoded block, in the order before it was sorted.
#[derive(Default)]
struct Block {
    /// For each byte of the sorted text: the byte, and above it the place of the byte that follows it in the text.
    text: Vec<u32>,
    at: u32,
    left: usize,
    /// The last byte, and how often it came in a row.
    last: u8,
    same: u8,
    /// How often the last byte is repeated: after four in a row the text has a count.
    repeat: u8,
    sum: Option<u32>,
    found: u32,
}

impl Block {
    fn fill(&mut self, bits: &mut Bits, from: &mut dyn BufRead, most: usize) -> io::Result<()> {
        if bits.flag(from)? {
            return Err(damaged("a bzip2 block is randomised, as bzip2 wrote it before version 0.9.5"));
        }
        let start = bits.take(from, 24)?;
        let mut order = used_bytes(bits, from)?;
        let codes = bits.take(from, 3)?;
        let mut groups = groups(bits, from, codes)?.into_iter();
        let codes: io::Result<Vec<Code>> =
            (0..codes).map(|_| Code::read(bits, from, order.len() + 2)).collect();
        let codes = codes?;

        self.text.clear();
        self.text.reserve_exact(most);
        // A run is a number in base two with the digits one and two.
        let (mut run, mut digit, mut in_group, mut code) = (0usize, 1, 0, None);
        loop {
            if in_group == 0 {
                in_group = GROUP;
                code = groups.next().and_then(|g| codes.get(usize::from(g)));
            }
            in_group -= 1;
            let code: &Code = code.ok_or_else(|| damaged("a bzip2 block has too many symbols"))?;
            let symbol = usize::from(code.symbol(bits, from)?);
            if symbol < 2 {
                run += digit << symbol;
                digit <<= 1;
                if run > most {
                    return Err(too_long());
                }
                continue;
            }
            let first = order.first().copied().unwrap_or_default();
            self.push(first, std::mem::take(&mut run), most)?;
            digit = 1;
            if symbol > order.len() {
                break;
            }
            to_front(&mut order, symbol - 1);
            self.push(order.first().copied().unwrap_or_default(), 1, most)?;
        }
        self.unsort(start)
    }

    fn push(&mut self, byte: u8, times: usize, most: usize) -> io::Result<()> {
        if times > most - self.text.len().min(most) {
            return Err(too_long());
        }
        self.text.extend(std::iter::repeat_n(u32::from(byte), times));
        Ok(())
    }

    /// Inverts the Burrows-Wheeler transform. `start` is the place of the text's last byte.
    fn unsort(&mut self, start: u32) -> io::Result<()> {
        let mut places = [0u32; 256];
        for entry in &self.text {
            if let Some(count) = places.get_mut(usize::from(low_byte(*entry))) {
                *count += 1;
            }
        }
        let mut sum = 0;
        for place in &mut places {
            sum += std::mem::replace(place, sum);
        }
        for i in 0..u32::try_from(self.text.len()).unwrap_or(0) {
            let byte = self.entry(i).map_or(0, low_byte);
            if let Some(place) = places.get_mut(usize::from(byte))
                && let Some(entry) = self.text.get_mut(*place as usize)
            {
                *entry |= i << 8;
                *place += 1;
            }
        }
        let first = self.entry(start).ok_or_else(|| damaged("a bzip2 block starts outside of its data"))?;
        (self.at, self.left) = (first >> 8, self.text.len());
        (self.last, self.same, self.repeat, self.found) = (0, 0, 0, u32::MAX);
        Ok(())
    }

    fn entry(&self, place: u32) -> Option<u32> {
        self.text.get(place as usize).copied()
    }

    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut n = 0;
        for to in buf.iter_mut() {
            let Some(byte) = self.next() else { break };
            let high = low_byte(self.found >> 24);
            self.found = self.found << 8 ^ SUMS.get(usize::from(high ^ byte)).copied().unwrap_or_default();
            *to = byte;
            n += 1;
        }
        match self.sum {
            Some(sum) if n == 0 && !buf.is_empty() => {
                self.sum = None;
                if sum == !self.found {
                    Ok(0)
                } else {
                    Err(damaged("the checksum of a bzip2 block does not match"))
                }
            }
            _ => Ok(n),
        }
    }

    fn next(&mut self) -> Option<u8> {
        if self.same == 4 {
            (self.same, self.repeat) = (0, self.next_of_text()?);
        }
        if self.repeat > 0 {
            self.repeat -= 1;
            return Some(self.last);
        }
        let byte = self.next_of_text()?;
        self.same = if self.same > 0 && byte == self.last { self.same + 1 } else { 1 };
        self.last = byte;
        Some(byte)
    }

    fn next_of_text(&mut self) -> Option<u8> {
        self.left = self.left.checked_sub(1)?;
        let entry = self.entry(self.at)?;
        self.at = entry >> 8;
        Some(low_byte(entry))
    }
}

/// In ascending order. The block has one bit for each sixteen byte values, and then one for each of them.
fn used_bytes(bits: &mut Bits, from: &mut dyn BufRead) -> io::Result<Vec<u8>> {
    let sixteens = bits.take(from, 16)?;
    let mut used = Vec::with_capacity(256);
    for high in 0..16u8 {
        let ones = if sixteens >> (15 - high) & 1 == 1 { bits.take(from, 16)? } else { 0 };
        used.extend((0..16u8).filter(|low| ones >> (15 - low) & 1 == 1).map(|low| high << 4 | low));
    }
    if used.is_empty() { Err(damaged("a bzip2 block is empty")) } else { Ok(used) }
}

fn groups(bits: &mut Bits, from: &mut dyn BufRead, codes: u32) -> io::Result<Vec<u8>> {
    let mut order: Vec<u8> = (0..6).take(codes as usize).collect();
    let count = bits.take(from, 15)?;
    if !(2..=6).contains(&codes) || count == 0 {
        return Err(damaged("a bzip2 block has no codes"));
    }
    let mut groups = Vec::new();
    for _ in 0..count {
        let mut place = 0;
        while bits.flag(from)? {
            place += 1;
            if place == order.len() {
                return Err(damaged("a bzip2 block uses a code that it does not define"));
            }
        }
        to_front(&mut order, place);
        if groups.len() < MAX_GROUPS {
            groups.extend(order.first());
        }
    }
    Ok(groups)
}

fn to_front(order: &mut [u8], place: usize) {
    if let Some(&byte) = order.get(place) {
        order.copy_within(..place, 1);
        order.iter_mut().take(1).for_each(|first| *first = byte);
    }
}

/// Shorter codes come first; within one length, smaller symbols come first.
struct Code {
    lengths: Vec<Length>,
    symbols: Vec<u16>,
}

struct Length {
    bits: u32,
    /// All codes below it are of this length or shorter; in [`MAX_BITS`] bits.
    end: u32,
    /// The first code minus the place of its symbol.
    offset: u32,
}

impl Code {
    /// Each code length is stored as steps up and down from the one before.
    fn read(bits: &mut Bits, from: &mut dyn BufRead, symbols: usize) -> io::Result<Code> {
        let mut len = bits.take(from, 5)?;
        let mut lens = Vec::with_capacity(symbols);
        for _ in 0..symbols {
            loop {
                if !(1..=MAX_BITS).contains(&len) {
                    return Err(damaged("a bzip2 code has an invalid length"));
                }
                if !bits.flag(from)? {
                    break;
                }
                len = if bits.flag(from)? { len - 1 } else { len + 1 };
            }
            lens.push(len);
        }
        let mut code = Code { lengths: Vec::new(), symbols: Vec::with_capacity(symbols) };
        let mut next = 0u32;
        for bits in 1..=MAX_BITS {
            next <<= 1;
            let before = code.symbols.len();
            code.symbols.extend((0u16..).zip(&lens).filter(|(_, l)| **l == bits).map(|(symbol, _)| symbol));
            let offset = next.wrapping_sub(u32::try_from(before).unwrap_or(0));
            next += u32::try_from(code.symbols.len() - before).unwrap_or(0);
            if next > 1 << bits {
                return Err(damaged("a bzip2 code has too many symbols"));
            }
            if code.symbols.len() > before {
                code.lengths.push(Length { bits, end: next << (MAX_BITS - bits), offset });
            }
        }
        Ok(code)
    }

    fn symbol(&self, bits: &mut Bits, from: &mut dyn BufRead) -> io::Result<u16> {
        bits.refill(from, MAX_BITS)?;
        let ahead = bits.peek(MAX_BITS);
        let length = self.lengths.iter().find(|l| ahead < l.end);
        let symbol = length.and_then(|l| {
            let place = (ahead >> (MAX_BITS - l.bits)).wrapping_sub(l.offset);
            Some((l.bits, *self.symbols.get(place as usize)?))
        });
        let (used, symbol) = symbol.ok_or_else(|| damaged("a bzip2 block has a symbol without meaning"))?;
        bits.skip(used)?;
        Ok(symbol)
    }
}

fn low_byte(entry: u32) -> u8 {
    let [.., low] = entry.to_be_bytes();
    low
}

/// The polynomial of gzip, the highest bit first.
const SUMS: [u32; 256] = {
    let mut sums = [0; 256];
    let mut rest: &mut [u32] = &mut sums;
    let mut byte = 0u32;
    while let [sum, next @ ..] = rest {
        let mut value = byte << 24;
        let mut bit = 0;
        while bit < 8 {
            value = if value >> 31 == 1 { value << 1 ^ 0x04c1_1db7 } else { value << 1 };
            bit += 1;
        }
        *sum = value;
        byte += 1;
        rest = next;
    }
    sums
};

fn damaged(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

fn too_long() -> io::Error {
    damaged("a bzip2 block is longer than its stream allows")
}
