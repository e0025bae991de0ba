//! The device's screen while the flasher works: plain text on the first virtual terminal, from start to end.
//!
//! The whole page is drawn each time: messages of the kernel and a login prompt come between. A screen that takes no text costs the job
//! nothing.

use std::fs::File;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::config::os_release::OsRelease;
use crate::config::paths::Paths;
use crate::disk::select::Target;
use crate::error::{Code, Effect, Error};
use crate::flash::job;
use crate::image::Image;
use crate::progress::sink::{Due, Moment, Sink, Snapshot};
use crate::progress::{Stage, bar, lines};
use crate::sys::command::Command;
use crate::sys::log::printable;
use crate::sys::machine::Machine;
use crate::sys::output::BoundedOutput;
use crate::sys::power::Shutdown;
use crate::sys::terminal;

const DRAW_INTERVAL: Duration = Duration::from_secs(1);

/// For the splash screen to go.
const SPLASH_LIMIT: Duration = Duration::from_secs(5);

/// Of a terminal that does not know its width.
const USUAL_COLUMNS: u16 = 80;

/// Below this many columns there is no column of labels.
const NARROW: usize = 36;

/// Colours and modes as at first, never dark, and no cursor (`console_codes(4)`).
const PREPARE: &str = "\u{1b}[0m\u{1b}[9;0]\u{1b}[14;0]\u{1b}[?25l\u{1b}[2J";
const HOME: &str = "\u{1b}[H";
/// The rest of the line, and of the screen.
const CLEAR_LINE: &str = "\u{1b}[K";
const CLEAR_REST: &str = "\u{1b}[J";

/// What is on the screen, where the device has one. Clones show the same page.
#[derive(Clone)]
pub(super) struct Screen(Option<Arc<Mutex<Page>>>);

struct Page {
    terminal: BoundedOutput<File>,
    columns: u16,
    title: String,
    /// What the device is, what is written, and to where: a label and a text each.
    facts: Vec<(&'static str, String)>,
    heading: String,
    /// Each is a line where it is short enough.
    text: Vec<String>,
    /// The result stays, whatever progress is still reported.
    has_ended: bool,
}

impl Screen {
    /// Shows nothing.
    #[must_use]
    pub(super) fn none() -> Self {
        Screen(None)
    }

    /// The screen of the device below the root of `paths`, without its splash screen.
    #[must_use]
    pub(super) fn open(paths: &Paths) -> Self {
        let root = paths.root();
        let terminal = match terminal::first(root) {
            Ok(terminal) => terminal,
            Err(e) => {
                tracing::debug!("no screen: {e}");
                return Screen::none();
            }
        };
        end_splash(paths);
        if let Err(e) = terminal::show_first(&terminal) {
            tracing::debug!("cannot show the first virtual terminal: {e}");
        }
        let release = std::fs::read_to_string(paths.at("/etc/os-release")).unwrap_or_default();
        let release = OsRelease::parse(&release);
        let name = release.get("PRETTY_NAME").or_else(|| release.get("NAME")).unwrap_or("balenaOS");
        let Machine { model, serial } = Machine::below(root);
        let device = [
            Some(model.unwrap_or_else(|| "unknown".to_owned())),
            serial.map(|s| format!("serial number {s}")),
        ];
        let device = device.into_iter().flatten().collect::<Vec<_>>().join(", ");
        let page = Page {
            columns: terminal::width(&terminal).unwrap_or(USUAL_COLUMNS),
            terminal: BoundedOutput::new(terminal),
            title: format!("Installer of {name}"),
            facts: vec![("device", device)],
            heading: "STARTING".to_owned(),
            text: vec!["It looks for the image, and for the disk to install to.".to_owned()],
            has_ended: false,
        };
        drop(page.terminal.line(PREPARE.as_bytes()));
        let screen = Screen(Some(Arc::new(Mutex::new(page))));
        screen.with(|_| ());
        screen
    }

    /// Shows the page as `change` leaves it.
    fn with(&self, change: impl FnOnce(&mut Page)) {
        let Some(page) = &self.0 else { return };
        let mut page = page.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut page);
        page.draw();
    }

