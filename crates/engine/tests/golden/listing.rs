//! A tree as text, one line for each name: the attributes that a user sees, and contents as checksums.

use std::fmt::Write;
use terrace_engine::{Engine, FsResult, Wait};
use terrace_format::Ino;
use terrace_format::checksum::crc32c;

/// The names of the columns.
const HEAD: &str = "# path inode.generation mode nlink uid:gid rdev size mtime crc32c(content or target) xattr=bytes:crc32c …\n";

/// Lists the whole tree.
///
/// # Errors
/// The file system's.
pub fn listing(fs: &Engine) -> FsResult<String> {
    let mut lines = Vec::new();
    walk(fs, Ino(1), "/", &mut lines)?;
    lines.sort();
    Ok(format!("{HEAD}{}", lines.concat()))
}

fn walk(fs: &Engine, ino: Ino, path: &str, lines: &mut Vec<String>) -> FsResult<()> {
    let a = fs.getattr(ino)?;
    let mut content = Vec::new();
    match a.mode & 0o170000 {
        0o100000 => {
            content = vec![0; a.size as usize];
            let count = fs.read(ino, 0, &mut content, Wait::Allowed)?;
            assert_eq!(count, content.len(), "{path} ends early");
        }
        0o120000 => content = fs.readlink(ino)?,
        _ => {}
    }
    let mut line = format!("{path} {}.{} {:o} {} {}:{} ", ino, a.generation, a.mode, a.nlink, a.uid, a.gid);
    let _ = write!(line, "{} {} {} {:08x}", a.rdev, a.size, a.mtime_ns, crc32c(&content));
    let names = fs.listxattr(ino)?;
    let mut names: Vec<&[u8]> = names.split(|byte| *byte == 0).filter(|name| !name.is_empty()).collect();
    names.sort();
    for name in names {
        let value = fs.getxattr(ino, name)?;
        let name = String::from_utf8_lossy(name);
        let _ = write!(line, " {name}={}:{:08x}", value.len(), crc32c(&value));
    }
    lines.push(line + "\n");
    if a.mode & 0o170000 != 0o040000 {
        return Ok(());
    }
    let mut names = Vec::new();
    fs.readdir(ino, 0, &mut |entry| {
        if entry.cookie > 2 {
            names.push(entry.name.clone());
        }
        true
    })?;
    for name in names {
        let child = fs.lookup(ino, &name)?.ino;
        walk(fs, child, &format!("{path}{}/", String::from_utf8_lossy(&name)), lines)?;
        fs.forget(child, 1);
    }
    Ok(())
}
