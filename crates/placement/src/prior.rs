//! The directory history of the synchronicity predictor. It stands for the file history of a new file, by the
//! fate of earlier files: synced or not. Neither publication has one: their files live long and are soon
//! judged by their own history. But a program that makes thousands of small files (a checkout, an unpacked
//! archive) has finished each file before the count of [`crate::synchronicity`] can judge it.
//!
//! The history has up to [`LEVELS`] levels, the nearest first: files of the same family of names in the same
//! directory, files of the directory, and files of the directories above it. Each level has a [`Score`], and
//! the nearest score that leans to a side decides. Above the directory a score has to lean further, because
//! programs of all kinds meet there. Scores are bounded, so a few files turn a score: the bound takes the
//! place of a decay.

/// Levels of the directory history of a file.
pub const LEVELS: usize = 4;
/// The family and the directory.
const NEAR: usize = 2;

/// The recent fates of the files of a level: above zero if files were synced, below if not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Score(i8);

/// Weight of a file that was synced. Expecting too little costs an fsync on a slow device, expecting too much
/// some PM: of files half of which are synced, synchronicity is expected.
const SYNCED: i8 = 2;
const NOT_SYNCED: i8 = -1;
/// Least score, to either side, by which a directory above decides.
const FIRM: i8 = 3;
/// Furthest to either side.
const MOST: i8 = 6;

impl Score {
    /// A file was synced soon after it was written, or was not.
    pub fn told(self, synced: bool) -> Score {
        let weight = if synced { SYNCED } else { NOT_SYNCED };
        Score((self.0 + weight).clamp(-MOST, MOST))
    }

    /// Whether files are expected to be synced, by their score at a level; `None` when too few files were
    /// seen, or their fates balance.
    pub fn expects(self, level: usize) -> Option<bool> {
        let least = if level < NEAR { 1 } else { FIRM };
        (self.0.abs() >= least).then_some(self.0 > 0)
    }

    /// As one byte.
    pub fn pack(self) -> u8 {
        self.0 as u8
    }

    /// From [`Self::pack`]; zero is unknown.
    pub fn unpack(byte: u8) -> Score {
        Score((byte as i8).clamp(-MOST, MOST))
    }
}

/// Longest extension that counts as an extension.
const EXTENSION: usize = 8;
/// Lengths of the beginning of a name with digits: a shorter beginning names no family, a longer beginning is
/// cut.
const BEGINNING: std::ops::RangeInclusive<usize> = 3..=16;

/// The family of a name, as a hash: of its extension, or of the characters before its first digit. Zero for a
/// name without a family, such as a checksum.
pub fn family(name: &[u8]) -> u32 {
    let dot = name.iter().rposition(|byte| *byte == b'.').filter(|at| *at > 0);
    let extension = dot.map(|at| &name[at..]).filter(|extension| {
        let letters = extension[1..].iter().filter(|byte| byte.is_ascii_alphabetic()).count();
        letters > 0 && extension.len() <= EXTENSION + 1
    });
    let part = extension.unwrap_or_else(|| {
        let plain = name.iter().take(*BEGINNING.end()).take_while(|byte| !byte.is_ascii_digit()).count();
        &name[..plain]
    });
    let whole = part.len() == name.len();
    if part.is_empty() || (extension.is_none() && !whole && part.len() < *BEGINNING.start()) {
        return 0;
    }
    // FNV-1a: short keys, and nobody gains by a collision.
    let hash =
        part.iter().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
    hash | 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_leans_the_score_and_a_few_files_turn_it() {
        let once = Score::default().told(false);
        assert_eq!(
            (Score::default().expects(0), once.expects(1), once.expects(2)),
            (None, Some(false), None)
        );
        let long = (0..1000).fold(Score::default(), |score, _| score.told(false));
        let turned = (0..4).fold(long, |score, _| score.told(true));
        assert_eq!((long.expects(2), turned.expects(0)), (Some(false), Some(true)));
        assert_eq!(Score::unpack(long.pack()), long);
    }

    #[test]
    fn half_of_each_counts_as_synced() {
        let score = (0..100).fold(Score::default(), |score, turn| score.told(turn % 2 == 0));
        assert_eq!(score.expects(0), Some(true));
    }

    #[test]
    fn names_of_a_kind_are_a_family() {
        let same =
            |a: &str, b: &str| family(a.as_bytes()) == family(b.as_bytes()) && family(a.as_bytes()) != 0;
        assert!(same("000012.log", "000013.log") && same("MANIFEST-000005", "MANIFEST-000007"));
        assert!(same("main.c", "lib.c") && same("file-1", "file-900") && same(".gitignore", ".gitignore"));
        assert!(
            !same("000012.log", "000012.sst") && !same("LOG", "LOCK") && !same("db.sqlite", "db.sqlite-wal")
        );
        for nothing in ["", "12", "0f3a90aa", "3.14", "a1b2", "0-3"] {
            assert_eq!(family(nothing.as_bytes()), 0, "{nothing}");
        }
    }
}
