//! Layouts of the messages of the FUSE protocol, versions 7.38 to 7.45, as include/uapi/linux/fuse.h of Linux has them.
//!
//! Invariants: numbers are in the byte order of the machine; no structure has a gap; the size of each is asserted against
//! the header's. A structure is copied out of a message, because a message may begin at any address.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The version of the protocol that this program speaks: the newest minor version whose messages it knows.
pub const MAJOR: u32 = 7;
/// As [`MAJOR`].
pub const MINOR: u32 = 45;
/// The oldest minor version with all messages that are built here (Linux 6.2).
pub const LEAST_MINOR: u32 = 38;

macro_rules! layouts {
    ($($(#[$doc:meta])* $name:ident = $size:literal { $($(#[$field_doc:meta])* $field:ident: $kind:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
            #[allow(missing_docs)]
            pub struct $name { $($(#[$field_doc])* pub $field: $kind,)* }
            const _: () = assert!(size_of::<$name>() == $size);
        )*
    };
}

layouts! {
    /// Before each request.
    InHeader = 40 {
        /// Bytes of the request with this header.
        length: u32,
        opcode: u32,
        unique: u64,
        node: u64,
        uid: u32,
        gid: u32,
        /// The thread that asks, in the daemon's PID namespace; 0 for a thread outside.
        pid: u32,
        /// Length of the extensions behind the request, in units of 8 bytes, and a reserved word.
        extensions: u32,
    }
    /// Before each reply and notification.
    OutHeader = 16 {
        /// Bytes of the reply with this header.
        length: u32,
        /// A negative errno or 0; the code of a notification.
        error: i32,
        unique: u64,
    }
    InitIn = 64 {
        major: u32,
        minor: u32,
        max_readahead: u32,
        flags: u32,
        flags_high: u32,
        unused: [u32; 11],
    }
    InitOut = 64 {
        major: u32,
        minor: u32,
        max_readahead: u32,
        flags: u32,
        max_background: u16,
        congestion_threshold: u16,
        max_write: u32,
        /// Nanoseconds.
        time_granularity: u32,
        max_pages: u16,
        map_alignment: u16,
        flags_high: u32,
        max_stack_depth: u32,
        request_timeout: u16,
        unused: [u16; 11],
    }
    Attributes = 88 {
        ino: u64,
        size: u64,
        blocks: u64,
        atime: i64,
        mtime: i64,
        ctime: i64,
        atime_ns: u32,
        mtime_ns: u32,
        ctime_ns: u32,
        mode: u32,
        nlink: u32,
        uid: u32,
        gid: u32,
        rdev: u32,
        blksize: u32,
        flags: u32,
    }
    EntryOut = 128 {
        node: u64,
        generation: u64,
        entry_valid: u64,
        attributes_valid: u64,
        entry_valid_ns: u32,
        attributes_valid_ns: u32,
        attributes: Attributes,
    }
    AttributesOut = 104 {
        valid: u64,
        valid_ns: u32,
        unused: u32,
        attributes: Attributes,
    }
    OpenOut = 16 { handle: u64, open_flags: u32, backing: u32, }
    CreateOut = 144 { entry: EntryOut, open: OpenOut, }
    WriteOut = 8 { size: u32, unused: u32, }
    XattrOut = 8 { size: u32, unused: u32, }
    SeekOut = 8 { offset: u64, }
    StatFsOut = 80 {
        blocks: u64,
        free: u64,
        available: u64,
        files: u64,
        files_free: u64,
        block_size: u32,
        name_length: u32,
        fragment_size: u32,
        unused: [u32; 7],
    }
    ForgetIn = 8 { lookups: u64, }
    BatchForgetIn = 8 { count: u32, unused: u32, }
    ForgetOne = 16 { node: u64, lookups: u64, }
    GetAttributesIn = 16 { flags: u32, unused: u32, handle: u64, }
    SetAttributesIn = 88 {
        /// A bit for each field to be set.
        valid: u32,
        unused: u32,
        handle: u64,
        size: u64,
        lock_owner: u64,
        atime: i64,
        mtime: i64,
        ctime: i64,
        atime_ns: u32,
        mtime_ns: u32,
        ctime_ns: u32,
        mode: u32,
        unused_4: u32,
        uid: u32,
        gid: u32,
        unused_5: u32,
    }
    MakeNodeIn = 16 { mode: u32, rdev: u32, umask: u32, unused: u32, }
    MakeDirectoryIn = 8 { mode: u32, umask: u32, }
    RenameIn = 8 { new_parent: u64, }
    RenameWithFlagsIn = 16 { new_parent: u64, flags: u32, unused: u32, }
    LinkIn = 8 { node: u64, }
    OpenIn = 8 { flags: u32, open_flags: u32, }
    CreateIn = 16 { flags: u32, mode: u32, umask: u32, open_flags: u32, }
    ReleaseIn = 24 { handle: u64, flags: u32, release_flags: u32, lock_owner: u64, }
    FlushIn = 24 { handle: u64, unused: u32, unused_2: u32, lock_owner: u64, }
    ReadIn = 40 {
        handle: u64,
        offset: u64,
        size: u32,
        read_flags: u32,
        lock_owner: u64,
        flags: u32,
        unused: u32,
    }
    WriteIn = 40 {
        handle: u64,
        offset: u64,
        size: u32,
        write_flags: u32,
        lock_owner: u64,
        flags: u32,
        unused: u32,
    }
    FsyncIn = 16 { handle: u64, fsync_flags: u32, unused: u32, }
    /// The short form: the long form has to be negotiated.
    SetXattrIn = 8 { size: u32, flags: u32, }
    GetXattrIn = 8 { size: u32, unused: u32, }
    FallocateIn = 32 { handle: u64, offset: u64, length: u64, mode: u32, unused: u32, }
    SeekIn = 24 { handle: u64, offset: u64, whence: u32, unused: u32, }
    InterruptIn = 8 { unique: u64, }
    Dirent = 24 { ino: u64, cookie: u64, name_length: u32, kind: u32, }
    InvalidateInodeOut = 24 { node: u64, offset: i64, length: i64, }
    RetrieveOut = 32 { unique: u64, node: u64, offset: u64, size: u32, unused: u32, }
    InvalidateEntryOut = 16 { parent: u64, name_length: u32, flags: u32, }
}

/// Declares the numbers of operations.
macro_rules! numbers {
    ($($name:ident = $number:literal,)*) => { $(#[allow(missing_docs)] pub const $name: u32 = $number;)* };
}

/// Numbers of operations.
pub mod opcode {
    numbers! {
        LOOKUP = 1,
        FORGET = 2,
        GETATTR = 3,
        SETATTR = 4,
        READLINK = 5,
        SYMLINK = 6,
        MKNOD = 8,
        MKDIR = 9,
        UNLINK = 10,
        RMDIR = 11,
        RENAME = 12,
        LINK = 13,
        OPEN = 14,
        READ = 15,
        WRITE = 16,
        STATFS = 17,
        RELEASE = 18,
        FSYNC = 20,
        SETXATTR = 21,
        GETXATTR = 22,
        LISTXATTR = 23,
        REMOVEXATTR = 24,
        FLUSH = 25,
        INIT = 26,
        OPENDIR = 27,
        READDIR = 28,
        RELEASEDIR = 29,
        FSYNCDIR = 30,
        CREATE = 35,
        INTERRUPT = 36,
        DESTROY = 38,
        IOCTL = 39,
        NOTIFY_REPLY = 41,
        BATCH_FORGET = 42,
        FALLOCATE = 43,
        READDIRPLUS = 44,
        RENAME2 = 45,
        LSEEK = 46,
    }
}

/// Codes of notifications.
pub mod notification {
    /// Attributes and pages of an inode.
    pub const INVALIDATE_INODE: i32 = 2;
    /// A name in a directory.
    pub const INVALIDATE_ENTRY: i32 = 3;
    /// The kernel is to send pages of an inode.
    pub const RETRIEVE: i32 = 5;
}
