use std::io::{self, Read};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bollard::models::BuildInfo;
use bollard::query_parameters::ImportImageOptionsBuilder;
use bytes::Bytes;
use futures_util::{Stream, stream};

use super::failure::{Failure, Why};
use super::layers::Layers;
use super::{Engine, Image, Progress, SOON, watch};
use crate::engine::archive::{self, Archive, Content, Fault, Layout, Unpacked};
use crate::error::{Code, Error, Result};
use crate::image;
use crate::job::Stage;
use crate::progress::Silent;

const PIECE_BYTES: usize = 64 << 10;

/// Bytes of messages; the rest is ignored. Those that matter are a few lines.
const MOST_TEXT: usize = 64 << 10;

impl Engine {
    /// Whether this engine can load `archive`. The check runs before the first change.
    pub fn check_loadable(&self, archive: &Archive) -> Result<()> {
        if archive.layout == Layout::Docker {
            return Ok(());
        }
        let what = "cannot ask the container engine how it keeps images";
        let info = self.unless_signal(SOON, self.docker.info()).map_err(|e| e.during(what))?;
        // moby reports it when containerd stores the images (daemon/containerd/service.go), and only then reads that layout.
        let status = info.driver_status.unwrap_or_default();
        if status.iter().flatten().any(|word| word.starts_with("io.containerd.snapshotter")) {
            return Ok(());
        }
        let text = "the archive has an index.json (OCI), but no manifest.json, and the container engine loads no such archive";
        Err(Error::new(Code::ImageArchiveInvalid, text).with_hint("save the image with `docker save`"))
    }

    /// Sends the archive piece by piece; again from its start if the engine dies meanwhile.
    pub fn load(&self, archive: &image::Image, progress: &mut dyn FnMut(&Progress)) -> Result<Image> {
        self.again(|| {
            self.load_once(&archive.path, archive, progress).map_err(|e| {
                let passes = e.code() == Code::EngineUnreachable;
                (Box::new(e), passes)
            })
        })
    }

    fn load_once(
        &self,
        archive: &Path,
        image: &image::Image,
        progress: &mut dyn FnMut(&Progress),
    ) -> Result<Image> {
        let what = format!("cannot load the image archive {}", archive.display());
        let (file, total, fault) = readable(image)?;
        let upload = Upload::default();
        let said = self.long(self.feed(file, total, &upload, progress));
        // The engine may have loaded bytes that were not checked, or failed because of them.
        image.refuse_changed()?;
        if let Some(e) = fault.as_error(archive) {
            return Err(e);
        }
        if let Some(e) = upload.broken() {
            return Err(Error::new(Code::Io, what).object(archive.display()).because(e));
        }
        let said = said.map_err(|e| {
            let code = match () {
                () if e.lacks_base() => Code::DeltaBaseMissing,
                () if blames_archive(&e) => Code::ImageArchiveInvalid,
                () => Code::EngineFailed,
            };
            e.coded(code, &what).object(archive.display())
        })?;
        match said.loaded().as_slice() {
            [name] => self.image(name),
            [] if said.is_there_already() => match archive::inspect(image, u64::MAX, &[])?.content {
                Content::Delta { target: Some(id), .. } => self.image(&format!("sha256:{id}")),
                _ => Err(Error::new(
                    Code::EngineFailed,
                    format!("{what}: the engine reports that it has the image, but not which"),
                )),
            },
            [] => Err(Error::new(
                Code::EngineFailed,
                format!("{what}: the engine does not report that it loaded an image"),
            )),
            several => Err(Error::new(
                Code::ImageArchiveInvalid,
                format!("{what}: it holds more than one image or name: {}", several.join(", ")),
            )),
        }
        .map_err(|e| e.object(archive.display()))
    }

    async fn feed(
        &self,
        file: Box<dyn Read + Send>,
        total: Option<u64>,
        upload: &Upload,
        progress: &mut dyn FnMut(&Progress),
    ) -> Result<Said, Failure> {
        let options = ImportImageOptionsBuilder::new().quiet(false).build();
        let mut answers = self.docker.import_image_stream(options, upload.pieces(file), None);
        let mut said = Said::default();
        let mut layers = Layers::default();
        let mut sent = 0;
        loop {
            let answer = {
                let tick = || upload.advance(&mut sent, total, progress);
                watch::next(&self.docker, self.timeouts, None, &mut answers, tick).await
            };
            // A fast engine answers between two ticks.
            upload.advance(&mut sent, total, progress);
            match answer {
                Ok(Some(answer)) => {
                    if let Some(p) = said.take(&answer, &mut layers, total.unwrap_or(sent)) {
                        progress(&p);
                    }
                }
                Ok(None) => return Ok(said),
                Err(e) if e.is_loose_end() && (!said.loaded().is_empty() || said.is_there_already()) => {
                    return Ok(said);
                }
                Err(e) => return Err(e),
            }
        }
    }

