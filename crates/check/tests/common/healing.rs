//! PM on which an unreadable line becomes readable again when it is written whole.

use std::collections::BTreeSet;
use terrace_format::PmOffset;
use terrace_media::{MediaError, PmMedium, Promise};
use terrace_runtime::sync::Mutex;
use terrace_runtime::sync::atomic::{AtomicBool, Ordering};

/// PM with lines that cannot be read until they are written whole, which may refuse streaming stores.
pub struct Healing {
    pub bytes: Mutex<Vec<u8>>,
    /// Numbers of the lines.
    pub bad: Mutex<BTreeSet<u64>>,
    pub refuses: AtomicBool,
}

impl Healing {
    /// An image with an unreadable line.
    pub fn new(image: &[u8], line: u64, refuses: bool) -> Healing {
        Healing {
            bytes: Mutex::new(image.to_vec()),
            bad: Mutex::new(BTreeSet::from([line])),
            refuses: AtomicBool::new(refuses),
        }
    }
}

impl PmMedium for Healing {
    fn size(&self) -> u64 {
        self.bytes.lock().len() as u64
    }
    fn promise(&self) -> Promise {
        Promise::None
    }
    fn describe(&self) -> String {
        "healing".into()
    }
    fn read(&self, offset: PmOffset, into: &mut [u8]) -> Result<(), MediaError> {
        let (length, lines) = (into.len() as u64, lines(offset, into.len()));
        let bytes = self.bytes.lock();
        let from = bytes.get(offset.0 as usize..).and_then(|rest| rest.get(..into.len()));
        let bad = self.bad.lock().range(lines).next().is_some();
        into.copy_from_slice(from.filter(|_| !bad).ok_or(MediaError::Pm { offset, length })?);
        Ok(())
    }
    fn load_u64(&self, offset: PmOffset) -> Result<u64, MediaError> {
        let mut word = [0; 8];
        self.read(offset, &mut word)?;
        Ok(u64::from_le_bytes(word))
    }
    fn write(&self, offset: PmOffset, bytes: &[u8]) -> Result<(), MediaError> {
        let whole = offset.0.div_ceil(64)..(offset.0 + bytes.len() as u64) / 64;
        let mut bad = self.bad.lock();
        for line in lines(offset, bytes.len()) {
            if bad.contains(&line) && !whole.contains(&line) {
                return Err(MediaError::Pm { offset, length: bytes.len() as u64 });
            }
            bad.remove(&line);
        }
        self.bytes.lock()[offset.0 as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
    fn write_streaming(&self, offset: PmOffset, bytes: &[u8]) -> Result<(), MediaError> {
        if self.refuses.load(Ordering::Relaxed) {
            return Err(MediaError::Pm { offset, length: bytes.len() as u64 });
        }
        self.write(offset, bytes)
    }
    fn write_back(&self, _: PmOffset, _: u64) {}
    fn order_at(&self, _: &'static std::panic::Location<'static>) {}
    fn persist_at(&self, _: &'static std::panic::Location<'static>) -> Result<(), MediaError> {
        Ok(())
    }
}

fn lines(offset: PmOffset, length: usize) -> std::ops::Range<u64> {
    offset.0 / 64..(offset.0 + length as u64).div_ceil(64)
}
