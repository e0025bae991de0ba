//! The order of a bootloader write: whatever instant the power fails at, no valid header stands before another's body.

use copal::bootloader::sequence::{Done, Sequence};
use copal::error::{Code, Effect};

use super::medium::{Fake, Fault, Op, Shape, apply};

const SIZE: usize = 40 * 1024;

/// Sectors of 512 and of 4096 bytes; NOR written by bytes and by words; pages that are not a power of two.
const SHAPES: [Shape; 5] = [
    Shape { unit: 512, stride: 2048, grain: None },
    Shape { unit: 4096, stride: 8192, grain: None },
    Shape { unit: 4096, stride: 4096, grain: Some(1) },
    Shape { unit: 4096, stride: 4096, grain: Some(16) },
    Shape { unit: 1056, stride: 1056, grain: Some(1056) },
];

/// One update: a device, the new image, where it goes.
#[derive(Debug, Clone)]
struct Case {
    shape: Shape,
    old: Vec<u8>,
    image: Vec<u8>,
    offset: usize,
    what: &'static str,
}

fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..len).map(|_| random.u8(1..0xff)).collect()
}

/// Devices that differ from the image everywhere, in places, or in their headers alone.
fn cases(shape: Shape) -> Vec<Case> {
    let mut all = Vec::new();
    let size = SIZE - SIZE % usize::try_from(shape.unit).unwrap();
    for (offset, len) in
        [(0, 300), (0, 512), (1024, 20_000), (1000, 9001), (4096, 8192), (4100, 4000), (3 * 1056, 5000)]
    {
        let mut image = noise(len, 1);
        if offset == 1000 {
            // Filling in front of the header.
            image[..5000].fill(0);
        }
        let old = noise(size, 2);
        let with = |at: usize, bytes: &[u8]| {
            let mut there = old.clone();
            there[offset..offset + len].copy_from_slice(&image);
            there[offset + at..offset + at + bytes.len()].copy_from_slice(bytes);
            there
        };
        let header = if offset == 1000 { 5000 } else { 0 };
        for (what, old) in [
            ("everything", old.clone()),
            ("the last byte", with(len - 1, &[0])),
            ("a byte of the header", with(header + 3, &[0])),
            ("a byte in the middle", with(len / 2, &[image[len / 2] ^ 0x10])),
            ("nothing", with(0, &[])),
            ("an erased header", with(header, &vec![0xff; 512.min(len - header)])),
        ] {
            all.push(Case { shape, old, image: image.clone(), offset, what });
        }
    }
    all
}

impl Case {
    fn end(&self) -> usize {
        self.offset + self.image.len()
    }

    fn goal(&self) -> Vec<u8> {
        let mut goal = self.old.clone();
        goal[self.offset..self.end()].copy_from_slice(&self.image);
        goal
    }

    fn run(&self, fake: &mut Fake) -> copal::error::Result<Done> {
        let size = fake.bytes.len() as u64;
        Sequence::new(fake, &self.image, self.offset as u64, size)?.run()
    }

    /// The first bytes of the new header.
    fn key(&self) -> std::ops::Range<usize> {
        self.key_of(&self.image)
    }

    /// The first bytes of the header of a loader at the image's place.
    fn key_of(&self, loader: &[u8]) -> std::ops::Range<usize> {
        let filling = loader.iter().take_while(|b| **b == 0).count();
        let first = self.offset + filling;
        let unit = usize::try_from(self.shape.unit).unwrap();
        let grain = usize::try_from(self.shape.grain.unwrap_or(1)).unwrap();
        first..(first + 512).next_multiple_of(grain).min(self.end()).min((first / unit + 1) * unit)
    }

