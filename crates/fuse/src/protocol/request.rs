//! Decodes requests. Every field is checked against the bytes that are there: a request is refused (EINVAL, EIO) and never
//! read beyond its end, because a kernel may be newer than this program, and a fuzzer is no kernel.
//!
//! Invariant: what [`Operation`] borrows lies within the bytes that were given.

use super::layout::*;
use rustix::io::Errno;
use zerocopy::FromBytes;

/// Bytes in the fixed part of a request's header block on an io_uring entry (`fuse_uring_req_header.op_in`).
pub const FIXED_BYTES: usize = 128;

/// The bytes behind a request's header.
#[derive(Debug, Clone, Copy)]
pub enum Input<'a> {
    /// Read from the device: the fixed part is followed by the rest.
    Joined(&'a [u8]),
    /// From an io_uring entry: the fixed part lies in the header block, the rest in the payload.
    Apart {
        /// The fixed part, with unused bytes behind it.
        fixed: &'a [u8; FIXED_BYTES],
        /// The payload, as long as the kernel says.
        rest: &'a [u8],
    },
}

/// A request that is not as its operation demands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a malformed request")]
pub struct Malformed;

impl From<Malformed> for Errno {
    fn from(_: Malformed) -> Errno {
        Errno::INVAL
    }
}

impl<'a> Input<'a> {
    /// Splits the fixed part from the rest.
    fn fixed<T: FromBytes>(self) -> Result<(T, &'a [u8]), Malformed> {
        match self {
            Input::Joined(bytes) => T::read_from_prefix(bytes).map_err(|_| Malformed),
            Input::Apart { fixed, rest } => {
                let (fixed, _) = T::read_from_prefix(fixed).map_err(|_| Malformed)?;
                Ok((fixed, rest))
            }
        }
    }

    /// The bytes of an operation without a fixed part.
    fn rest(self) -> &'a [u8] {
        match self {
            Input::Joined(bytes) => bytes,
            Input::Apart { rest, .. } => rest,
        }
    }
}

/// The bytes before the first zero byte, which has to be there, and the bytes behind it.
fn text(bytes: &[u8]) -> Result<(&[u8], &[u8]), Malformed> {
    let end = bytes.iter().position(|byte| *byte == 0).ok_or(Malformed)?;
    let (text, rest) = bytes.split_at_checked(end).ok_or(Malformed)?;
    Ok((text, rest.get(1..).ok_or(Malformed)?))
}

/// A name in a directory: not empty, and without a slash.
fn name(bytes: &[u8]) -> Result<(&[u8], &[u8]), Malformed> {
    let (name, rest) = text(bytes)?;
    if name.is_empty() || name.contains(&b'/') { Err(Malformed) } else { Ok((name, rest)) }
}

/// A time that setattr sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NewTime {
    /// The daemon's clock.
    Now,
    /// Seconds since the epoch, and nanoseconds.
    At(i64, u32),
}

/// The changes that a setattr asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Changes {
    /// Permissions.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Bytes.
    pub size: Option<u64>,
    /// Access time.
    pub atime: Option<NewTime>,
    /// Modification time.
    pub mtime: Option<NewTime>,
}

impl Changes {
    fn of(from: &SetAttributesIn) -> Changes {
        let asked = |bit: u32| from.valid & (1 << bit) != 0;
        let time = |bit: u32, now: u32, seconds, ns| {
            asked(bit).then_some(if asked(now) { NewTime::Now } else { NewTime::At(seconds, ns) })
        };
        Changes {
            mode: asked(0).then_some(from.mode),
            uid: asked(1).then_some(from.uid),
            gid: asked(2).then_some(from.gid),
            size: asked(3).then_some(from.size),
            atime: time(4, 7, from.atime, from.atime_ns),
            mtime: time(5, 8, from.mtime, from.mtime_ns),
        }
    }
}

/// An open file that a read or a write goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transfer {
    /// The number that the open was answered with.
    pub handle: u64,
    /// The first byte.
    pub offset: u64,
    /// Bytes.
    pub size: u32,
    /// Flags of the open file, as of open(2).
    pub flags: u32,
    /// Flags of the protocol for this request.
    pub request_flags: u32,
}

