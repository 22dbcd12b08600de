//! The way of requests: mount options, and the kernel's parameter behind `transport=uring`.

use crate::failure::{Failure, Outcome, plain};
use terrace_fuse::{SessionOptions, Transport};
use terrace_runtime::thread::processors;

/// The most entries of a queue at first.
const MOST_ENTRIES: usize = 4096;

/// The share of memory that payloads of waiting entries may take, and the bytes of a payload.
const SHARE: u64 = 64;
const PAYLOAD_BYTES: u64 = 1 << 20;
/// With so much room for entries of a queue their number is the usual one.
const AMPLE_ENTRIES: u64 = 32;

/// Entries of a queue at first, where memory is scarce.
fn entries_within(memory_bytes: u64, queues: u64) -> Option<usize> {
    let entries = memory_bytes / SHARE / PAYLOAD_BYTES / queues.max(1);
    (entries < AMPLE_ENTRIES).then_some(entries.max(2) as usize)
}

/// How requests come, as mount options say it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WayIn {
    /// The transport.
    pub transport: Transport,
    /// Entries of a queue at first; not in the help: few of them let queues run dry in tests.
    pub entries: Option<usize>,
}

impl Default for WayIn {
    fn default() -> WayIn {
        WayIn { transport: Transport::Auto, entries: None }
    }
}

impl WayIn {
    /// Whether it has an option of this name.
    pub(crate) fn knows(name: &str) -> bool {
        matches!(name, "transport" | "entries")
    }

    /// Takes the value of an option that it has.
    pub(crate) fn take(&mut self, name: &str, value: &str) -> Result<(), &'static str> {
        match name {
            "transport" => {
                self.transport = Transport::named(value).ok_or("must be auto, uring or classic")?;
            }
            _ => {
                let count = value.parse().ok().filter(|count| (1..=MOST_ENTRIES).contains(count));
                self.entries = Some(count.ok_or("must be from 1 to 4096")?);
            }
        }
        Ok(())
    }

    /// Sets a session's options. `memory_bytes`: the memory of the machine, or of a control group that has less.
    pub(crate) fn set(self, session: &mut SessionOptions, memory_bytes: Option<u64>) {
        let fitting = || entries_within(memory_bytes?, processors() as u64);
        (session.transport, session.entries) = (self.transport, self.entries.or_else(fitting));
    }

    /// Where `transport=uring` asks for it, has the kernel offer io_uring; gives a note for the user when it did not before.
    pub(crate) fn ready(self) -> Outcome<Option<String>> {
        if self.transport != Transport::Uring {
            return Ok(None);
        }
        match terrace_fuse::offer_uring() {
            Ok(false) => Ok(None),
            Ok(true) => Ok(Some(
                "switched on FUSE over io_uring for this machine (/sys/module/fuse/parameters/enable_uring)"
                    .into(),
            )),
            Err(error) => Err(Failure::new(format!(
                "transport=uring: the kernel does not offer FUSE over io_uring, and it cannot be switched on: {}; as \
                 root: echo Y >/sys/module/fuse/parameters/enable_uring",
                plain(&error)
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A daemon in a control group of 48 MiB was ended by the kernel for payloads of 64 clients.
    #[test]
    fn entries_are_few_where_memory_is_scarce() {
        assert_eq!(entries_within(48 << 20, 2), Some(2));
        assert_eq!(entries_within(1 << 30, 2), Some(8));
        assert_eq!(entries_within(24 << 30, 2), None);
    }
}
