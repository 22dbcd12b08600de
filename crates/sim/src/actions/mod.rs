//! Actions: each runs a part of a history on a world.

pub(crate) mod amid;
pub(crate) mod apply;
pub(crate) mod background;
pub(crate) mod inject;
pub(crate) mod operate;
pub(crate) mod outage;
pub(crate) mod pm_fault;
pub(crate) mod remount;
pub(crate) mod requested;
