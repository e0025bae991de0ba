mod balena;
pub mod bootfiles;
mod carry_boot;
mod data_breadcrumb;
mod extensions;
pub mod flash_bootloader;
mod grub;
mod rollback;
mod secure_boot;
mod sshd_keys;
mod supervisor_db;
mod support;
mod switch;
mod uboot;

use std::ffi::OsString;

use super::Context;
use crate::config::paths::Paths;
use crate::error::{Code, Error, Result};

pub struct Builtin {
    /// Its name first, then the names under which boards install copies: the base name decides what a copy does.
    pub names: &'static [&'static str],
    pub run: fn(&Context) -> Result<()>,
}

/// In the order of `copal --list`. Shell releases do not have the first one.
pub const BUILTINS: &[Builtin] = &[
    Builtin { names: &["0-carry-boot"], run: carry_boot::run },
    Builtin { names: &["0-signed-update"], run: secure_boot::signed_update },
    Builtin { names: bootfiles::NAMES, run: bootfiles::run },
    Builtin { names: &["60-data-breadcrumb"], run: data_breadcrumb::run },
    Builtin { names: &["70-sshd_migrate_keys"], run: sshd_keys::run },
    // Folders of one program a phase; the base name is what is called.
    Builtin { names: &["75-forward_supervisor-db"], run: supervisor_db::forward_first },
    Builtin { names: &["75-fwd_commit_supervisor-db"], run: supervisor_db::commit_first },
    Builtin { names: &["76-forward_supervisor-db"], run: supervisor_db::forward_second },
    Builtin { names: &["76-fwd_commit_supervisor-db"], run: supervisor_db::commit_second },
    Builtin { names: &["80-rollback"], run: rollback::run },
    Builtin { names: &["85-after_os-blocks-extensions"], run: extensions::after },
    Builtin { names: &["85-fwd_commit_os-blocks-extensions"], run: extensions::commit },
    Builtin { names: &["1-fwd_commit_apply-dbx"], run: secure_boot::apply_dbx },
    Builtin { names: &["2-fwd_commit_update-policy"], run: secure_boot::update_policy },
    Builtin { names: &["99-flash-bootloader"], run: flash_bootloader::run },
    Builtin { names: &["99-resin-uboot"], run: uboot::run },
    Builtin { names: &["99-resin-grub"], run: grub::run },
    Builtin { names: &["99-balena-bootloader"], run: balena::run },
];

impl Builtin {
    /// Runs it under one of its names.
    pub(crate) fn call(&self, name: &str, args: &[OsString]) -> Result<()> {
        // The scripts ignored arguments. Only an operator who looks for help passes one.
        if let Some(arg) = args.first() {
            let text = format!("{name} takes no arguments, not {}: nothing was done", arg.to_string_lossy());
            let hint = "call it as the hook runner does: with DURING_UPDATE=1 or 0 in its environment";
            return Err(Error::new(Code::Usage, text).object(name).with_hint(hint));
        }
        let during_update = std::env::var_os("DURING_UPDATE").is_some_and(|v| v == "1");
        (self.run)(&Context { paths: Paths::default(), during_update, called: name.to_owned() })
    }
}