    /// What must hold at every instant.
    #[track_caller]
    fn check(&self, state: &[u8], when: &str) {
        let (key, span) = (self.key(), self.offset..self.end());
        let goal = self.goal();
        let is = |other: &[u8], range: &std::ops::Range<usize>| state[range.clone()] == other[range.clone()];
        // The device may hold a loader without the filling that the image has in front.
        let bare = self.old[self.offset] != 0;
        let old_key = if bare { self.key_of(&self.old[span.clone()]) } else { key.clone() };
        let blank = |range: &std::ops::Range<usize>| state[range.clone()].iter().all(|b| *b == 0xff);
        // A header that is erased before the start does not count.
        let (old_header, new_header) = (is(&self.old, &old_key) && !blank(&old_key), is(&goal, &key));
        let (was, will) = (is(&self.old, &span), is(&goal, &span));
        let same =
            self.old[old_key.clone()] == goal[old_key.clone()] && self.old[key.clone()] == goal[key.clone()];
        let fine =
            if same { !old_header || was || will } else { (!old_header || was) && (!new_header || will) };
        assert!(
            fine,
            "{when}: a header over another's body; {:?} {}, {} at {}",
            self.shape,
            self.what,
            self.image.len(),
            self.offset
        );
        let around = |unit: usize| (span.start / unit * unit, span.end.div_ceil(unit) * unit);
        let (from, until) = match self.shape.grain {
            None => (span.start, span.end),
            Some(_) => around(usize::try_from(self.shape.unit).unwrap()),
        };
        let until = until.min(state.len());
        assert!(is(&self.old, &(0..from)) && is(&self.old, &(until..state.len())), "{when}: bytes around it");
    }
}

/// Everything that power lost during or before operation `at` may leave.
fn cuts(case: &Case, ops: &[Op], at: usize) -> Vec<Vec<u8>> {
    let nor = case.shape.grain.is_some();
    if nor { nor_cuts(case, ops, at) } else { disk_cuts(case, ops, at) }
}

/// A NOR chip has no cache; the operation under way is torn.
fn nor_cuts(case: &Case, ops: &[Op], at: usize) -> Vec<Vec<u8>> {
    let unit = usize::try_from(case.shape.unit).unwrap();
    let mut before = case.old.clone();
    for op in &ops[..at] {
        match op {
            Op::Write(offset, bytes) => apply(&mut before, *offset, bytes, true),
            Op::Erase(offset) => before[usize::try_from(*offset).unwrap()..][..unit].fill(0xff),
            Op::Flush => {}
        }
    }
    let mut all = vec![before.clone()];
    match &ops[at] {
        Op::Write(offset, bytes) => {
            for len in [1, 2, 16, 255, 256, 511, 512, bytes.len() / 2, bytes.len() - 1] {
                let mut torn = before.clone();
                apply(&mut torn, *offset, &bytes[..len.min(bytes.len())], true);
                all.push(torn);
            }
        }
        Op::Erase(offset) => {
            let block = usize::try_from(*offset).unwrap()..usize::try_from(*offset).unwrap() + unit;
            let half = block.start + unit / 2;
            let mut put = |range: std::ops::Range<usize>, byte: u8| {
                let mut torn = before.clone();
                torn[range].fill(byte);
                all.push(torn);
            };
            put(block.clone(), 0xff);
            put(block.clone(), 0);
            if case.shape.grain == Some(1) {
                put(block.start..half, 0xff);
                // Filled with zeroes or erased from the end on, the beginning still as it was.
                put(half..block.end, 0);
                put(half..block.end, 0xff);
                put(block.end - 1..block.end, 0);
            }
            let mut torn = before.clone();
            torn[block.clone()].copy_from_slice(&noise(unit, 1000 + at as u64));
            all.push(torn);
        }
        Op::Flush => {}
    }
    all
}

