//! How long the kernel may believe names and attributes.

use std::time::Duration;

/// The longest time; the adapter tells the kernel of each change.
pub(crate) const VALID: Duration = Duration::from_secs(24 * 3600);
