//! A whole installation: from a flasher medium that has booted to a board that boots from its internal disk.
//!
//! Before the image is written, every failure is a refusal and nothing was changed. Afterwards the disk has a complete
//! partition table, and a failure removes it again: the device starts its flasher again, and not half a system.

pub mod board;
mod boot_entry;
mod confirm;
pub mod device_trees;
pub mod encryption;
mod finish;
mod inputs;
mod medium;
mod partitions;
pub mod plan;
pub mod plugin;
pub mod receipt;
mod recovery_key;
mod screen;
pub mod secure_boot;
mod shell;
pub mod shutdown;
mod timeline;
mod undo;
mod wait;

use std::ffi::OsString;

use crate::config::config_json::{self, ConfigJson};
use crate::config::confirm::Confirm;
use crate::config::flasher_conf::FlasherConf;
use crate::config::paths::Paths;
use crate::error::{Code, Error, Result};
use crate::flash;
use crate::flash::job::{self, Agree, Prepared};
use crate::flash::watch::Watch;
use crate::image;
use crate::progress::{self, Progress};
use crate::signature::PublicKey;
use crate::sys::command;
use crate::sys::limits;
use crate::sys::log;
use crate::sys::power::Shutdown;
use crate::sys::signal;
use crate::sys::terminal;
use board::{Board, Environment};
use confirm::Question;
use encryption::Encrypted;
use finish::{FinalSteps, Steps};
use inputs::Inputs;
pub use inputs::{FlashMode, FlashRequest};
use plan::{Installation, Plan};
use plugin::Plugin;
use receipt::Receipt;
use screen::Screen;
use secure_boot::SecureBoot;
pub use timeline::StepTime;
use timeline::Timeline;

/// Far above that of any image; it is held in memory.
const MAX_BOOT_BYTES: u64 = 256 << 20;

/// A successful installation. The device is still on.
#[derive(Debug)]
pub struct Installed {
    pub receipt: Receipt,
    pub ending: Shutdown,
    pub environment: Environment,
}

/// `resin-init-flasher`: installs, then ends the running system. Takes no arguments.
pub(crate) fn resin_init_flasher(args: &[OsString]) -> Result<()> {
    if let Some(arg) = args.first() {
        let message =
            format!("unexpected argument '{}': this program takes none, and flashes", arg.to_string_lossy());
        return Err(
            Error::new(Code::Usage, message).with_hint("see `copal help flash` for a flasher with arguments")
        );
    }
    // As an unattended service: a console that goes away asks for nothing.
    signal::ignore_hangup().map_err(job::cannot_hold_signals)?;
    let request = FlashRequest::of_environment(Paths::default());
    let shown = progress::for_service();
    let watch = Watch::new(&shown, &request.paths, None)?;
    // An operator who started it on a terminal sees it there.
    let screen = if terminal::stderr_is_terminal() { Screen::none() } else { Screen::open(&request.paths) };
    shown.also(Box::new(screen.clone()));
    let installed = run_at(&request, &watch, Some(&screen), &|_| Ok(()));
    let installed = installed.inspect_err(|e| log::on_console(&e.to_string()))?;
    screen.done(installed.ending);
    let e = shutdown::now(installed.ending, &installed.environment, Some(request.flasher_conf()));
    screen.failed(&e);
    Err(e)
}

struct Ready {
    prepared: Prepared,
    installation: Installation,
    /// Whether copal itself provides secure boot on this board.
    is_built_in: bool,
    /// Of an installation that copal itself encrypts.
    secure_boot: Option<SecureBoot>,
    /// Of the owner, who asks for a recovery passphrase.
    recovery_key: Option<PublicKey>,
    conf: FlasherConf,
    config: ConfigJson,
    board: Board,
    environment: Environment,
}

/// Which configuration counts: that of the owner before that of the board.
fn confirm(inputs: &Inputs) -> Result<Confirm> {
    let of_owner = inputs.config.as_ref().map(ConfigJson::installer_confirm).transpose()?.flatten();
    Ok(of_owner.or(inputs.conf.as_ref().map(|conf| conf.confirm)).unwrap_or_default())
}

