//! Extended attributes.

use crate::node::{CAPABILITY, Id};
use crate::stamp::Stamp;
use crate::{Outcome, Reference};

/// setxattr's flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XattrMode {
    /// Create or replace.
    Any,
    /// EEXIST when present.
    Create,
    /// ENODATA when absent.
    Replace,
}

fn check(name: &[u8]) -> Outcome<()> {
    let known: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
    if name.len() > 255 {
        Err(libc::ERANGE)
    } else if !known.iter().any(|prefix| name.starts_with(prefix) && name.len() > prefix.len()) {
        Err(libc::EOPNOTSUPP)
    } else {
        Ok(())
    }
}

impl Reference {
    /// Whether a file has capabilities.
    pub fn has_capability(&self, id: Id) -> bool {
        self.node(id).is_ok_and(|node| node.xattrs.contains_key(CAPABILITY))
    }

    /// Value of an attribute.
    ///
    /// # Errors
    /// ENODATA, EOPNOTSUPP, ERANGE.
    pub fn xattr(&self, id: Id, name: &[u8]) -> Outcome<Vec<u8>> {
        check(name)?;
        self.node(id)?.xattrs.get(name).cloned().ok_or(libc::ENODATA)
    }

    /// Sets an attribute.
    ///
    /// # Errors
    /// EEXIST, ENODATA by mode; ENOSPC for a value over the limit; EOPNOTSUPP, ERANGE.
    pub fn set_xattr(
        &mut self,
        id: Id,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        when: Stamp,
    ) -> Outcome<()> {
        check(name)?;
        let limit = self.limits.xattr_bytes;
        let node = self.node_mut(id)?;
        if value.len() > limit {
            return Err(libc::ENOSPC);
        }
        match (mode, node.xattrs.contains_key(name)) {
            (XattrMode::Create, true) => return Err(libc::EEXIST),
            (XattrMode::Replace, false) => return Err(libc::ENODATA),
            _ => {}
        }
        node.xattrs.insert(name.to_vec(), value.to_vec());
        node.changed(when);
        Ok(())
    }

    /// Removes an attribute.
    ///
    /// # Errors
    /// ENODATA, EOPNOTSUPP, ERANGE.
    pub fn remove_xattr(&mut self, id: Id, name: &[u8], when: Stamp) -> Outcome<()> {
        check(name)?;
        let node = self.node_mut(id)?;
        node.xattrs.remove(name).ok_or(libc::ENODATA)?;
        node.changed(when);
        Ok(())
    }
}
