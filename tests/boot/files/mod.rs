//! The hook `1-bootfiles`: a release and a boot partition in, a boot partition out; what is refused, what a cut leaves, what an
//! undo gets through, and the shell file in front of it.

mod encrypted;
mod faults;
mod golden;
mod many;
mod shim;
mod space;
mod special;
mod support;