    /// From which image what will be lost.
    pub(super) fn erases(&self, image: &Image, target: &Target) {
        let names = [&target.model, &target.serial].into_iter().flatten();
        let names: String = names.map(|name| format!(" {name}")).collect();
        let (name, size) = (target.name.display(), lines::size(target.size));
        self.with(|page| {
            page.facts.truncate(1);
            let stored = lines::size(image.stored_size);
            page.facts.push(("image", format!("{}, {stored}", image.path.display())));
            page.facts.push(("erases", format!("{name}{names}, {size}: all data on it is lost")));
        });
    }

    pub(super) fn says(&self, heading: impl Into<String>, text: &[&str]) {
        self.with(|page| page.say(heading.into(), text));
    }

    /// What was lost is no news any more.
    pub(super) fn done(&self, ending: Shutdown) {
        let next = match ending {
            Shutdown::PowerOff => {
                "The device switches off now. Take the installation medium out, and switch the device on."
            }
            Shutdown::Reboot => "The device restarts now. Take the installation medium out.",
        };
        self.with(|page| {
            page.has_ended = true;
            page.facts.retain(|(label, _)| *label != "erases");
            page.say("DONE".to_owned(), &["The system is installed.", next]);
        });
    }

    pub(super) fn failed(&self, e: &Error) {
        let heading = match (e.code(), e.effect()) {
            (Code::Aborted, _) => "ABORTED",
            (_, Effect::Refused) => "REFUSED",
            (_, Effect::Written) => "FAILED",
            (_, Effect::Completed) => "DONE, BUT",
        };
        let mut message = format!("{}.", e.message());
        if e.effect() == Effect::Refused && !message.contains(job::NOTHING_WRITTEN) {
            message += " Nothing was written.";
        }
        self.with(|page| {
            page.has_ended = true;
            page.say(format!("{heading}: {}", e.code_word()), &[&message, &format!("Remedy: {}.", e.hint())]);
        });
    }
}

impl Page {
    fn say(&mut self, heading: String, text: &[&str]) {
        self.heading = heading;
        self.text = text.iter().map(|&line| line.to_owned()).collect();
    }

    fn draw(&self) {
        drop(self.terminal.line(self.picture().as_bytes()));
    }

    fn picture(&self) -> String {
        let width = lines::width(Some(self.columns));
        let label = self.facts.iter().map(|(label, _)| label.len() + 3).max().unwrap_or(0);
        let mut all = lines::wrap_all(&self.title, width);
        all.push(String::new());
        for (name, text) in &self.facts {
            if width < NARROW {
                all.extend(lines::wrap_all(&format!("{name}: {text}"), width));
                continue;
            }
            let wrapped = lines::wrap_all(text, width.saturating_sub(label));
            let labels = std::iter::once(*name).chain(std::iter::repeat(""));
            all.extend(labels.zip(wrapped).map(|(name, line)| format!("{name:label$}{line}")));
        }
        all.push(String::new());
        all.extend(lines::wrap_all(&self.heading, width));
        for text in &self.text {
            all.push(String::new());
            all.extend(lines::wrap_all(text, width));
        }
        let all: String = all.iter().map(|line| format!("{}{CLEAR_LINE}\r\n", printable(line))).collect();
        format!("{HOME}{all}{CLEAR_REST}")
    }
}

impl Sink for Screen {
    fn show(&mut self, s: &Snapshot) -> Due {
        let heading = match s.stage {
            Stage::Check => "CHECKING THE IMAGE",
            Stage::Write => "WRITING: DO NOT SWITCH OFF",
            Stage::Verify => "READING BACK: DO NOT SWITCH OFF",
            _ => "WORKING",
        };
        if s.moment != Moment::End {
            self.with(|page| {
                if !page.has_ended {
                    page.say(heading.to_owned(), &[&bar::text(s, page.columns)]);
                }
            });
        }
        Due::after(DRAW_INTERVAL)
    }
}

/// The splash screen would cover the text; it is the same on an installed system (meta-balena #2359). Without it nothing happens.
fn end_splash(paths: &Paths) {
    let program =
        ["/usr/bin/plymouth", "/bin/plymouth"].map(|path| paths.at(path)).into_iter().find(|p| p.exists());
    let Some(program) = program else { return };
    match Command::new(program).arg("quit").limit(Some(SPLASH_LIMIT)).run(|_| ()) {
        Ok(end) => tracing::debug!("plymouth quit: {end}"),
        Err(e) => tracing::warn!("cannot end the splash screen: {e}"),
    }
}
