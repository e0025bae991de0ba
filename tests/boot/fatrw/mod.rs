//! Reading and writing as `fatrw` does: side files, writing in place, and the program itself.

mod commit;
mod in_place;
mod program;
mod rig;
mod steps;
mod sweep;