/// References that the kernel gives up.
#[derive(Debug, Clone, Copy)]
pub struct Forgets<'a>(&'a [u8]);

impl Forgets<'_> {
    /// Each node with its lookups.
    pub fn iter(&self) -> impl Iterator<Item = ForgetOne> + '_ {
        self.0.chunks_exact(size_of::<ForgetOne>()).filter_map(|bytes| ForgetOne::read_from_bytes(bytes).ok())
    }
}

/// An operation with its arguments. The node that it concerns is in the header of its request.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)] // the arguments are those of the system calls
pub enum Operation<'a> {
    Lookup {
        name: &'a [u8],
    },
    Forget {
        lookups: u64,
    },
    BatchForget(Forgets<'a>),
    GetAttributes,
    SetAttributes(Changes),
    ReadLink,
    SymbolicLink {
        name: &'a [u8],
        target: &'a [u8],
    },
    MakeNode {
        name: &'a [u8],
        mode: u32,
        rdev: u32,
    },
    MakeDirectory {
        name: &'a [u8],
        mode: u32,
    },
    Unlink {
        name: &'a [u8],
    },
    RemoveDirectory {
        name: &'a [u8],
    },
    Rename {
        name: &'a [u8],
        new_parent: u64,
        new_name: &'a [u8],
        flags: u32,
    },
    Link {
        node: u64,
        name: &'a [u8],
    },
    Open {
        flags: u32,
    },
    Create {
        name: &'a [u8],
        mode: u32,
        flags: u32,
    },
    Read(Transfer),
    Write(Transfer, &'a [u8]),
    StatFs,
    Release {
        handle: u64,
    },
    Fsync {
        handle: u64,
        data_only: bool,
    },
    SetXattr {
        name: &'a [u8],
        value: &'a [u8],
        flags: u32,
    },
    GetXattr {
        name: &'a [u8],
        size: u32,
    },
    ListXattr {
        size: u32,
    },
    RemoveXattr {
        name: &'a [u8],
    },
    Flush,
    OpenDirectory,
    ReadDirectory {
        cookie: u64,
        size: u32,
    },
    ReadDirectoryPlus {
        cookie: u64,
        size: u32,
    },
    ReleaseDirectory,
    FsyncDirectory,
    Interrupt {
        unique: u64,
    },
    Destroy,
    IoControl,
    Fallocate {
        offset: u64,
        length: u64,
        mode: u32,
    },
    Seek {
        offset: u64,
        whence: u32,
    },
    /// An operation that is not built: ENOSYS.
    Unknown,
}

impl<'a> Operation<'a> {
    /// The operation of a request of this number.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(opcode: u32, input: Input<'a>) -> Result<Operation<'a>, Malformed> {
        Ok(match opcode {
            opcode::LOOKUP => Operation::Lookup { name: name(input.rest())?.0 },
            opcode::FORGET => Operation::Forget { lookups: input.fixed::<ForgetIn>()?.0.lookups },
            opcode::BATCH_FORGET => batch_forget(input)?,
            opcode::GETATTR => Operation::GetAttributes,
            opcode::SETATTR => Operation::SetAttributes(Changes::of(&input.fixed()?.0)),
            opcode::READLINK => Operation::ReadLink,
            opcode::SYMLINK => {
                let (name, rest) = name(input.rest())?;
                Operation::SymbolicLink { name, target: text(rest)?.0 }
            }
            opcode::MKNOD => {
                let (MakeNodeIn { mode, rdev, .. }, rest) = input.fixed()?;
                Operation::MakeNode { name: name(rest)?.0, mode, rdev }
            }
            opcode::MKDIR => {
                let (MakeDirectoryIn { mode, .. }, rest) = input.fixed()?;
                Operation::MakeDirectory { name: name(rest)?.0, mode }
            }
            opcode::UNLINK => Operation::Unlink { name: name(input.rest())?.0 },
            opcode::RMDIR => Operation::RemoveDirectory { name: name(input.rest())?.0 },
            opcode::RENAME => {
                let (RenameIn { new_parent }, rest) = input.fixed()?;
                rename(new_parent, 0, rest)?
            }
            opcode::RENAME2 => {
                let (RenameWithFlagsIn { new_parent, flags, .. }, rest) = input.fixed()?;
                rename(new_parent, flags, rest)?
            }
            opcode::LINK => {
                let (LinkIn { node }, rest) = input.fixed()?;
                Operation::Link { node, name: name(rest)?.0 }
            }
            opcode::CREATE => {
                let (CreateIn { flags, mode, .. }, rest) = input.fixed()?;
                Operation::Create { name: name(rest)?.0, mode, flags }
            }
            opcode::STATFS => Operation::StatFs,
            opcode::OPENDIR => Operation::OpenDirectory,
            opcode::RELEASEDIR => Operation::ReleaseDirectory,
            opcode::FSYNCDIR => Operation::FsyncDirectory,
            opcode::FLUSH => Operation::Flush,
            opcode::DESTROY => Operation::Destroy,
            opcode::IOCTL => Operation::IoControl,
            opcode::INTERRUPT => Operation::Interrupt { unique: input.fixed::<InterruptIn>()?.0.unique },
            opcode::SETXATTR | opcode::GETXATTR | opcode::LISTXATTR | opcode::REMOVEXATTR => {
                xattr(opcode, input)?
            }
            _ => on_open_file(opcode, input)?,
        })
    }
}

