//! Write-back into PM ([HiNFS] section 4.1): dirty lines of a page whose home is PM go into the block that the file has, or
//! the page into a new block.
//!
//! 1. [`lazy_look`](super::lazy_look) copies pages under the shared inode lock, and stores lines that stay in their blocks
//!    without it.
//! 2. New blocks are streamed without a lock.
//! 3. The lines are ordered before the record that names them.
//! 4. [`lazy_install`](super::lazy_install) installs the pages under the exclusive lock.
//!
//! A page that needs content of media beside its own goes whole, under the exclusive lock ([`absorb`]); so does a new block
//! for which nothing is free but the promise of its page.

use crate::write_back::group::Written;
use crate::write_back::into_pm::absorb;
use crate::write_back::lazy_install::install_lazy;
use crate::write_back::lazy_look::{Look, Place, look_at_lazy};
use terrace_blocks::{Claim, Purpose, Target};
use terrace_cache::DirtyPage;
use terrace_format::table::DataChecksum;
use terrace_format::{BLOCK_SIZE, FileBlock, Ino, LineMask, PmBlock};
use terrace_runtime::planted::{Mistake, planted};
use terrace_runtime::{interleave, pause};
use terrace_store::attempt::with_pages::with_pages;
use terrace_store::change::give_back::give_back_unless_named;
use terrace_store::error::{FsError, FsResult};
use terrace_store::lookup::data_checksum::{checksum_of, covered};
use terrace_store::steering::learn::note_written_back;
use terrace_store::store::Store;
use terrace_store::types::Wait;
use terrace_wal::{Error, NoSpace};

/// Writes back some of these pages, from the first on. `all`: pages that other threads have in flight too. Called without
/// locks.
///
/// # Errors
/// `WouldBlock`, and what fails for all pages. Other errors come with the result: the other pages are written all the same.
pub(crate) fn write_back_lazy(
    store: &Store,
    ino: Ino,
    blocks: &[FileBlock],
    all: bool,
    wait: Wait,
) -> FsResult<Written> {
    let _flight = store.dram.write_back().begin_lazy();
    let look = with_pages(store, wait, || look_at_lazy(store, ino, blocks, all))?;
    let Some(mut look) = look else { return Ok(Written::default()) };
    look.store_in_place()?;
    let mut failed = look.failed.take();
    interleave::point("lazy:looked");
    stream_new(&mut look, &mut failed);
    pause::at_unlocked("lazy:streamed");
    interleave::point("lazy:streamed");
    let mut written = Written { others: look.others, ..Written::default() };
    if !look.pages.is_empty() {
        if !planted(Mistake::CleanBeforeFence) {
            store.persistent.pm().order();
        }
        let installed = install_lazy(&look, wait);
        give_blocks_back(&mut look, installed.as_deref().unwrap_or_default());
        let installed = match installed {
            Err(error) if error.concerns_one_file() && !store.persistent.wal().is_stopped() => {
                failed.get_or_insert(error);
                Vec::new()
            }
            installed => installed?,
        };
        let installed = look.pages.iter().zip(installed).filter(|(_, installed)| *installed);
        written.blocks.extend(installed.map(|(page, _)| page.copy.key.block));
    }
    if !look.whole.is_empty() {
        look.whole.sort_unstable();
        match absorb(store, ino, &look.whole, wait) {
            Ok(()) => written.blocks.extend(&look.whole),
            Err(error) if error.concerns_one_file() => {
                failed.get_or_insert(error);
            }
            // The next turn meets the error again, and this one has written pages.
            Err(_) if !written.blocks.is_empty() => {}
            Err(error) => return Err(error),
        }
        written.blocks.sort_unstable();
    }
    written.failed = failed.map(|error| (look.last, error));
    Ok(written)
}

/// Streams the pages that go into new blocks. Without a free block a page goes whole.
fn stream_new(look: &mut Look<'_>, failed: &mut Option<FsError>) {
    let (store, ino, visible) = (look.store, look.ino, look.visible);
    for page in &mut look.pages {
        let Place::New { lines, new, .. } = &mut page.place else { continue };
        let block = page.copy.key.block;
        let claimed = store.persistent.blocks().claim(1, Purpose::User);
        let taken = claimed.map(|mut claim| (claim.take(Target::File { ino, block }), claim));
        let (pm, claim) = match taken {
            Ok((Some(pm), claim)) => (pm, claim),
            Ok((None, _)) | Err(Error::NoSpace(NoSpace::Pm)) => {
                look.whole.push(block);
                continue;
            }
            Err(error) => {
                failed.get_or_insert(error.into());
                continue;
            }
        };
        match stream_page(store, pm, &page.copy, *lines, visible) {
            Ok(checksum) => *new = Some((pm, claim, checksum)),
            // The block stays taken: it cannot be stored to.
            Err(error) => {
                failed.get_or_insert(error);
            }
        }
    }
}

/// Streams lines of a page into a block that no reader can see yet; gives the checksum of a whole one, where the pool has
/// checksums.
fn stream_page(
    store: &Store,
    pm: PmBlock,
    copy: &DirtyPage,
    lines: LineMask,
    visible: u64,
) -> FsResult<Option<DataChecksum>> {
    let content = copy.page.bytes();
    for run in lines.runs() {
        let bytes = &content[run.clone()];
        store.persistent.pm().write_streaming(pm.offset().plus(run.start as u64), bytes)?;
        store.devices.io().pm.write(bytes.len());
        note_written_back(store, copy.key.ino, bytes.len());
    }
    let end = covered(copy.key.block.0 * BLOCK_SIZE, visible);
    Ok(if lines.is_full() { checksum_of(store, content, end) } else { None })
}

/// Gives new blocks back that did not come into the file.
fn give_blocks_back(look: &mut Look<'_>, installed: &[bool]) {
    let store = look.store;
    for (index, page) in look.pages.iter_mut().enumerate() {
        if let Place::New { new, .. } = &mut page.place
            && let Some((_, claim, _)) = new.take()
            && !installed.get(index).copied().unwrap_or(false)
        {
            give_back_unless_named(store, || Claim::give_back_all(claim));
        }
    }
}
