//! `copal info`.

use std::path::PathBuf;

use clap::{Args, ValueHint};
use serde::Serialize;

use super::Ui;
use super::labelled::{columns, labelled};
use crate::engine::archive::{self, Archive, Content, Layout};
use crate::error::{Code, Error, Result};
use crate::image::digest::Digest256;
use crate::image::{self, Format, Info, Signer, StoredImage, System};
use crate::progress::lines::size;
use crate::sys::log::{printable, shown};

const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  the output failed
  2  wrong arguments
  3  the file cannot be read or is damaged, or a file beside it contradicts it";

const EXAMPLES: &str = "\
Examples:
  copal info os.img.zst
  copal info update.tar
  copal info os.img --verify-signature maker.crt
  copal info os.img --json | tail -n 1 | jq -r .info.version";

/// Show what an image or an update archive holds, and for which board
///
/// The whole file is read: an image with its block map (.bmap), its checksum
/// (.sha256) and, with a certificate, its signature (.sig), as a flash does.
#[derive(Debug, Clone, Args)]
#[command(verbatim_doc_comment, after_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
pub(super) struct InfoArgs {
    /// An image of a disk or an image archive: plain, gzip, xz, zstd or bzip2
    #[arg(value_hint = ValueHint::FilePath)]
    file: PathBuf,

    /// Check the signature, by this certificate
    #[arg(long, value_name = "CERT", value_hint = ValueHint::FilePath)]
    verify_signature: Option<PathBuf>,

