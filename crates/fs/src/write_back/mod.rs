//! Dirty pages on their way to a lower tier, or into PM.

pub mod file;
pub mod group;
mod group_install;
mod group_pages;
pub mod into_pm;
pub(crate) mod lazy;
mod lazy_install;
mod lazy_look;
pub mod lazy_step;
pub(crate) mod room;
pub mod rounds;
pub mod steps;
mod tried;
