//! The inputs of a flash: the board's configuration, `config.json`, the image and the target.

use std::cell::RefCell;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use crate::config::config_json::{self, ConfigJson};
use crate::config::flasher_conf::FlasherConf;
use crate::config::paths::Paths;
use crate::config::pattern;
use crate::disk::Facts;
use crate::disk::select::{self, ImageSize, Rejection, Target};
use crate::error::{Code, Error, Result};
use crate::flash::job::{self, Agree, Prepared};
use crate::image::{self, Checks, Image, Signer};
use crate::progress::Progress;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FlashMode {
    /// As `resin-init-flasher`: the image, then all that the configuration asks for.
    #[default]
    Installation,
    /// The image alone: all is named, or the target is a plain file. A configuration is checked as for an installation.
    Image,
    /// The image alone, whatever the configuration asks for.
    ImageOnly,
}

impl FlashMode {
    /// By what the caller names, and whether the named target is a block device. An installation needs a configuration and a disk.
    fn of(conf: bool, image: bool, target: Option<bool>, image_only: bool) -> FlashMode {
        let all_named = image && target.is_some() && !conf;
        let to_a_file = target == Some(false);
        match (image_only, all_named || to_a_file) {
            (true, _) => FlashMode::ImageOnly,
            (false, true) => FlashMode::Image,
            (false, false) => FlashMode::Installation,
        }
    }
}

#[derive(Debug, Clone, Default)]
pub struct FlashRequest {
    pub paths: Paths,
    conf: Option<PathBuf>,
    pub config_json: Option<PathBuf>,
    image: Option<PathBuf>,
    target: Option<PathBuf>,
    pub checks: Checks,
    mode: FlashMode,
}

impl FlashRequest {
    /// From the environment, with everything in its usual place.
    #[must_use]
    pub(crate) fn of_environment(paths: Paths) -> Self {
        let config_json = std::env::var_os("CONFIG_PATH").filter(|p| !p.is_empty()).map(Into::into);
        FlashRequest { paths, config_json, ..FlashRequest::default() }
    }

    /// Decides the mode, by what the caller names.
    #[must_use]
    pub(crate) fn naming(
        self,
        conf: Option<PathBuf>,
        image: Option<PathBuf>,
        target: Option<PathBuf>,
        image_only: bool,
    ) -> Self {
        let is_disk = target.as_deref().map(is_block_device);
        let mode = FlashMode::of(conf.is_some(), image.is_some(), is_disk, image_only);
        FlashRequest { conf, image, target, mode, ..self }
    }

    #[must_use]
    pub fn mode(&self) -> FlashMode {
        self.mode
    }

    /// Refuses an image or a target that is named alone where no configuration names the other.
    pub(super) fn check_named(&self) -> Result<()> {
        let (missing, what, text) = match (&self.image, &self.target) {
            (Some(image), None) => {
                ("--target", "the disk or the file", format!("cannot write {}", image.display()))
            }
            (None, Some(target)) => ("--image", "the image", format!("cannot flash {}", target.display())),
            _ => return Ok(()),
        };
        match self.flasher_conf().symlink_metadata() {
            Err(e) if e.kind() == io::ErrorKind::NotFound && self.conf.is_none() => {}
            _ => return Ok(()),
        }
        let hint =
            format!("name {what} with {missing}; only a flasher medium has a configuration that names one");
        Err(Error::new(Code::Usage, format!("{text}: no {missing} is given")).object(missing).with_hint(hint))
    }

    #[must_use]
    pub fn flasher_conf(&self) -> PathBuf {
        self.conf.clone().unwrap_or_else(|| self.paths.flasher_conf())
    }
}

fn is_block_device(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|m| m.file_type().is_block_device())
}

#[derive(Debug)]
pub(super) struct Inputs {
    /// `None` where image and target were both named.
    pub(super) conf: Option<FlasherConf>,
    /// `None` where there is no `config.json`.
    pub(super) config: Option<ConfigJson>,
    target: TargetSource,
    pub(super) image: Image,
}

