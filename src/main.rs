//! Start: the name and arguments, the log, the run, the exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    let call = copal::names::Call::of(std::env::args_os());
    copal::sys::log::start(call.voice());
    copal::sys::signal::survive_file_limit();
    call.run()
}