/// Checks image and target of a flash of the image alone, and makes its plan. Writes nothing.
pub(crate) fn prepare_image(
    request: &FlashRequest,
    agree: Option<Agree<'_>>,
    progress: &dyn Progress,
) -> Result<Prepared> {
    Inputs::read(request)?.prepare(request, false, agree, progress)
}

/// Makes the plan as the flash does, without running board programs and without waiting. Writes nothing.
pub fn plan(request: &FlashRequest, progress: &dyn Progress) -> Result<Plan> {
    match request.mode() {
        FlashMode::Image | FlashMode::ImageOnly => Ok(prepare_image(request, None, progress)?.plan.into()),
        FlashMode::Installation => {
            let (Ready { prepared, installation, .. }, _) = ready(request, Inputs::read(request)?, progress)?;
            Ok(Plan { flash: prepared.plan, installation: Some(installation) })
        }
    }
}

/// Installs. `agree` gets the plan before the first write, and may refuse it. The caller has decided: no question is asked at the device.
pub fn run(
    request: &FlashRequest,
    watch: &Watch,
    agree: &dyn Fn(&flash::plan::Plan) -> Result<()>,
) -> Result<Installed> {
    run_at(request, watch, None, agree)
}

/// [`run`], with the `screen` of a person at the device, who may be asked.
fn run_at(
    request: &FlashRequest,
    watch: &Watch,
    screen: Option<&Screen>,
    agree: &dyn Fn(&flash::plan::Plan) -> Result<()>,
) -> Result<Installed> {
    let result = install(request, watch, screen, agree).map_err(job::nothing_written);
    match &result {
        Ok(installed) => watch.succeeded(&installed.receipt.flash),
        Err(e) => {
            if let Some(screen) = screen {
                screen.failed(e);
            }
            watch.failed(e);
        }
    }
    result
}

fn install(
    request: &FlashRequest,
    watch: &Watch,
    screen: Option<&Screen>,
    agree: &dyn Fn(&flash::plan::Plan) -> Result<()>,
) -> Result<Installed> {
    let signals = job::hold_signals()?;
    let mut time = Timeline::start();
    let mut step = Steps { time: &mut time };
    let mut request = request.clone();
    let paths = request.paths.clone();

    request.check_named()?;
    refuse_without_root()?;
    step.run("board set-up", || set_up_board(&request))?;
    step.run("medium", || own_medium(&mut request))?;
    watch.report_to_owner(&paths, is_provisioned(&request));
    let inputs = step.run("inputs", || Inputs::read(&request))?;
    let ask = confirm(&inputs)?;
    let question = screen.filter(|_| ask != Confirm::Unasked);
    let question = question.map(|screen| Question::prepare(ask, screen, &paths)).transpose()?;
    step.run("network", || {
        wait::wait_for_services(&paths, inputs.config.as_ref());
        Ok(())
    })?;
    step.run("disk", || {
        let target = wait::wait_for_disk(&inputs, &paths);
        if let (Some(screen), Some(target)) = (screen, target) {
            screen.erases(&inputs.image, &target);
        }
        Ok(())
    })?;
    let (ready, why_not_encrypted) = step.run("check", || ready(&request, inputs, watch.progress()))?;
    agree(&ready.prepared.plan)?;
    watch.planned(&ready.prepared.plan);
    let untouched = |e| job::untouched(Some(&ready.prepared.plan.target), e);
    if let Some(question) = question {
        step.run("question", || question.ask()).map_err(untouched)?;
    }
    let (mut plugin, mut encrypted) = step
        .time
        .step("secure boot", || decide_on_encryption(&request, &ready, why_not_encrypted))
        .map_err(untouched)?;
    if let Err(e) = finish::refuse_after_signal("secure boot") {
        if let Some(encrypted) = &mut encrypted {
            encrypted.let_go(&paths);
        }
        return Err(untouched(e));
    }

    // The plug-in was the last that could refuse: this event means that the old system is lost.
    watch.started(&ready.prepared.plan);
    let steps = FinalSteps { paths: &paths, ready: &ready, watch };
    let receipt = time.step("write", || steps.write_image(encrypted.as_mut(), &mut plugin))?;
    if let Some(screen) = screen {
        screen.says("FINISHING: DO NOT SWITCH OFF", &["It writes bootloaders and boot files."]);
    }
    let receipt = steps.finish(receipt, &mut plugin, encrypted.as_mut(), time)?;
    // After a failure they stay held back: the error is still to be shown. One that came too late must not keep the receipt back.
    signals.end();
    let ending = if ready.conf.postinstall_reboot { Shutdown::Reboot } else { Shutdown::PowerOff };
    Ok(Installed { receipt, ending, environment: ready.environment })
}

