//! Updates as jobs of systemd: what the client hands over, how it follows the job, and how it ends.

mod engine;
mod jobs;
mod own_process;
mod place;
