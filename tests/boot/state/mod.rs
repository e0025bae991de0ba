//! Boot state: the backends, their codecs, and what a power cut leaves of a change.

mod codecs;
mod cuts;
mod dialects;
mod grub_editenv;
mod mutations;
mod readings;
mod repair;
mod support;
mod variables;

pub(crate) use readings::unescaped;
