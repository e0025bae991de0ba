//! Programs of others: board programs, plug-ins, power-off helpers, the progress reporter. Real ones, in bash, below a
//! root folder of their own.

mod board;
mod command;
mod ending;
mod plugin;
mod progress;
mod recorded_plugins;
