//! `fatrw`: shell parts of the system read and write files on a boot partition with it.
//!
//! Names, arguments and the content that a reader gets are as in the original (0.2.21): each of the two programs can complete an
//! interrupted write of the other. The write itself is copal's own, [`file::replace`], which leaves no side file.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use clap::{Args, Command, CommandFactory as _, Parser, Subcommand};

use crate::error::{Code, Error, Result};
use crate::sys::file::{self, Content, Folder, Place};
use crate::sys::log;

/// Read and write files on FAT so that power may fail at any moment
#[derive(Debug, Parser)]
#[command(name = "fatrw", version = concat!(env!("CARGO_PKG_VERSION"), " (copal)"))]
struct Cli {
    #[command(subcommand)]
    verb: Verb,

    /// Log on stderr what is done
    #[arg(short, long, global = true)]
    debug: bool,

    /// Without free space, write in place: unsafe in a power cut
    #[arg(short, long = "unsafe", global = true)]
    unsafe_fallback: bool,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Print a file, repaired after an interrupted write
    Read {
        /// The file
        path: PathBuf,
    },
    /// Replace a file by what comes on stdin
    Write(WriteArgs),
    /// Replace a file by a copy of another one
    Copy {
        /// The file to copy
        source: PathBuf,

        /// The file to replace
        dest: PathBuf,
    },
}

#[derive(Debug, Args)]
struct WriteArgs {
    /// The file
    path: PathBuf,

    /// Permissions in octal, for file systems that have any
    #[arg(short, long, value_parser = mode)]
    mode: Option<u32>,
}

fn mode(text: &str) -> Result<u32, &'static str> {
    u32::from_str_radix(text, 8).ok().filter(|m| *m <= 0o7777).ok_or("give up to four octal digits")
}

#[must_use]
pub fn command() -> Command {
    Cli::command()
}

pub fn fatrw(args: &[OsString]) -> Result<()> {
    let argv = std::iter::once(OsString::from("fatrw")).chain(args.iter().cloned());
    let cli = match Cli::try_parse_from(argv) {
        Ok(cli) => cli,
        Err(e) if matches!(e.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            return print(e.render().to_string().as_bytes(), Path::new("fatrw"));
        }
        Err(e) => return Err(usage(&e)),
    };
    if cli.debug {
        log::at_least(tracing::Level::DEBUG);
    }
    match &cli.verb {
        Verb::Read { path } => read(path, cli.unsafe_fallback),
        Verb::Write(args) => write(args, cli.unsafe_fallback),
        Verb::Copy { source, dest } => copy(source, dest, cli.unsafe_fallback),
    }
}

/// The first paragraph of clap's message, on one line.
fn usage(e: &clap::Error) -> Error {
    let text = e.render().to_string();
    let first = match e.kind() {
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand => {
            "give one of read, write, copy"
        }
        _ => text.split("\n\n").next().unwrap_or_default(),
    };
    let message = first.strip_prefix("error: ").unwrap_or(first);
    let message = message.split_whitespace().collect::<Vec<_>>().join(" ");
    Error::new(Code::Usage, message).with_hint("run `fatrw --help`")
}

fn read(path: &Path, unsafe_fallback: bool) -> Result<()> {
    print(open(path, unsafe_fallback)?, path)
}

fn write(args: &WriteArgs, unsafe_fallback: bool) -> Result<()> {
    let mut input = Vec::new();
    io::stdin().lock().read_to_end(&mut input).map_err(|e| {
        Error::new(Code::Io, "cannot read stdin: nothing was written")
            .because(e)
            .with_hint("check the program whose output fatrw reads")
    })?;
    let content = match args.mode {
        Some(mode) => Content::BytesAs(&input, mode),
        None => Content::Bytes(&input),
    };
    put(&args.path, &content, unsafe_fallback)
}

fn copy(source: &Path, dest: &Path, unsafe_fallback: bool) -> Result<()> {
    let file = open(source, unsafe_fallback)?;
    let failed = |e| failure("read", source, e);
    if file.metadata().map_err(failed)?.len() > 0 {
        return put(dest, &Content::File(&file), unsafe_fallback);
    }
    // Empty, or in a file system such as /proc where every file has size 0.
    let mut bytes = Vec::new();
    (&file).read_to_end(&mut bytes).map_err(failed)?;
    put(dest, &Content::Bytes(&bytes), unsafe_fallback)
}

/// Opens the content that a reader of `path` must see.
fn open(path: &Path, unsafe_fallback: bool) -> Result<File> {
    let open = || {
        let (folder, name) = locate(path)?;
        tracing::debug!("reading {}", folder.path().join(&name).display());
        if unsafe_fallback
            && let Err(e) = file::commit_side_files(&folder, &name)
            && e.kind() == io::ErrorKind::StorageFull
        {
            tracing::warn!("no space for a second copy of {}: renaming its side file", path.display());
            file::rename_side_file(&folder, &name)?;
        }
        file::open_current(&folder, &name)
    };
    open().map_err(|e| failure("read", path, e))
}

/// Side files of `path` are removed.
fn put(path: &Path, content: &Content<'_>, unsafe_fallback: bool) -> Result<()> {
    let put = || {
        let (folder, name) = locate(path)?;
        file::sweep(&folder)?;
        let result = match file::replace(&folder, &name, content) {
            Err(e) if unsafe_fallback && e.kind() == io::ErrorKind::StorageFull => {
                tracing::warn!("no space for a second copy of {}: overwriting it in place", path.display());
                file::overwrite(&folder, &name, content).map_err(|in_place| match in_place.kind() {
                    // The file is missing, so nothing can be overwritten: report the first error.
                    io::ErrorKind::NotFound => e,
                    _ => in_place,
                })
            }
            result => result,
        };
        tracing::debug!("{}: {:?}", folder.path().join(&name).display(), result.as_ref().ok());
        result
    };
    put().map(drop).map_err(|e| failure("write", path, e))
}

/// Follows a link, so that the link remains.
fn locate(path: &Path) -> io::Result<(Folder, OsString)> {
    let place = Place::of(path)?;
    Ok((place.folder()?, place.name().to_owned()))
}

/// A reader may close the pipe early: that is not a failure.
fn print(mut from: impl io::Read, path: &Path) -> Result<()> {
    let mut out = io::stdout().lock();
    let mut buf = vec![0; 64 << 10];
    loop {
        let n = match from.read(&mut buf) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            result => result.map_err(|e| failure("read", path, e))?,
        };
        let (part, _) = buf.split_at(n);
        // `flush` at the end: a last line without a newline may still be in memory.
        match if part.is_empty() { out.flush() } else { out.write_all(part) } {
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            Err(e) => {
                return Err(
                    Error::new(Code::OutputFailed, format!("cannot print {}", path.display())).because(e)
                );
            }
            Ok(()) if part.is_empty() => return Ok(()),
            Ok(()) => {}
        }
    }
}

fn failure(verb: &str, path: &Path, e: io::Error) -> Error {
    let hint = match e.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::IsADirectory | io::ErrorKind::InvalidInput => {
            Some("name a regular file in an existing folder")
        }
        io::ErrorKind::StorageFull => Some("free space for a second copy on its file system"),
        io::ErrorKind::ReadOnlyFilesystem => Some("mount its file system read-write"),
        _ => None,
    };
    let code = if e.kind() == io::ErrorKind::PermissionDenied { Code::NotRoot } else { Code::Io };
    let error =
        Error::new(code, format!("cannot {verb} {}", path.display())).object(path.display()).because(e);
    match hint {
        Some(hint) => error.with_hint(hint),
        None => error,
    }
}
