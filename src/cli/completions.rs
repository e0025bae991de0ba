//! `copal completions`.

use super::Ui;
use super::args::{self, Shell};
use crate::error::Result;

/// Prints the completion script for `shell`.
pub(super) fn run_completions(shell: Shell, ui: &Ui) -> Result<()> {
    let generator = match shell {
        Shell::Bash => clap_complete::Shell::Bash,
        Shell::Zsh => clap_complete::Shell::Zsh,
        Shell::Fish => clap_complete::Shell::Fish,
    };
    let mut script = Vec::new();
    clap_complete::generate(generator, &mut args::command(), "copal", &mut script);
    ui.text(&String::from_utf8_lossy(&script));
    Ok(())
}