    /// Progress and result as JSON lines on stdout
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
enum Found {
    Image(Info),
    Archive(ArchiveInfo),
}

#[derive(Serialize)]
struct ArchiveInfo {
    #[serde(flatten)]
    stored: StoredImage,
    /// Bytes without compression.
    size: u64,
    /// Bytes of the unpacked layers.
    unpacked: u64,
    layers: usize,
    layout: &'static str,
    id: Digest256,
    tags: Vec<String>,
    version: Option<String>,
    board: Option<String>,
    machine: Option<String>,
    delta: Option<Delta>,
}

#[derive(Serialize)]
struct Delta {
    base: Option<Digest256>,
    target: Option<Digest256>,
}

pub(super) fn run_info(args: &InfoArgs, ui: &Ui) -> Result<()> {
    let found = match archive::describe(&args.file, ui.progress())? {
        Some(_) if args.verify_signature.is_some() => {
            let file = args.file.display();
            let error =
                Error::new(Code::Usage, format!("{file} is an image archive, which has no signature"));
            return Err(error.object(file).with_hint("leave out --verify-signature"));
        }
        Some((stored, archive)) => Found::Archive(ArchiveInfo::new(stored, archive)),
        None => {
            let signer = args.verify_signature.as_deref().map(Signer::named).transpose()?;
            Found::Image(image::info(&args.file, signer, ui.progress())?)
        }
    };
    let rows = match &found {
        Found::Image(info) => of_image(info),
        Found::Archive(info) => of_archive(info),
    };
    let columns = columns();
    let lines = rows.iter().map(|(label, text)| labelled(label, text, columns));
    ui.result("info", &found, &lines.collect::<Vec<_>>().join("\n"));
    Ok(())
}

impl ArchiveInfo {
    fn new(stored: StoredImage, archive: Archive) -> ArchiveInfo {
        let System { version, board, .. } =
            archive.release.as_ref().map(System::of_release).unwrap_or_default();
        let (machine, delta) = match archive.content {
            Content::Image { machine, .. } => (machine, None),
            Content::Delta { base, target } => (None, Some(Delta { base, target })),
        };
        ArchiveInfo {
            stored,
            size: archive.size,
            unpacked: archive.unpacked,
            layers: archive.layers,
            layout: match archive.layout {
                Layout::Docker => "docker",
                Layout::Oci => "oci",
            },
            id: archive.id,
            tags: archive.tags,
            version,
            board,
            machine: machine.map(|machine| machine.to_string()),
            delta,
        }
    }
}

type Rows = Vec<(&'static str, String)>;

/// Path, compression, size.
fn of_file(label: &'static str, stored: &StoredImage, bytes: u64) -> Rows {
    let compression = match stored.format {
        Format::Raw => "not compressed".to_owned(),
        format => format!("compressed with {format} to {}", size(stored.stored_size)),
    };
    vec![
        (label, format!("{}, {compression}", shown(&stored.path))),
        ("size", format!("{}, {bytes} bytes", size(bytes))),
    ]
}

fn of_system(version: Option<&str>, board: Option<&str>, name: Option<&str>) -> Rows {
    let known = |text: Option<&str>| printable(text.unwrap_or("unknown")).into_owned();
    let name = name.map(|name| format!(" ({})", printable(name))).unwrap_or_default();
    vec![("version", known(version)), ("board", known(board) + &name)]
}

fn of_image(info: &Info) -> Rows {
    let mut rows = of_file("image", &info.stored, info.size);
    if info.goes_on {
        rows.push((
            "",
            "and more: it goes on after the end of its partition table, and is not read further".to_owned(),
        ));
    }
    if info.system.is_flasher {
        rows.push(("kind", "flasher: it installs the system to the board's internal disk".to_owned()));
    }
    let System { version, board, board_name, .. } = &info.system;
    rows.extend(of_system(version.as_deref(), board.as_deref(), board_name.as_deref()));
    let table = match (&info.table, &info.flaw) {
        (Some(table), _) => {
            let head = format!("{}, sectors of {} bytes", table.kind, table.sector_size);
            std::iter::once(head)
                .chain(table.partitions.iter().map(image::row))
                .collect::<Vec<_>>()
                .join("\n")
        }
        (None, flaw) => format!("none: {}", flaw.as_deref().unwrap_or_default()),
    };
    let digest = |digest: Option<Digest256>| digest.map_or("unknown".to_owned(), |digest| digest.to_string());
    rows.extend([("table", table), ("digest", digest(info.chunk_digest)), ("SHA-256", digest(info.sha256))]);
    let none = || "none".to_owned();
    let map = info.block_map.as_ref().map(|map| {
        let (mapped, all) = (size(map.mapped), size(info.size));
        let agrees = if info.goes_on { "not compared" } else { "the image agrees" };
        format!("{}, version {}: {mapped} of {all} hold data; {agrees}", shown(&map.file), map.version)
    });
    let checksum = info.checksum_file.as_ref().map(|file| format!("{}: right", shown(file)));
    let signature = match (&info.signed, &info.signature_file) {
        (Some(signed), Some(file)) => {
            Some(format!("{}: right, by {}, key {}", shown(file), shown(&signed.certificate), signed.key))
        }
        (_, file) => {
            file.as_ref().map(|file| format!("{}: not checked without --verify-signature", shown(file)))
        }
    };
    rows.extend([
        ("block map", map.unwrap_or_else(none)),
        ("checksum", checksum.unwrap_or_else(none)),
        ("signature", signature.unwrap_or_else(none)),
    ]);
    rows
}

fn of_archive(info: &ArchiveInfo) -> Rows {
    let mut rows = of_file("archive", &info.stored, info.size);
    rows.push(("layers", format!("{}, {} unpacked", info.layers, size(info.unpacked))));
    rows.extend(of_system(info.version.as_deref(), info.board.as_deref(), None));
    if let Some(machine) = &info.machine {
        rows.push(("processor", machine.clone()));
    }
    let tags = info.tags.iter().map(|tag| format!("\nnamed {}", printable(tag))).collect::<String>();
    rows.push(("image", format!("{}{tags}", info.id)));
    if let Some(Delta { base, target }) = &info.delta {
        let id = |id: &Option<Digest256>| id.map_or("an unknown image".to_owned(), |id| id.to_string());
        rows.extend([("delta of", id(base)), ("makes", id(target))]);
    }
    let layout = match info.layout {
        "oci" => "OCI layout: only an engine with containerd's image store loads it",
        _ => "docker save: every engine loads it",
    };
    rows.push(("format", layout.to_owned()));
    rows
}
