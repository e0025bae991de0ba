//! The guest's screen and keyboard, through QEMU's monitor.

use std::collections::HashMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ChildStdin;
use std::time::{Duration, Instant};

pub(crate) struct Monitor<'a> {
    /// Where the guest's files are.
    pub(super) folder: &'a Path,
    pub(super) commands: &'a mut ChildStdin,
    /// A file with all that it answers.
    pub(super) answers: &'a Path,
    /// How many answers there are to what was asked before.
    pub(super) answered: &'a mut usize,
}

impl Monitor<'_> {
    /// The host's side of the guest's `/host`.
    pub(crate) fn host(&self) -> PathBuf {
        self.folder.join("host")
    }

    /// Presses a key and lets it go, by its name in QEMU (`ret`, `a`).
    pub(crate) fn press(&mut self, key: &str) {
        let keys = format!("{{\"keys\":[{{\"type\":\"qcode\",\"data\":\"{key}\"}}]}}");
        assert!(self.command("send-key", &keys), "QEMU has ended");
    }

    /// What the screen shows now; `None` when the guest is off.
    pub(crate) fn picture(&mut self) -> Option<Picture> {
        let path = self.folder.join("picture");
        let there = self.command("screendump", &format!("{{\"filename\":\"{}\"}}", path.display()));
        there.then(|| Picture::parse(&std::fs::read(path).unwrap()))
    }

    fn command(&mut self, name: &str, arguments: &str) -> bool {
        let line = format!("{{\"execute\":\"{name}\",\"arguments\":{arguments}}}\n");
        if self.commands.write_all(line.as_bytes()).is_err() {
            return false;
        }
        *self.answered += 1;
        let end = Instant::now() + Duration::from_secs(60);
        while Instant::now() < end {
            let answers = std::fs::read_to_string(self.answers).unwrap_or_default();
            assert!(!answers.contains("\"error\""), "{line}{answers}");
            // One more: the first was to the greeting.
            if answers.matches("\"return\"").count() > *self.answered {
                return true;
            }
            if answers.contains("\"SHUTDOWN\"") {
                return false;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("QEMU does not answer {name}");
    }
}

/// A screen in text mode: which pixels are lit.
pub(crate) struct Picture {
    width: usize,
    lit: Vec<bool>,
}

/// A letter of VGA's text mode, in pixels.
const CELL: (usize, usize) = (9, 16);
const COLUMNS: usize = 80;

impl Picture {
    /// Of a PPM.
    fn parse(data: &[u8]) -> Picture {
        let mut words = data.splitn(5, u8::is_ascii_whitespace);
        let mut word = || words.next().unwrap();
        assert_eq!(word(), b"P6");
        let mut number = || std::str::from_utf8(word()).unwrap().parse::<usize>().unwrap();
        let (width, _height, _most) = (number(), number(), number());
        let pixels = words.next().unwrap();
        Picture { width, lit: pixels.chunks_exact(3).map(|rgb| rgb.iter().any(|c| *c > 0)).collect() }
    }

    fn cell(&self, column: usize, row: usize) -> Vec<bool> {
        let line = |y: usize| {
            let from = (row * CELL.1 + y) * self.width + column * CELL.0;
            self.lit[from..from + CELL.0].iter().copied()
        };
        (0..CELL.1).flat_map(line).collect()
    }

    fn rows(&self) -> usize {
        assert_eq!(self.width, COLUMNS * CELL.0, "it is in another mode than 80 columns of text");
        self.lit.len() / self.width / CELL.1
    }
}

/// Which picture is which letter: learnt from a screen whose text is known.
pub(crate) struct Font(HashMap<Vec<bool>, char>);

/// What a guest must print at the top of its screen to have its letters learnt: all of ASCII that can be seen.
pub(crate) const ALPHABET: &str =
    "!\"#$%&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnop\r\nqrstuvwxyz{|}~";

impl Font {
    pub(crate) fn learn(picture: &Picture) -> Font {
        picture.rows();
        let mut known = HashMap::from([(vec![false; CELL.0 * CELL.1], ' ')]);
        for (row, line) in ALPHABET.lines().enumerate() {
            for (column, letter) in line.chars().enumerate() {
                let before = known.insert(picture.cell(column, row), letter);
                assert_eq!(before, None, "{letter} looks like another letter: nothing is on the screen yet?");
            }
        }
        Font(known)
    }

    /// The text on the screen; `?` for what is no letter.
    pub(crate) fn read(&self, picture: &Picture) -> String {
        let row = |row| {
            let letter = |column| *self.0.get(&picture.cell(column, row)).unwrap_or(&'?');
            let line: String = (0..COLUMNS).map(letter).collect();
            line.trim_end().to_owned() + "\n"
        };
        (0..picture.rows()).map(row).collect::<String>().trim_end().to_owned()
    }
}
