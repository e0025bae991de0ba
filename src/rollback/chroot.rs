//! The hooks of the old system, run in its own root.