/// A disk keeps what was flushed, and any of the sectors written since.
fn disk_cuts(case: &Case, ops: &[Op], at: usize) -> Vec<Vec<u8>> {
    let flushed = ops[..at].iter().rposition(|op| *op == Op::Flush).map_or(0, |i| i + 1);
    let mut durable = case.old.clone();
    for op in &ops[..flushed] {
        if let Op::Write(offset, bytes) = op {
            apply(&mut durable, *offset, bytes, false);
        }
    }
    let unit = case.shape.unit;
    let sectors: Vec<(u64, &[u8])> = ops[flushed..=at]
        .iter()
        .filter_map(|op| if let Op::Write(offset, bytes) = op { Some((*offset, bytes)) } else { None })
        .flat_map(|(offset, bytes)| {
            let chunks = bytes.chunks(usize::try_from(unit).unwrap()).enumerate();
            chunks.map(move |(i, part)| (offset + i as u64 * unit, part))
        })
        .collect();
    let mut all = Vec::new();
    let mut random = fastrand::Rng::with_seed(at as u64);
    for kept in 0..12 {
        let mut state = durable.clone();
        for (i, (offset, part)) in sectors.iter().enumerate() {
            let keep = match kept {
                0 => false,
                1 => true,
                2 => i == 0,
                3 => i + 1 == sectors.len(),
                _ => random.bool(),
            };
            if keep {
                apply(&mut state, *offset, part, false);
            }
        }
        all.push(state);
    }
    all
}

#[test]
fn whenever_the_power_fails_no_header_stands_before_anothers_body_and_the_next_run_repairs_it() {
    let (mut instants, mut invalid) = (0, 0);
    for case in SHAPES.into_iter().flat_map(cases) {
        let mut fake = Fake::new(&case.shape, case.old.clone());
        let done = case.run(&mut fake).unwrap();
        assert_eq!(fake.bytes, case.goal(), "{case:?}");
        assert_eq!(done.changed, case.what != "nothing", "{}", case.what);
        let ops = fake.log;
        for at in 0..ops.len() {
            for state in cuts(&case, &ops, at) {
                instants += 1;
                case.check(&state, &format!("operation {at} of {}", ops.len()));
                invalid += usize::from(state[case.key()] != case.goal()[case.key()]);
                let mut again = Fake::new(&case.shape, state.clone());
                case.run(&mut again).unwrap();
                let goal = &case.goal()[case.offset..case.end()];
                assert_eq!(&again.bytes[case.offset..case.end()], goal, "{} after {at}", case.what);
                // What the cut left around it, the mending run leaves as well.
                assert_eq!(again.bytes[..case.offset], state[..case.offset]);
                assert_eq!(again.bytes[case.end()..], state[case.end()..]);
            }
        }
    }
    assert!(instants > 5000 && invalid > 1000, "{instants} {invalid}");
}

/// Which operations touch the header's first bytes.
fn touching(case: &Case, ops: &[Op]) -> Vec<usize> {
    let (key, unit) = (case.key(), case.shape.unit);
    let touches = |from: u64, len: u64| from < key.end as u64 && (key.start as u64) < from + len;
    let hit = |op: &Op| match op {
        Op::Write(offset, bytes) => touches(*offset, bytes.len() as u64),
        Op::Erase(offset) => touches(*offset, unit),
        Op::Flush => false,
    };
    ops.iter().enumerate().filter(|(_, op)| hit(op)).map(|(i, _)| i).collect()
}

#[test]
fn the_header_goes_first_and_comes_last() {
    for case in SHAPES
        .into_iter()
        .flat_map(cases)
        .filter(|c| c.what == "a byte in the middle" && c.image.len() == 20_000)
    {
        let mut fake = Fake::new(&case.shape, case.old.clone());
        case.run(&mut fake).unwrap();
        let (ops, hits) = (&fake.log, touching(&case, &fake.log));
        assert_eq!(hits[0], 0, "{case:?}");
        let last = ops.iter().rposition(|op| matches!(op, Op::Write(..))).unwrap();
        assert_eq!(hits.last(), Some(&last));
        // The body is flushed before, and the header after.
        assert!(ops[..last].contains(&Op::Flush) && ops[last..].contains(&Op::Flush));
    }
}

#[test]
fn nothing_is_written_or_erased_where_nothing_differs() {
    for case in SHAPES.into_iter().flat_map(cases) {
        let mut fake = Fake::new(&case.shape, case.goal());
        assert_eq!(case.run(&mut fake).unwrap(), Done::default());
        assert!(fake.log.is_empty() && fake.unlocked.is_empty());
    }
}

