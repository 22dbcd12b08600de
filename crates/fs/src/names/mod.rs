//! Names and inodes: directories, links, attributes, as system calls mean them.

pub mod create;
pub mod directory_change;
pub mod link;
pub mod lookup;
pub mod open;
pub mod readdir;
pub mod rename;
pub mod setattr;
pub mod symlink;
pub mod tier_pin;
pub mod unlink;
pub mod xattr;
