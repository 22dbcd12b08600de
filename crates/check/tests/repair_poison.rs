//! Lines of PM that cannot be read until they are written whole, as on media that heal: whatever line of metadata it
//! is, the repair leaves a sound pool, and a second one writes nothing.

mod common;

use common::*;
use std::collections::BTreeSet;
use std::sync::Arc;
use terrace_check::{Devices, Options, repair};
use terrace_format::{BLOCK_SIZE, PmOffset};
use terrace_media::{MediaError, PmMedium, Promise};
use terrace_runtime::sync::Mutex;

/// PM with unreadable lines.
struct Healing {
    bytes: Mutex<Vec<u8>>,
    bad: Mutex<BTreeSet<u64>>,
}

impl Healing {
    fn touched(offset: PmOffset, length: usize) -> std::ops::Range<u64> {
        offset.0 / 64..(offset.0 + length as u64).div_ceil(64)
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
        let length = into.len() as u64;
        let bytes = self.bytes.lock();
        let from = bytes.get(offset.0 as usize..).and_then(|rest| rest.get(..into.len()));
        let bad = self.bad.lock().range(Self::touched(offset, into.len())).next().is_some();
        let Some(from) = from.filter(|_| !bad) else {
            return Err(MediaError::Pm { offset, length });
        };
        into.copy_from_slice(from);
        Ok(())
    }
    fn load_u64(&self, offset: PmOffset) -> Result<u64, MediaError> {
        let mut word = [0; 8];
        self.read(offset, &mut word)?;
        Ok(u64::from_le_bytes(word))
    }
    fn write(&self, offset: PmOffset, bytes: &[u8]) -> Result<(), MediaError> {
        let whole = (offset.0.div_ceil(64))..((offset.0 + bytes.len() as u64) / 64);
        let mut bad = self.bad.lock();
        for line in Self::touched(offset, bytes.len()) {
            if bad.contains(&line) && !whole.contains(&line) {
                return Err(MediaError::Pm { offset, length: bytes.len() as u64 });
            }
            bad.remove(&line);
        }
        self.bytes.lock()[offset.0 as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
    fn write_streaming(&self, offset: PmOffset, bytes: &[u8]) -> Result<(), MediaError> {
        self.write(offset, bytes)
    }
    fn write_back(&self, _: PmOffset, _: u64) {}
    fn fence(&self, _: terrace_media::Fence, _: &'static std::panic::Location<'static>) {}
}

#[test]
fn every_unreadable_line_of_metadata_is_repaired() {
    let mut image = Image::full();
    // Something in the lanes, so that their lines are read.
    let at = image.slot_place(CHILD).plus(terrace_format::inode::InodeSlot::MTIME);
    image.record(0, 0, 20, &[], &[(at, &7u64.to_le_bytes())]);
    let blocks = image.devices().block;
    let (mut found, mut tried) = (0, 0);
    for line in 0..image.next * BLOCK_SIZE / 64 {
        // Every line of the first page of each kind, then some of each.
        if line % 64 > 8 && line % 7 != 0 {
            continue;
        }
        tried += 1;
        let pm = Arc::new(Healing {
            bytes: Mutex::new(image.pm.clone()),
            bad: Mutex::new(BTreeSet::from([line])),
        });
        let devices = Devices { pm: pm.clone(), block: blocks.clone() };
        let result = repair(&devices, &Options::default());
        let site = format!("line {line}, block {}", line / 64);
        assert_eq!(result.failure, None, "{site}");
        assert_eq!(result.left.exit_status(), 0, "{site}: {:#?} {:#?}", result.left.findings, result.actions);
        found += usize::from(result.written);
        let bytes = pm.bytes.lock().clone();
        assert!(!repair(&devices, &Options::default()).written && *pm.bytes.lock() == bytes, "{site}: again");
    }
    println!("{tried} lines, {found} repairs");
    assert!(found > 100, "{found} of {tried}");
}