#[test]
fn only_erase_blocks_that_differ_are_rewritten() {
    let shape = SHAPES[2];
    let mut old = noise(SIZE, 4);
    let image = noise(6 * 4096, 5);
    old[4096..7 * 4096].copy_from_slice(&image);
    old[3 * 4096 + 7] ^= 1;
    let case = Case { shape, old, image, offset: 4096, what: "the third block" };
    let mut fake = Fake::new(&shape, case.old.clone());
    let done = case.run(&mut fake).unwrap();
    assert_eq!((done.changed, done.blocks_erased), (true, 2));
    let erased: Vec<&Op> = fake.log.iter().filter(|op| matches!(op, Op::Erase(_))).collect();
    assert_eq!(erased, [&Op::Erase(4096), &Op::Erase(3 * 4096)]);
    assert!(matches!(fake.unlocked.as_slice(), [range] if *range == (4096..4 * 4096)));
    assert_eq!(fake.relocked, 1);
    assert_eq!(fake.bytes, case.goal());
    // Where the header alone differs, the rest is left alone.
    let mut old = case.goal();
    old[4096] ^= 1;
    let mut fake = Fake::new(&shape, old);
    assert_eq!(case.run(&mut fake).unwrap().blocks_erased, 1);
    assert_eq!(fake.bytes, case.goal());
}

#[test]
fn an_error_of_any_call_ends_it_with_no_header_before_anothers_body() {
    for case in SHAPES.into_iter().flat_map(cases).filter(|c| c.what == "everything") {
        let mut clean = Fake::new(&case.shape, case.old.clone());
        case.run(&mut clean).unwrap();
        for call in 0..clean.calls {
            let mut fake =
                Fake { fault: Some(Fault::Call(call)), ..Fake::new(&case.shape, case.old.clone()) };
            let error = case.run(&mut fake).unwrap_err();
            case.check(&fake.bytes, &format!("call {call}"));
            let touched = fake.log.iter().any(|op| *op != Op::Flush);
            if touched {
                assert_eq!(error.effect(), Effect::Written, "{error}");
                assert!(error.message().contains("incomplete"), "{error}");
            }
            if error.effect() == Effect::Refused {
                assert_eq!(fake.bytes, case.old);
            }
            assert!(fake.relocked == 1 || !touched, "left unlocked by call {call}");
        }
    }
}

#[test]
fn a_write_that_was_not_kept_is_repeated_once() {
    for case in SHAPES.into_iter().flat_map(cases).filter(|c| c.what == "everything" && c.image.len() > 8000)
    {
        let mut clean = Fake::new(&case.shape, case.old.clone());
        case.run(&mut clean).unwrap();
        let writes = clean.log.iter().filter(|op| matches!(op, Op::Write(..))).count();
        for n in 0..writes {
            let mut fake =
                Fake { fault: Some(Fault::Corrupt(n)), ..Fake::new(&case.shape, case.old.clone()) };
            // Making the header invalid may have done that with a wrong byte as well.
            if let Err(e) = case.run(&mut fake) {
                assert_eq!((e.code(), n), (Code::VerifyMismatch, 0), "{e}");
                continue;
            }
            assert_eq!(fake.bytes, case.goal(), "write {n} of {writes}, {:?}", case.shape);
        }
        for at in [case.offset, case.offset + case.image.len() - 1] {
            let fault = Some(Fault::Worn(at as u64));
            let mut fake = Fake { fault, ..Fake::new(&case.shape, case.old.clone()) };
            let e = case.run(&mut fake).unwrap_err();
            assert_eq!((e.code(), e.effect()), (Code::VerifyMismatch, Effect::Written));
        }
    }
}

#[test]
fn an_image_that_does_not_fit_is_refused() {
    let shape = SHAPES[0];
    for (offset, len) in [(SIZE, 1), (SIZE - 1, 2), (0, 0), (usize::MAX - 10, 20)] {
        let mut fake = Fake::new(&shape, vec![1; SIZE]);
        let e = Sequence::new(&mut fake, &vec![3; len], offset as u64, SIZE as u64).err().unwrap();
        assert_eq!((e.code(), fake.calls), (Code::SpanOutsideDevice, 0));
    }
}
