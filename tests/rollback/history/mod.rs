//! The history of updates: what is written is read again, whatever happens to the file, and nothing ever waits for it.

mod file;
mod journal;
mod kills;
mod partition;
mod record;
mod support;
mod view;