impl Inputs {
    pub(super) fn read(request: &FlashRequest) -> Result<Inputs> {
        request.check_named()?;
        let conf = match (&request.conf, &request.image, &request.target) {
            (None, Some(_), Some(_)) => None,
            _ => Some(FlasherConf::load(&request.flasher_conf())?),
        };
        if let Some(conf) = conf.as_ref().filter(|_| request.mode != FlashMode::ImageOnly) {
            conf.check_medium(&request.paths.boot())?;
        }
        let config = if conf.is_some() { config_json(request)? } else { None };
        let target = match &request.target {
            Some(path) => TargetSource::Named(path.clone()),
            None => TargetSource::Patterns(
                configured_patterns(conf.as_ref(), config.as_ref())?,
                RefCell::default(),
            ),
        };
        let image = match (&request.image, conf.as_ref().and_then(|c| c.balena_image.as_deref())) {
            (Some(path), _) => Image::open_named(path)?,
            (None, Some(name)) => image::find(&request.paths, name)?,
            (None, None) => {
                return Err(Error::new(
                    Code::ImageMissing,
                    "no image is named: the configuration has no BALENA_IMAGE",
                )
                .with_hint(image::CORRECT_NAME));
            }
        };
        Ok(Inputs { conf, config, target, image })
    }

    pub(super) fn target(&self, paths: &Paths) -> Result<Target> {
        self.target.choose(paths, &Facts::gather(paths)?, &self.image.path, None)
    }

    /// Checks image and target, and makes the plan. Writes nothing. `may_encrypt`: the image's digest may be compared with a signature
    /// afterwards, and its parts with their digests.
    pub(super) fn prepare(
        self,
        request: &FlashRequest,
        may_encrypt: bool,
        agree: Option<Agree<'_>>,
        progress: &dyn Progress,
    ) -> Result<Prepared> {
        let Inputs { conf, config, target, image } = self;
        let (paths, file) = (&request.paths, image.path.clone());
        let mut checks = request.checks.clone();
        checks.sha256 |= may_encrypt && !checks.single_pass;
        let owner = config.filter(|_| request.mode != FlashMode::ImageOnly);
        if checks.signer.is_none() && owner.map_or(Ok(false), |config| config.installer_verify())? {
            checks.signer = Some(Signer::of_medium(paths)?);
        }
        let choose = |facts: &Facts, size: Option<ImageSize>| {
            let target = target.choose(paths, facts, &file, size)?;
            // Once, before the image is read: only then is its size unknown.
            if conf.is_some() && size.is_none() {
                refuse_foreign_boot(request, facts)?;
            }
            Ok(target)
        };
        job::prepare(paths, image, &choose, agree, &checks, progress)
    }
}

#[derive(Debug)]
enum TargetSource {
    Named(PathBuf),
    /// With the rejections that were logged: a run repeats the choice while it waits, and before it writes.
    Patterns(String, RefCell<Vec<Rejection>>),
}

impl TargetSource {
    fn choose(&self, paths: &Paths, facts: &Facts, image: &Path, size: Option<ImageSize>) -> Result<Target> {
        match self {
            TargetSource::Named(path) => select::named(path, facts, Some(image), size),
            TargetSource::Patterns(list, logged) => {
                let patterns = pattern::expand(list)?;
                let dev = paths.at("/dev");
                let candidates =
                    select::candidates(&patterns, paths, |p| p.matches(&dev), pattern::Pattern::is_md)?;
                Ok(select::choose_again(&candidates, facts, size, &mut logged.borrow_mut())?.target)
            }
        }
    }
}

/// It must exist where `CONFIG_PATH` names it, or where an installation copies it.
fn config_json(request: &FlashRequest) -> Result<Option<ConfigJson>> {
    let path = config_json::locate(request.config_json.as_deref(), &request.paths);
    match ConfigJson::load(&path) {
        // Its `target_devices` overrides the configuration, so it may be missing only where nothing requires it.
        Err(e) if e.code() == Code::ConfigJsonMissing && path == request.paths.config_json() => {
            if request.config_json.is_some() || request.mode == FlashMode::Installation {
                Err(e)
            } else {
                Ok(None)
            }
        }
        other => other.map(Some),
    }
}

