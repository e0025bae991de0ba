//! `99-flash-bootloader`: writes the bootloaders that differ from those in the release's `/etc/copal/bootloaders.conf`.
//!
//! An undo does the same: it runs in the release that remains, whose own files are the older bootloaders.

use crate::bootloader::{Prepared, Write, prepare};
use crate::config::bootloaders_conf::{BootloadersConf, Loader, PATH};
use crate::config::paths::Paths;
use crate::error::{Code, Error, Result};
use crate::hooks::Context;
use crate::sys::signal::{self, SignalGuard};

pub fn run(context: &Context) -> Result<()> {
    match BootloadersConf::load(&context.paths.at(PATH))? {
        Some(conf) => write(&context.paths, &conf, context.during_update),
        None => {
            tracing::info!("no {PATH}: no bootloader to write");
            Ok(())
        }
    }
}

/// Writes what differs, in the order of the list. Checks everything before the first write: an update, and a set whose parts belong
/// together, are refused as a whole. Of other bootloaders, an undo writes those that it can.
pub fn write(paths: &Paths, conf: &BootloadersConf, during_update: bool) -> Result<()> {
    let all_or_none = conf.together || during_update;
    let (ready, mut first) = ready(paths, conf, all_or_none)?;
    refuse_overlaps(&ready)?;
    // A set must be complete before a signal may end the program: half of it may not boot.
    let signal_guard = SignalGuard::begin()
        .map_err(|e| Error::new(Code::Io, "cannot defer signals while bootloaders are written").because(e))?;
    let result = run_all(conf, &ready, all_or_none, &mut first);
    if result.is_ok() || signal::came().is_none() {
        signal_guard.release();
    }
    result?;
    first.map_or(Ok(()), Err)
}

fn run_all(
    conf: &BootloadersConf,
    ready: &[Ready<'_>],
    all_or_none: bool,
    first: &mut Option<Error>,
) -> Result<()> {
    for (loader, prepared) in ready {
        match prepared.run() {
            Ok(_) => {}
            Err(e) if all_or_none => return Err(explained(e, conf, loader)),
            Err(e) => keep(first, explained(e, conf, loader)),
        }
    }
    if conf.together { proved(ready) } else { Ok(()) }
}

type Ready<'a> = (&'a Loader, Prepared);

fn ready<'a>(
    paths: &Paths,
    conf: &'a BootloadersConf,
    all_or_none: bool,
) -> Result<(Vec<Ready<'a>>, Option<Error>)> {
    let (mut ready, mut first) = (Vec::new(), None);
    for loader in &conf.writes {
        let write = Write {
            device: loader.device.clone(),
            image: paths.at(&loader.image),
            offset: loader.offset().unwrap_or(u64::MAX),
        };
        match prepare(&write, paths, None).and_then(|p| p.ensure_writable().map(|()| p)) {
            Ok(prepared) => ready.push((loader, prepared)),
            Err(e) if all_or_none => return Err(e.and_also("no bootloader was written")),
            Err(e) => keep(&mut first, e),
        }
    }
    Ok((ready, first))
}

/// Each update would write two overlapping bootloaders again, and one of them would always be damaged.
fn refuse_overlaps(ready: &[Ready<'_>]) -> Result<()> {
    for (index, one) in ready.iter().enumerate() {
        for other in ready.iter().skip(index + 1) {
            if one.1.overlaps(&other.1) {
                let device = one.1.device().display();
                let text = format!(
                    "cannot write bootloaders: [{}] and [{}] overlap on {device}",
                    one.0.name, other.0.name
                );
                return Err(Error::new(Code::ConfInvalid, text).object(PATH).and_also("nothing was written"));
            }
        }
    }
    Ok(())
}

/// Reads a whole set back once more, after its last part is written.
fn proved(ready: &[Ready<'_>]) -> Result<()> {
    for (loader, prepared) in ready {
        if !prepared.compare()?.identical {
            let device = prepared.device().display();
            let text = format!("[{}] on {device} differs from what was written", loader.name);
            return Err(Error::new(Code::VerifyMismatch, text).object(device).after_write());
        }
    }
    Ok(())
}

fn explained(e: Error, conf: &BootloadersConf, loader: &Loader) -> Error {
    if !conf.together {
        return e;
    }
    let text =
        format!("[{}] and the bootloaders listed after it may not match those listed before it", loader.name);
    e.and_also(&text)
}

fn keep(first: &mut Option<Error>, e: Error) {
    match first {
        Some(_) => tracing::error!("{e}"),
        None => *first = Some(e),
    }
}
