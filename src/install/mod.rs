//! A whole installation: from a flasher medium that has booted to a board that boots from its internal disk.
//!
//! Before the image is written, every failure is a refusal and nothing was changed. Afterwards the disk has a complete
//! partition table, and a failure removes it again: the device starts its flasher again, and not half a system.

pub mod board;
mod confirm;
pub mod device_trees;
mod finish;
mod inputs;
mod medium;
mod partitions;
pub mod plan;
pub mod plugin;
pub mod receipt;
mod screen;
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
use crate::flash::job::{self, Prepared};
use crate::flash::watch::Watch;
use crate::progress::{self, Progress};
use crate::sys::command;
use crate::sys::log;
use crate::sys::power::Shutdown;
use crate::sys::signal;
use crate::sys::terminal;
use board::{Board, Environment};
use confirm::Question;
use finish::{FinalSteps, Steps};
use inputs::Inputs;
pub use inputs::{FlashMode, FlashRequest};
use plan::{Installation, Plan};
use plugin::Plugin;
use receipt::Receipt;
use screen::Screen;
pub use timeline::StepTime;
use timeline::Timeline;

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
    let watch = Watch::new(&shown, &request.paths, None);
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
pub fn prepare_image(request: &FlashRequest, progress: &dyn Progress) -> Result<Prepared> {
    Inputs::read(request)?.prepare(request, progress)
}

/// Makes the plan as the flash does, without running board programs and without waiting. Writes nothing.
pub fn plan(request: &FlashRequest, progress: &dyn Progress) -> Result<Plan> {
    match request.mode() {
        FlashMode::Image | FlashMode::ImageOnly => Ok(prepare_image(request, progress)?.plan.into()),
        FlashMode::Installation => {
            let Ready { prepared, installation, .. } = ready(request, Inputs::read(request)?, progress)?;
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
    let ready = step.run("check", || ready(&request, inputs, watch.progress()))?;
    agree(&ready.prepared.plan)?;
    watch.planned(&ready.prepared.plan);
    let untouched = |e| job::untouched(Some(&ready.prepared.plan.target), e);
    if let Some(question) = question {
        step.run("question", || question.ask()).map_err(untouched)?;
    }
    let mut plugin = step.run("secure boot", || decide_on_encryption(&request, &ready)).map_err(untouched)?;

    // The plug-in was the last that could refuse: this event means that the old system is lost.
    watch.started(&ready.prepared.plan);
    let steps = FinalSteps { paths: &paths, ready: &ready, watch };
    let receipt = time.step("write", || steps.write_image())?;
    if let Some(screen) = screen {
        screen.says("FINISHING: DO NOT SWITCH OFF", &["It writes bootloaders and boot files."]);
    }
    let receipt = steps.finish(receipt, &mut plugin, time)?;
    // After a failure they stay held back: the error is still to be shown.
    signals.release();
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

fn ready(request: &FlashRequest, inputs: Inputs, progress: &dyn Progress) -> Result<Ready> {
    let (Some(conf), Some(config)) = (inputs.conf.clone(), inputs.config.clone()) else {
        return Err(Error::new(Code::ConfMissing, "cannot install without a configuration"));
    };
    // Needed elsewhere, but a plan reports invalid values too.
    confirm(&inputs)?;
    let opted_in = config.installer_secureboot()?;
    config.installer_whitelist_pcr2()?;
    let prepared = inputs.prepare(request, progress)?;
    let environment = Environment::new(&request.paths, config.path()).with_target(&prepared.plan.target.name);
    Plugin::check(&environment, opted_in)?;
    let board = board_of(&environment)?;
    let installation = Installation::new(&request.paths, &conf, &config, &board, &prepared.plan)?;
    Ok(Ready { prepared, installation, conf, config, board, environment })
}

/// Asks the board's plug-ins. This build refuses encryption.
fn decide_on_encryption(request: &FlashRequest, ready: &Ready) -> Result<Plugin> {
    let mut plugin = Plugin::start(&ready.environment, Some(&request.flasher_conf()), command::SILENCE)?;
    plugin.secureboot_setup(ready.config.installer_secureboot()?)?;
    Ok(plugin)
}
