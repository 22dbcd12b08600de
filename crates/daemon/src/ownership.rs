//! Other users who may change or read the files of a pool.
//!
//! A user who may write to these files decides the pool's content: set-uid programs, device nodes, files of
//! every owner. Root mounts such a pool only with nosuid,nodev, as a disk that a user brings along.

use crate::failure::{Failure, Outcome};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use terrace_media::Access;

/// The trust of a mount in files that other users may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// Set-uid programs and device nodes take effect.
    Full,
    /// nosuid,nodev: asked for, or the kernel's rule for mounts of ordinary users.
    Harmless,
}

/// The reason why a third user could change the content of a file.
pub fn changeable(access: Access, user: u32) -> Option<String> {
    if let Some(owner) = access.foreign_owner(user) {
        return Some(format!("belongs to user {owner}, who may change what it holds"));
    }
    let mode = access.mode & 0o777;
    access.others_may_write().then(|| format!("other users may change what it holds (mode {mode:04o})"))
}

/// The warning, in the words of swapon(8), about a file that other users may read.
pub fn readable(path: &Path, access: Access) -> Option<String> {
    let suggested = if access.block_device { "0660" } else { "0600" };
    let (path, mode) = (path.display(), access.mode & 0o777);
    access.others_may_read().then(|| {
        format!("{path}: insecure permissions {mode:04o}, {suggested} suggested: other users may read it")
    })
}

/// For mkfs: root accepts no file that other users may change.
pub fn admit_existing(path: &Path, access: Access) -> Outcome<()> {
    let user = rustix::process::geteuid();
    match changeable(access, user.as_raw()).filter(|_| user.is_root()) {
        Some(why) => Err(Failure::at(path, format!("{why}; 'chown root' and 'chmod 600' it first"))),
        None => Ok(()),
    }
}

/// For mkfs: refuses a link of another user, who could choose any file as its target. Links among the
/// directories of the path, and a link that is made after this look, are the caller's own risk.
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

/// For mount: refuses or warns about files of the pool that other users may change or read.
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

    /// Root once mounted another user's pool with that user's set-uid programs in it.
    #[test]
    fn files_writable_by_other_users_need_nosuid_and_nodev() {
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
