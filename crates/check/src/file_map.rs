//! Maps of files, by the kind of the pool.

use crate::checker::Checker;
use crate::clustered_map::walk_clustered;
use crate::cuckoo_map::walk_cuckoo;
use crate::extent_map::walk_extents;
use crate::inode_record::InodeRecord;
use crate::table_map::walk_table_map;
use terrace_format::map_kind::MapKind;

/// Walks the map of a file, counts its blocks into the record.
pub(crate) fn walk_file_map(checker: &mut Checker<'_>, record: &mut InodeRecord) {
    match checker.geometry.map {
        MapKind::Radix => checker.radix_map(record),
        MapKind::Extent => walk_extents(checker, record),
        MapKind::Clustered => walk_clustered(checker, record),
        MapKind::Cuckoo => walk_cuckoo(checker, record),
        MapKind::HashfsLinear | MapKind::Hashfs => walk_table_map(checker, record),
    }
}
