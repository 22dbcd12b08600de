//! Names and inodes: directories, links, attributes, as system calls mean them.

pub(crate) mod create;
pub(crate) mod directory_change;
pub(crate) mod link;
pub(crate) mod lookup;
pub(crate) mod open;
pub(crate) mod readdir;
pub(crate) mod rename;
pub(crate) mod setattr;
pub(crate) mod symlink;
pub(crate) mod tier_pin;
pub(crate) mod unlink;
pub(crate) mod xattr;
