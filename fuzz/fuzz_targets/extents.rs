//! Extent maps: root words, extents and heads of nodes of any content; insertions and removals keep a sound head sound.
#![no_main]

use libfuzzer_sys::fuzz_target;
use terrace_format::address::MAX_FILE_BLOCK;
use terrace_format::extent_map::{Extent, ExtentRoot, NODE_ENTRIES, NODE_HEAD_WORDS, NodeHead};

fuzz_target!(|input: &[u8]| {
    let words: Vec<u64> = input.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
    for word in &words {
        if let Some(root) = ExtentRoot::decode(*word) {
            assert_eq!(root.encode(), *word);
        }
    }
    for pair in words.windows(2) {
        let entry = [pair[0], pair[1]];
        if let Some(extent) = Extent::decode(entry) {
            assert_eq!(extent.encode(), entry);
            assert!(extent.length > 0 && extent.end() <= MAX_FILE_BLOCK.0 + 1);
            let middle = extent.first + extent.length / 2;
            if middle > extent.first {
                assert!(extent.before(middle).is_continued_by(&extent.from(middle)));
            }
        }
    }
    let Some(head) = words.first_chunk::<NODE_HEAD_WORDS>() else { return };
    let Some(mut node) = NodeHead::decode(head) else { return };
    assert_eq!(node.encode(), *head);
    let was_sound = node.is_permutation();
    for step in &words[NODE_HEAD_WORDS..] {
        if step & 1 == 0 && node.count < NODE_ENTRIES {
            let place = node.insert((step >> 1) as usize % (node.count + 1));
            assert!(place.is_some_and(|place| usize::from(place) < NODE_ENTRIES));
        } else if node.count > 0 {
            node.remove((step >> 1) as usize % node.count);
        }
    }
    assert_eq!(node.is_permutation(), was_sound);
    assert_eq!(NodeHead::decode(&node.encode()), Some(node));
});
