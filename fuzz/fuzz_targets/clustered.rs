//! Lines of the clustered map of any content: keys and values are decoded and encoded again, a changed value leaves the others
//! alone, and homes and distances stay in the table.
#![no_main]

use libfuzzer_sys::fuzz_target;
use terrace_format::Geometry;
use terrace_format::address::MAX_FILE_BLOCK;
use terrace_format::clustered_map::{LINE_WORDS, Line, Lines, Piece};
use terrace_format::geometry::MAX_CLUSTERED_BLOCKS;
use terrace_format::map_kind::MapKind;

fuzz_target!(|input: &[u8]| {
    let geometry = Geometry::choose(2 << 20, 16).and_then(|geometry| geometry.with_map(MapKind::Clustered));
    let Ok(geometry) = geometry else { unreachable!("the smallest pool") };
    let lines = Lines::new([7; 16], &geometry);
    for bytes in input.as_chunks::<64>().0 {
        let words: [u64; LINE_WORDS] = std::array::from_fn(|at| {
            bytes[8 * at..8 * at + 8].iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
        });
        let line = Line(words);
        if let Some(piece) = Piece::decode(line.key()) {
            assert_eq!(piece.key(), line.key());
            assert!(piece.first() <= MAX_FILE_BLOCK);
            let home = lines.home(piece);
            assert!(home < lines.count());
            let number = lines.ahead(home, line.0[1] % lines.count());
            assert!(number < lines.count() && lines.ahead(home, lines.distance(home, number)) == number);
        }
        let mut copy = line;
        for index in 0..16 {
            assert!(line.get(index).is_none_or(|place| place.block.0 < MAX_CLUSTERED_BLOCKS));
            copy.set(index, line.get(index));
            assert_eq!(copy, line, "value {index} encodes again");
        }
        let index = usize::from(bytes[0] % 16);
        copy.set(index, None);
        assert!((0..16).all(|other| copy.get(other) == line.get(other).filter(|_| other != index)));
        assert_eq!(copy.is_empty(), copy.places().next().is_none());
    }
});
