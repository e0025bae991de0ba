/// A longer line is split, so that no output can fill the memory.
pub const MAX_LINE_BYTES: usize = 8 << 10;

/// Lossy UTF-8, without line ends. Of a line that a program overwrites with `\r` (a progress counter) the last text remains.
#[derive(Default)]
pub(crate) struct Splitter {
    rest: Vec<u8>,
}

impl Splitter {
    pub(crate) fn feed(&mut self, bytes: &[u8], mut line: impl FnMut(String)) {
        for part in bytes.split_inclusive(|&b| b == b'\n') {
            let mut part = part;
            while !part.is_empty() {
                let space = (MAX_LINE_BYTES - self.rest.len()).min(part.len());
                let (now, later) = part.split_at(space);
                self.rest.extend_from_slice(now);
                part = later;
                if self.rest.last() == Some(&b'\n') {
                    self.rest.pop();
                    line(text(&self.rest));
                    self.rest.clear();
                } else if self.rest.len() >= MAX_LINE_BYTES {
                    let whole = whole_characters(&self.rest);
                    let tail = self.rest.split_off(whole);
                    line(text(&self.rest));
                    self.rest = tail;
                }
            }
        }
    }

    pub(crate) fn end(&mut self) -> Option<String> {
        let rest = std::mem::take(&mut self.rest);
        (!rest.is_empty()).then(|| text(&rest))
    }
}

fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().rposition(|&b| b != b'\r').map_or(0, |i| i + 1);
    let line = bytes.get(..end).unwrap_or_default();
    let shown = line.rsplit(|&b| b == b'\r').next().unwrap_or_default();
    String::from_utf8_lossy(shown).into_owned()
}

/// Length of `bytes` without an incomplete character at the end.
fn whole_characters(bytes: &[u8]) -> usize {
    match std::str::from_utf8(bytes) {
        Err(e) if e.error_len().is_none() && e.valid_up_to() > 0 => e.valid_up_to(),
        _ => bytes.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(chunks: &[&[u8]]) -> Vec<String> {
        let mut splitter = Splitter::default();
        let mut out = Vec::new();
        for chunk in chunks {
            splitter.feed(chunk, |l| out.push(l));
        }
        out.extend(splitter.end());
        out
    }

    #[test]
    fn lines_are_whole_however_they_arrive() {
        assert_eq!(lines(&[b"a\nb", b"c\n\n", b"d"]), ["a", "bc", "", "d"]);
        assert_eq!(lines(&[b"\xff\xc3", b"\xa4\n"]), ["\u{fffd}ä"]);
        assert_eq!(lines(&[b"a\n"]), ["a"]);
        assert_eq!(lines(&[]), [] as [&str; 0]);
    }

    #[test]
    fn of_a_counter_the_last_state_is_left() {
        assert_eq!(lines(&[b"1 %\r2 %\r3 %\r\ndone\r\n\r\r\n"]), ["3 %", "done", ""]);
    }

    #[test]
    fn long_lines_come_in_pieces_of_whole_characters() {
        let long = "ä".repeat(MAX_LINE_BYTES); // two bytes each: the cut would fall between them with one byte before
        let bytes = [b"x", long.as_bytes(), b"\nend"].concat();
        let got = lines(&bytes.chunks(1000).collect::<Vec<_>>());
        assert_eq!(got.last().unwrap(), "end");
        assert_eq!(got[..got.len() - 1].concat(), format!("x{long}"));
        assert!(got.iter().all(|l| l.len() <= MAX_LINE_BYTES) && got.len() >= 4, "{}", got.len());

        let garbage = vec![0xbf_u8; 3 * MAX_LINE_BYTES];
        let got = lines(&[&garbage]);
        assert_eq!(got.concat().chars().filter(|&c| c == '\u{fffd}').count(), 3 * MAX_LINE_BYTES);
    }
}