/// For progress reports. A later step checks the file.
fn is_provisioned(request: &FlashRequest) -> bool {
    let path = config_json::locate(request.config_json.as_deref(), &request.paths);
    ConfigJson::load(&path).is_ok_and(|config| config.is_provisioned())
}

fn refuse_without_root() -> Result<()> {
    if nix::unistd::geteuid().is_root() {
        return Ok(());
    }
    let hint = "run as root; or write the image alone, to something that this user may open: \
        `copal flash IMAGE TARGET`";
    Err(Error::new(Code::NotRoot, "cannot install without root's rights").with_hint(hint))
}

fn board_of(environment: &Environment) -> Result<Board> {
    Ok(Board::new(environment.clone(), board::limit(std::env::var_os(board::BOARD_LIMIT_VARIABLE))?))
}

fn set_up_board(request: &FlashRequest) -> Result<()> {
    let config = config_json::locate(request.config_json.as_deref(), &request.paths);
    let board = board_of(&Environment::new(&request.paths, &config))?;
    board.check()?;
    board.init_board()
}

/// Boot files and `config.json` come from the medium that the system runs from.
fn own_medium(request: &mut FlashRequest) -> Result<()> {
    if medium::take_own_boot_partition(&request.paths)? && request.config_json.is_none() {
        // The copy in memory is from the other disk.
        request.config_json = Some("/mnt/boot/config.json".into());
    }
    Ok(())
}

/// Also says why the installation cannot be encrypted, should the board's plug-in ask for that.
fn ready(request: &FlashRequest, inputs: Inputs, progress: &dyn Progress) -> Result<(Ready, Option<Error>)> {
    let (Some(conf), Some(config)) = (inputs.conf.clone(), inputs.config.clone()) else {
        return Err(Error::new(Code::ConfMissing, "cannot install without a configuration"));
    };
    // Needed elsewhere, but a plan reports invalid values too.
    confirm(&inputs)?;
    let opted_in = config.installer_secureboot()?;
    config.installer_whitelist_pcr2()?;
    let recovery_key = recovery_key::of_owner(&config)?;
    let paths = &request.paths;
    let environment = Environment::new(paths, config.path());
    let is_built_in = secure_boot::is_built_in(&conf) && !plugin::is_present(&environment);
    let decision = if is_built_in { secure_boot::decide(paths, opted_in)? } else { None };
    if !is_built_in {
        Plugin::check(&environment, opted_in)?;
    }
    let may_encrypt = plugin::is_present(&environment) || decision.is_some();
    if recovery_key.is_some() && !may_encrypt {
        recovery_key::warn_of_no_use();
    }
    let mut prepared = inputs.prepare(request, may_encrypt, None, progress)?;
    let environment = environment.with_target(&prepared.plan.target.name);
    let board = board_of(&environment)?;
    let mut installation = Installation::new(paths, &conf, &config, &board, &prepared.plan)?;
    let mut why_not_encrypted = None;
    let mut own = None;
    if may_encrypt {
        let checked = match (&recovery_key, decision) {
            (Some(_), None) => Err(recovery_key::not_by_plugin()),
            _ => prepared.check_signature(paths),
        };
        let planned = checked.and_then(|()| encryption::Planned::new(paths, &conf, &config, &prepared.plan));
        let planned = planned.and_then(|planned| {
            // They are written onto this disk beside other partitions, and another table.
            plan::check_bootloaders(paths, &conf, &prepared.plan, planned.layout.as_table()).map(|()| planned)
        });
        let planned = planned.and_then(|mut planned| {
            if let Some(decision) = decision {
                if planned.method != encryption::Method::Luks2 {
                    let message = "cannot install encrypted: USE_LUKS=0 leaves the encryption to a plug-in, and this board has none";
                    return Err(Error::new(Code::ConfInvalid, message).object("USE_LUKS"));
                }
                let found =
                    own.insert(prepare_secure_boot(paths, &conf, &config, &prepared, &planned, decision)?);
                planned.layout = planned.layout.named(secure_boot::LABEL);
                planned.secure_boot = Some(found.summary.clone());
                planned.recovery_slot = recovery_key.is_some();
            }
            Ok(planned)
        });
        match planned {
            Ok(planned) => installation.encryption = Some(planned),
            // Only the plug-in knows whether that matters. Where the owner asks for it, it is not asked: it may change the device for good.
            Err(e) if !opted_in => {
                installation.encryption_refused = Some(e.message());
                why_not_encrypted = Some(e);
            }
            Err(e) => return Err(e),
        }
    }
    let ready = Ready {
        prepared,
        installation,
        is_built_in,
        secure_boot: own,
        recovery_key,
        conf,
        config,
        board,
        environment,
    };
    Ok((ready, why_not_encrypted))
}

