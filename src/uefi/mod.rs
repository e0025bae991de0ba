//! UEFI: signature lists, variables of the firmware, and programs as the firmware sees them.

pub mod authenticated;
pub mod authenticode;
pub mod boot_menu;
mod fields;
pub mod guid;
pub mod signature_list;
pub mod variables;

pub(crate) use fields::Fields;
pub use guid::Guid;