fn configured_patterns(conf: Option<&FlasherConf>, config: Option<&ConfigJson>) -> Result<String> {
    let overriding = config.map(ConfigJson::installer_target_devices).transpose()?.flatten();
    let configured = conf.and_then(|c| c.internal_device.as_deref());
    overriding.or(configured).map(str::to_owned).ok_or_else(|| {
        let message = "neither the configuration nor config.json says which disk is the internal one";
        Error::new(Code::NoTargetPattern, message)
    })
}

/// Refuses bootloader files and `config.json` of another flasher on the internal disk.
fn refuse_foreign_boot(request: &FlashRequest, facts: &Facts) -> Result<()> {
    match select::medium_boot_partition(facts) {
        Some(elsewhere) if request.config_json.is_none() || request.mode == FlashMode::Installation => {
            let mounted = elsewhere.mounted.display();
            let message =
                format!("/mnt/boot is {mounted}, which is not on the disk that this system runs from");
            Err(Error::new(Code::MediumBootElsewhere, message).object(mounted))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_image_alone_goes_to_a_plain_file_and_where_all_is_named() {
        let (disk, file) = (Some(true), Some(false));
        let mut installations = Vec::new();
        for target in [None, disk, file] {
            for (conf, image) in [(false, false), (false, true), (true, false), (true, true)] {
                assert_eq!(FlashMode::of(conf, image, target, true), FlashMode::ImageOnly);
                if FlashMode::of(conf, image, target, false) == FlashMode::Installation {
                    installations.push((target, conf, image));
                }
            }
        }
        let expected = [
            (None, false, false),
            (None, false, true),
            (None, true, false),
            (None, true, true),
            (disk, false, false),
            (disk, true, false),
            (disk, true, true),
        ];
        assert_eq!(installations, expected);
    }

    #[test]
    fn what_is_named_decides_the_mode() {
        let dir = tempfile::tempdir().unwrap();
        let name = |name: &str| Some(dir.path().join(name));
        let mode = |conf, image, target, image_only| {
            FlashRequest::default().naming(conf, image, target, image_only).mode()
        };
        assert_eq!(mode(None, None, None, false), FlashMode::Installation);
        assert_eq!(mode(name("conf"), name("image"), None, false), FlashMode::Installation);
        assert_eq!(mode(None, None, None, true), FlashMode::ImageOnly);
        // No block device has this name.
        assert_eq!(mode(name("conf"), None, name("disk.img"), false), FlashMode::Image);
    }

    #[test]
    fn files_of_the_medium_do_not_matter_to_the_image_only() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(dir.path());
        let image = dir.path().join("os.img");
        std::fs::create_dir_all(paths.boot()).unwrap();
        std::fs::create_dir_all(paths.flasher_conf().parent().unwrap()).unwrap();
        std::fs::write(paths.boot().join("x.cfg"), "").unwrap();
        std::fs::write(&image, [0; 4096]).unwrap();
        std::fs::write(paths.flasher_conf(), "INTERNAL_DEVICE_BOOTLOADER_CONFIG=x.cfg\n").unwrap();
        let request = |mode| FlashRequest {
            image: Some(image.clone()),
            target: Some(dir.path().join("disk.img")),
            conf: Some(paths.flasher_conf()),
            paths: paths.clone(),
            mode,
            ..FlashRequest::default()
        };
        for mode in [FlashMode::Installation, FlashMode::Image] {
            assert_eq!(Inputs::read(&request(mode)).unwrap_err().code(), Code::ConfInvalid, "{mode:?}");
        }
        assert!(Inputs::read(&request(FlashMode::ImageOnly)).unwrap().conf.is_some());
    }
}