fn prepare_secure_boot(
    paths: &Paths,
    conf: &FlasherConf,
    config: &ConfigJson,
    prepared: &Prepared,
    planned: &encryption::Planned,
    decision: secure_boot::Decision,
) -> Result<SecureBoot> {
    let image = &prepared.plan.image.stored.path;
    let part = planned.layout.partitions.first().and_then(|part| part.image.clone());
    let part = part.ok_or_else(|| Error::internal("the layout has no boot partition"))?;
    let boot = image::chunks::read_range(&mut *prepared.source()?, &part, MAX_BOOT_BYTES)?;
    let boot = boot.ok_or_else(|| {
        let image = image.display();
        let message = format!(
            "cannot install {image} encrypted: its boot partition is cut off, or has more than 256 MiB"
        );
        Error::new(Code::ImageLayoutUnfit, message).object(image)
    })?;
    encryption::check_boot_partition(image, &boot, planned)?;
    SecureBoot::prepare(paths, conf, config, image, &boot, decision)
}

/// Asks the board's plug-ins.
fn decide_on_encryption(
    request: &FlashRequest,
    ready: &Ready,
    why_not_encrypted: Option<Error>,
) -> Result<(Plugin, Option<Encrypted>)> {
    limits::forbid_core_dumps();
    let plugin = Plugin::start(&ready.environment, Some(&request.flasher_conf()), command::SILENCE)?;
    let mut plugin = plugin.limited(board::limit(std::env::var_os(board::BOARD_LIMIT_VARIABLE))?);
    if ready.installation.encryption.is_some() {
        // Firmware, TPM or fuses may be changed from here on: a disk that is in use or has gone refuses before.
        drop(ready.prepared.open_target(&request.paths)?);
    }
    let image = &ready.prepared.plan.image;
    plugin.set("BALENA_IMAGE", image.stored.path.as_os_str())?;
    if let (Some(own), Some(planned)) = (&ready.secure_boot, ready.installation.encryption.clone()) {
        let encrypted = Encrypted::by_copal(planned, own, ready.recovery_key.as_ref(), &request.paths)?;
        return Ok((plugin, Some(encrypted)));
    }
    let opted_in = ready.config.installer_secureboot()? && !ready.is_built_in;
    if let (true, Some(planned)) = (opted_in, &ready.installation.encryption) {
        // A plug-in that may still decide against encryption needs neither.
        Encrypted::need_functions(planned, &mut plugin)?;
    }
    if !plugin.secureboot_setup(opted_in)? {
        if ready.recovery_key.is_some() && plugin::is_present(&ready.environment) {
            recovery_key::warn_of_no_use();
        }
        return Ok((plugin, None));
    }
    let planned = match (ready.installation.encryption.clone(), why_not_encrypted) {
        (Some(planned), _) => planned,
        (None, Some(e)) => return Err(e),
        (None, None) => return Err(plugin::nothing_encrypts()),
    };
    let encrypted = Encrypted::decide(planned, &mut plugin, &request.paths)?;
    Ok((plugin, Some(encrypted)))
}