    /// Looks up the image's ID. All later calls use it.
    pub(super) fn image(&self, name: &str) -> Result<Image> {
        let what = format!("cannot find the image {name}, which was just fetched");
        let found = self.unless_signal(SOON, self.docker.inspect_image(name));
        let found = found.map_err(|e| e.during(&what))?;
        match found.id.filter(|id| id.starts_with("sha256:")) {
            Some(id) => Ok(Image {
                reference: name.to_owned(),
                id,
                size: found.size.and_then(|s| u64::try_from(s).ok()).unwrap_or(0),
            }),
            None => Err(Error::new(Code::EngineFailed, format!("{what}: the engine does not report its ID"))),
        }
    }
}

/// The archive as it is sent, with its length if known. Plain, gzip and bzip2 are sent unchanged; xz and zstd are unpacked here: moby 20.10
/// cannot read zstd, and needs a program for xz that a device may lack.
fn readable(image: &image::Image) -> Result<(Box<dyn Read + Send>, Option<u64>, Fault)> {
    match image.format {
        image::Format::Xz | image::Format::Zstd => {
            let (unpacked, fault) = Unpacked::open(image, &Silent)?;
            Ok((Box::new(unpacked), None, fault))
        }
        image::Format::Raw | image::Format::Gzip | image::Format::Bzip2 => {
            // The open file that was checked: an engine that restarts empties its temporary folder, where the archive may be.
            Ok((Box::new(image.stored()?), Some(image.stored_size), Fault::default()))
        }
    }
}

#[derive(Clone, Default)]
struct Upload {
    sent: Arc<AtomicU64>,
    failed: Arc<Mutex<Option<io::Error>>>,
}

impl Upload {
    /// Reading blocks the only thread for the time of one piece.
    fn pieces(&self, file: Box<dyn Read + Send>) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
        let upload = self.clone();
        stream::unfold(Some(file), move |file| {
            let upload = upload.clone();
            async move {
                let mut file = file?;
                let mut piece = vec![0; PIECE_BYTES];
                match read(&mut *file, &mut piece) {
                    Ok(0) => None,
                    Ok(n) => {
                        piece.truncate(n);
                        upload.sent.fetch_add(n as u64, Ordering::Relaxed);
                        Some((Ok(Bytes::from(piece)), Some(file)))
                    }
                    Err(e) => {
                        let shown = io::Error::new(e.kind(), e.to_string());
                        *upload.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(e);
                        Some((Err(shown), None))
                    }
                }
            }
        })
    }

    fn advance(&self, sent: &mut u64, total: Option<u64>, progress: &mut dyn FnMut(&Progress)) -> bool {
        let now = self.sent.load(Ordering::Relaxed);
        let moved = now != *sent;
        if moved {
            *sent = now;
            progress(&Progress { stage: Stage::Load, done: now, total });
        }
        moved
    }

    fn broken(&self) -> Option<io::Error> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

fn read(file: &mut dyn Read, piece: &mut [u8]) -> io::Result<usize> {
    loop {
        match file.read(piece) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

#[derive(Default)]
struct Said {
    text: String,
}

impl Said {
    /// The engine names a layer when it begins it. Nearly all bytes of the archive, `whole` of them, are layers.
    fn take(&mut self, answer: &BuildInfo, layers: &mut Layers, whole: u64) -> Option<Progress> {
        if let Some(text) = &answer.stream
            && self.text.len() + text.len() <= MOST_TEXT
        {
            self.text.push_str(text);
        }
        let id = answer.id.as_deref()?;
        layers.complete_before(Stage::Unpack, id);
        let known = layers.update(Stage::Unpack, id, answer.progress_detail.as_ref()?)?;
        Some(Progress { total: known.total.map(|t| t.max(whole)), ..known })
    }

    /// The image of the delta exists: an earlier try came so far before the engine died (balenaEngine, image/tarexport/load.go).
    fn is_there_already(&self) -> bool {
        self.text.contains("Target image already exists locally")
    }

    /// The names, or else IDs, of the loaded images (moby, image/tarexport/load.go), each once.
    fn loaded(&self) -> Vec<&str> {
        let mut names = Vec::new();
        for line in self.text.lines() {
            let name =
                ["Loaded image: ", "Loaded image ID: "].iter().find_map(|p| line.trim().strip_prefix(p));
            names.extend(name.map(str::trim).filter(|n| !n.is_empty() && !names.contains(n)));
        }
        names
    }
}

/// Whether the failure is the archive's: moby's messages about a damaged or invalid one.
fn blames_archive(failure: &Failure) -> bool {
    const WORDS: [&str; 10] = [
        "archive/tar",
        "unexpected eof",
        "invalid tar header",
        "manifest.json",
        "/repositories: no such file",
        "invalid manifest",
        "invalid diffid",
        "invalid reference format",
        "gzip: invalid",
        "unrecognized image format",
    ];
    let text = failure.text.to_ascii_lowercase();
    matches!(failure.why, Why::Reported | Why::Refused(_)) && WORDS.iter().any(|w| text.contains(w))
}
