//! The first exchange: version and capabilities.

use super::layout::{InitIn, InitOut, LEAST_MINOR, MAJOR, MINOR};

/// A capability that the kernel offers and the daemon takes: its number is that of its bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // named as in the kernel's header, where each is explained
#[repr(u8)]
pub enum Capability {
    AsyncRead = 0,
    ExportSupport = 4,
    BigWrites = 5,
    DoReaddirplus = 13,
    ReaddirplusAuto = 14,
    AsyncDio = 15,
    ParallelDirops = 18,
    MaxPages = 22,
    CacheSymlinks = 23,
    ExplicitInvalData = 25,
    HandleKillprivV2 = 28,
    /// The upper half of the flags counts.
    InitExt = 30,
    DirectIoAllowMmap = 36,
    OverIoUring = 41,
}

impl Capability {
    fn bit(self) -> u64 {
        1 << self as u8
    }
}

/// A set of capabilities.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Capabilities(pub u64);

impl Capabilities {
    /// Whether the set has a capability.
    pub fn has(self, capability: Capability) -> bool {
        self.0 & capability.bit() != 0
    }

    /// The set with some more.
    #[must_use]
    pub fn with(self, more: &[Capability]) -> Capabilities {
        more.iter().fold(self, |set, one| Capabilities(set.0 | one.bit()))
    }
}

/// The limits of a session.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes of the largest write.
    pub max_write: u32,
    /// Requests under way at once for which no thread waits.
    pub max_background: u16,
}

/// The answer to the kernel's first request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The session is agreed on, with these capabilities.
    Agreed(InitOut, Capabilities),
    /// The kernel is to ask again with this version.
    Again(InitOut),
    /// The kernel is too old.
    TooOld,
}

/// Bytes of a page.
const PAGE: u32 = 4096;

/// Answers the kernel's first request with those of the wanted capabilities that it offers.
pub fn answer(asked: &InitIn, wanted: &[Capability], limits: Limits) -> Answer {
    let ours = InitOut { major: MAJOR, minor: MINOR, ..InitOut::default() };
    if asked.major > MAJOR {
        return Answer::Again(ours);
    }
    if (asked.major, asked.minor) < (MAJOR, LEAST_MINOR) {
        return Answer::TooOld;
    }
    let low = u64::from(asked.flags);
    let is_long = Capabilities(low).has(Capability::InitExt);
    let offered = Capabilities(if is_long { low | u64::from(asked.flags_high) << 32 } else { low });
    let always = [Capability::AsyncRead, Capability::BigWrites, Capability::MaxPages, Capability::InitExt];
    let taken = Capabilities(Capabilities::default().with(&always).with(wanted).0 & offered.0);
    let answer = InitOut {
        max_readahead: asked.max_readahead,
        flags: taken.0 as u32,
        flags_high: (taken.0 >> 32) as u32,
        max_background: limits.max_background,
        congestion_threshold: (u32::from(limits.max_background) * 3 / 4) as u16,
        max_write: limits.max_write,
        time_granularity: 1,
        max_pages: u16::try_from(limits.max_write.div_ceil(PAGE)).unwrap_or(u16::MAX),
        ..ours
    };
    Answer::Agreed(answer, taken)
}
