//! Who else may change or read the files of a pool.
//!
//! Whoever may write to them decides what the pool holds: set-uid programs, device nodes, anybody's files. Root uses
//! those of others only where a mount makes nothing of that (nosuid,nodev), as with a disk that somebody brings along.

use crate::failure::{Failure, Outcome};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use terrace_media::Access;

/// What a mount does with files that others may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// Set-uid programs and device nodes mean what they say.
    Full,
    /// nosuid,nodev: asked for, or the kernel's rule for mounts of ordinary users.
    Harmless,
}

/// Why the content of a file is not only its owner's and ours.
pub fn changeable(access: Access, user: u32) -> Option<String> {
    if let Some(owner) = access.foreign_owner(user) {
        return Some(format!("belongs to user {owner}, who may change what it holds"));
    }
    let mode = access.mode & 0o777;
    access.others_may_write().then(|| format!("other users may change what it holds (mode {mode:04o})"))
}

/// What swapon(8) says of a file that others may read.
pub fn readable(path: &Path, access: Access) -> Option<String> {
    let suggested = if access.block_device { "0660" } else { "0600" };
    let (path, mode) = (path.display(), access.mode & 0o777);
    access.others_may_read().then(|| {
        format!("{path}: insecure permissions {mode:04o}, {suggested} suggested: other users may read it")
    })
}

/// For mkfs: root takes no file that others may change.
pub fn admit_existing(path: &Path, access: Access) -> Outcome<()> {
    let user = rustix::process::geteuid();
    match changeable(access, user.as_raw()).filter(|_| user.is_root()) {
        Some(why) => Err(Failure::at(path, format!("{why}; 'chown root' and 'chmod 600' it first"))),
        None => Ok(()),
    }
}

/// For mkfs: a link of another user leads to a file of that user's choice, which may be anybody's. Links among the
/// directories of the path, and a link that is made after this look, are the business of whoever names such a path.
pub fn admit_link(path: &Path) -> Outcome<()> {
    let user = rustix::process::geteuid().as_raw();
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.is_symlink() && ![0, user].contains(&found.uid()) => {
            let text = format!("a link of user {}; name the file that it leads to", found.uid());
            Err(Failure::at(path, text))
        }
        _ => Ok(()),
    }
}

/// For mount: what the user should know of the pool's files.
pub fn admit(files: &[(PathBuf, Access)], user: u32, trust: Trust) -> Outcome<Vec<String>> {
    let mut warnings = Vec::new();
    for (path, access) in files {
        match changeable(*access, user) {
            Some(why) if trust == Trust::Full => {
                let what = "set-uid programs too; chown and chmod it, or mount with -o nosuid,nodev";
                return Err(Failure::at(path, format!("{why}, {what}")));
            }
            Some(why) => warnings.push(format!("{}: {why}", path.display())),
            None => warnings.extend(readable(path, *access)),
        }
    }
    Ok(warnings)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Root mounted a pool that another user had made, with that user's set-uid programs in it.
    #[test]
    fn files_that_others_may_change_need_a_harmless_mount() {
        let file = |uid, mode| (PathBuf::from("/pool"), Access { uid, mode, block_device: false });
        let disk = (PathBuf::from("/dev/sda"), Access { uid: 0, mode: 0o660, block_device: true });
        let full = |files: &[_], user| admit(files, user, Trust::Full);
        assert_eq!(full(&[file(0, 0o600), disk.clone()], 0), Ok(Vec::new()));
        assert_eq!(full(&[file(1000, 0o600), file(0, 0o600)], 1000), Ok(Vec::new()));
        for (bad, why) in [
            (file(1000, 0o600), "belongs to user 1000"),
            (file(0, 0o666), "(mode 0666)"),
            (file(0, 0o620), "(mode 0620)"),
            ((PathBuf::from("/dev/sda"), Access { mode: 0o666, ..disk.1 }), "(mode 0666)"),
        ] {
            let files = [file(0, 0o600), bad];
            assert!(full(&files, 0).is_err_and(|failure| failure.text.contains(why)), "{why}");
            let warned = admit(&files, 0, Trust::Harmless);
            assert!(warned.is_ok_and(|said| said.len() == 1 && said[0].contains(why)), "{why}");
        }
        let said = full(&[file(0, 0o644)], 0);
        assert!(said.is_ok_and(|said| said[0].contains("insecure permissions 0644, 0600 suggested")));
    }
}