fn batch_forget(input: Input<'_>) -> Result<Operation<'_>, Malformed> {
    let (BatchForgetIn { count, .. }, rest) = input.fixed()?;
    let length = (count as usize).checked_mul(size_of::<ForgetOne>()).ok_or(Malformed)?;
    Ok(Operation::BatchForget(Forgets(rest.get(..length).ok_or(Malformed)?)))
}

fn rename(new_parent: u64, flags: u32, rest: &[u8]) -> Result<Operation<'_>, Malformed> {
    let (old_name, rest) = name(rest)?;
    Ok(Operation::Rename { name: old_name, new_parent, new_name: name(rest)?.0, flags })
}

/// Extended attributes.
fn xattr(opcode: u32, input: Input<'_>) -> Result<Operation<'_>, Malformed> {
    Ok(match opcode {
        opcode::SETXATTR => {
            let (SetXattrIn { size, flags }, rest) = input.fixed()?;
            let (name, value) = text(rest)?;
            Operation::SetXattr { name, value: value.get(..size as usize).ok_or(Malformed)?, flags }
        }
        opcode::GETXATTR => {
            let (GetXattrIn { size, .. }, rest) = input.fixed()?;
            Operation::GetXattr { name: text(rest)?.0, size }
        }
        opcode::LISTXATTR => Operation::ListXattr { size: input.fixed::<GetXattrIn>()?.0.size },
        _ => Operation::RemoveXattr { name: text(input.rest())?.0 },
    })
}

/// Operations on open files and directories.
fn on_open_file(opcode: u32, input: Input<'_>) -> Result<Operation<'_>, Malformed> {
    Ok(match opcode {
        opcode::OPEN => Operation::Open { flags: input.fixed::<OpenIn>()?.0.flags },
        opcode::READ => {
            let ReadIn { handle, offset, size, flags, read_flags, .. } = input.fixed()?.0;
            Operation::Read(Transfer {
                handle,
                offset: place(offset)?,
                size,
                flags,
                request_flags: read_flags,
            })
        }
        opcode::READDIR => {
            let ReadIn { offset, size, .. } = input.fixed()?.0;
            Operation::ReadDirectory { cookie: offset, size }
        }
        opcode::READDIRPLUS => {
            let ReadIn { offset, size, .. } = input.fixed()?.0;
            Operation::ReadDirectoryPlus { cookie: offset, size }
        }
        opcode::WRITE => {
            let (WriteIn { handle, offset, size, write_flags, flags, .. }, rest) = input.fixed()?;
            let data = rest.get(..size as usize).ok_or(Malformed)?;
            let offset = place(offset)?;
            Operation::Write(Transfer { handle, offset, size, flags, request_flags: write_flags }, data)
        }
        opcode::RELEASE => Operation::Release { handle: input.fixed::<ReleaseIn>()?.0.handle },
        opcode::FSYNC => {
            let FsyncIn { handle, fsync_flags, .. } = input.fixed()?.0;
            Operation::Fsync { handle, data_only: fsync_flags & 1 != 0 }
        }
        opcode::FALLOCATE => {
            let FallocateIn { offset, length, mode, .. } = input.fixed()?.0;
            Operation::Fallocate { offset, length, mode }
        }
        opcode::LSEEK => {
            let SeekIn { offset, whence, .. } = input.fixed()?.0;
            Operation::Seek { offset, whence }
        }
        _ => Operation::Unknown,
    })
}

/// The place of a byte in a file: no file has a place beyond the largest signed number.
fn place(offset: u64) -> Result<u64, Malformed> {
    if i64::try_from(offset).is_ok() { Ok(offset) } else { Err(Malformed) }
}

/// The header of a message from the device, and the bytes behind it.
///
/// # Errors
/// [`Malformed`] when the message is shorter than it says, or than a header.
pub fn header(message: &[u8]) -> Result<(InHeader, &[u8]), Malformed> {
    let (header, _) = InHeader::read_from_prefix(message).map_err(|_| Malformed)?;
    let body = message.get(size_of::<InHeader>()..header.length as usize).ok_or(Malformed)?;
    Ok((header, body))
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    /// An operation's fixed part and the rest.
    type Parts = (u32, Vec<u8>, Vec<u8>);

    /// A request of each kind that has arguments.
    fn requests() -> Vec<Parts> {
        let read = ReadIn { handle: 7, offset: 8192, size: 4096, flags: 0x8000, ..ReadIn::default() };
        let write = WriteIn { handle: 7, offset: 1, size: 4, write_flags: 5, ..WriteIn::default() };
        let setattr =
            SetAttributesIn { valid: 1 << 3 | 1 << 4 | 1 << 5 | 1 << 8, size: 9, ..Default::default() };
        let forgets = BatchForgetIn { count: 2, unused: 0 }.as_bytes().to_vec();
        let batch = [ForgetOne { node: 3, lookups: 4 }, ForgetOne { node: 5, lookups: 6 }];
        let forgotten = batch.iter().flat_map(|one| one.as_bytes().to_vec()).collect();
        vec![
            (opcode::LOOKUP, vec![], b"name\0".to_vec()),
            (opcode::FORGET, ForgetIn { lookups: 3 }.as_bytes().to_vec(), vec![]),
            (opcode::BATCH_FORGET, forgets, forgotten),
            (opcode::SETATTR, setattr.as_bytes().to_vec(), vec![]),
            (opcode::SYMLINK, vec![], b"name\0a/target\0".to_vec()),
            (
                opcode::MKNOD,
                MakeNodeIn { mode: 0o10644, ..Default::default() }.as_bytes().to_vec(),
                b"p\0".to_vec(),
            ),
            (opcode::MKDIR, MakeDirectoryIn { mode: 0o755, umask: 0 }.as_bytes().to_vec(), b"d\0".to_vec()),
            (opcode::RENAME, RenameIn { new_parent: 9 }.as_bytes().to_vec(), b"a\0b\0".to_vec()),
            (
                opcode::RENAME2,
                RenameWithFlagsIn { new_parent: 9, flags: 1, unused: 0 }.as_bytes().to_vec(),
                b"a\0b\0".to_vec(),
            ),
            (opcode::LINK, LinkIn { node: 4 }.as_bytes().to_vec(), b"l\0".to_vec()),
            (
                opcode::CREATE,
                CreateIn { flags: 2, mode: 0o644, ..Default::default() }.as_bytes().to_vec(),
                b"c\0".to_vec(),
            ),
            (opcode::READ, read.as_bytes().to_vec(), vec![]),
            (opcode::WRITE, write.as_bytes().to_vec(), b"data".to_vec()),
            (opcode::SETXATTR, SetXattrIn { size: 3, flags: 1 }.as_bytes().to_vec(), b"user.a\0abc".to_vec()),
            (opcode::GETXATTR, GetXattrIn { size: 3, unused: 0 }.as_bytes().to_vec(), b"user.a\0".to_vec()),
            (
                opcode::FALLOCATE,
                FallocateIn { offset: 1, length: 2, mode: 3, ..Default::default() }.as_bytes().to_vec(),
                vec![],
            ),
            (
                opcode::LSEEK,
                SeekIn { offset: 5, whence: 3, ..Default::default() }.as_bytes().to_vec(),
                vec![],
            ),
        ]
    }

    fn fixed_block(bytes: &[u8]) -> [u8; FIXED_BYTES] {
        let mut block = [0xff; FIXED_BYTES];
        block[..bytes.len()].copy_from_slice(bytes);
        block
    }

    #[test]
    fn both_ways_of_transport_give_the_same_operation() {
        for (opcode, fixed, rest) in requests() {
            let joined = [fixed.clone(), rest.clone()].concat();
            let one = Operation::decode(opcode, Input::Joined(&joined)).unwrap();
            let block = fixed_block(&fixed);
            let two = Operation::decode(opcode, Input::Apart { fixed: &block, rest: &rest }).unwrap();
            assert_eq!(format!("{one:?}"), format!("{two:?}"));
            assert!(!matches!(one, Operation::Unknown), "operation {opcode}");
        }
    }

    #[test]
    fn a_cut_request_is_malformed() {
        for (opcode, fixed, rest) in requests() {
            let joined = [fixed.clone(), rest.clone()].concat();
            for length in 0..joined.len() {
                let cut = Operation::decode(opcode, Input::Joined(&joined[..length]));
                assert!(cut.is_err(), "operation {opcode} of {length} bytes: {cut:?}");
            }
            for length in 0..rest.len() {
                let block = fixed_block(&fixed);
                let cut = Operation::decode(opcode, Input::Apart { fixed: &block, rest: &rest[..length] });
                assert!(cut.is_err(), "operation {opcode} with {length} bytes of payload: {cut:?}");
            }
        }
    }

    #[test]
    fn a_request_gives_its_arguments() {
        let decode = |number: usize| {
            let (opcode, fixed, rest) = requests().swap_remove(number);
            format!("{:?}", Operation::decode(opcode, Input::Joined(&[fixed, rest].concat())).unwrap())
        };
        assert_eq!(decode(0), format!("{:?}", Operation::Lookup { name: b"name" }));
        let changes = Changes {
            size: Some(9),
            atime: Some(NewTime::At(0, 0)),
            mtime: Some(NewTime::Now),
            ..Changes::default()
        };
        assert_eq!(decode(3), format!("{:?}", Operation::SetAttributes(changes)));
        let rename = Operation::Rename { name: b"a", new_parent: 9, new_name: b"b", flags: 1 };
        assert_eq!(decode(8), format!("{rename:?}"));
        let part = Transfer { handle: 7, offset: 1, size: 4, flags: 0, request_flags: 5 };
        assert_eq!(decode(12), format!("{:?}", Operation::Write(part, b"data")));
    }

    #[test]
    fn impossible_counts_names_and_places_are_malformed() {
        let decode = |opcode, fixed: &[u8], rest: &[u8]| {
            Operation::decode(opcode, Input::Joined(&[fixed, rest].concat())).map(|_| ())
        };
        let many = BatchForgetIn { count: u32::MAX, unused: 0 };
        assert_eq!(decode(opcode::BATCH_FORGET, many.as_bytes(), &[0; 16]), Err(Malformed));
        let far = ReadIn { offset: 1 << 63, ..ReadIn::default() };
        assert_eq!(decode(opcode::READ, far.as_bytes(), &[]), Err(Malformed));
        for name in [&b"a/b\0"[..], b"\0", b"endless"] {
            assert_eq!(decode(opcode::UNLINK, &[], name), Err(Malformed));
        }
        assert_eq!(decode(9999, &[], &[]), Ok(()), "an unknown operation is answered ENOSYS");
    }

    #[test]
    fn a_message_shorter_than_its_header_says_is_malformed() {
        let whole = InHeader { length: 44, opcode: opcode::LOOKUP, unique: 5, ..InHeader::default() };
        let message = [whole.as_bytes(), b"abc\0more"].concat();
        let (found, body) = header(&message).unwrap();
        assert_eq!((found, body), (whole, &b"abc\0"[..]));
        assert!(header(&message[..43]).is_err() && header(&message[..39]).is_err());
        let short = InHeader { length: 39, ..whole };
        assert!(header(short.as_bytes()).is_err());
    }
}
