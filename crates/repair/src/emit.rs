//! Writes the new state into the overlay: a tree that is sound and holds the right entries stays, every other
//! tree is built anew in free blocks.

mod catalog;
mod clustered;
mod cuckoo;
mod extents;
mod inode_file;
mod maps;
mod orphans;
mod radix;
mod table;

use crate::state::Round;
use crate::state::actions::Stuck;
use crate::state::sifted::Sifted;

/// Writes all parts. The block table comes last: all other parts may take blocks.
pub(crate) fn emit(round: &mut Round<'_>, sifted: &Sifted) -> Result<(), Stuck> {
    maps::emit_maps(round)?;
    orphans::emit_orphans(round);
    inode_file::promote_changed_pages(round)?;
    inode_file::emit_inode_file(round)?;
    inode_file::emit_slots(round);
    catalog::emit_catalog(round, &sifted.kept)?;
    table::emit_partial_shadows(round, sifted);
    table::emit_table(round);
    Ok(())
}
