//! Catalog page: accessors of any page end with an answer; what is inserted is found.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::collections::BTreeMap;
use terrace_format::page::{PAGE_SIZE, Page};
use terrace_fuzz::patched;

fn touch(mut page: Page, key: &[u8]) {
    let sound = page.verify_header("page").is_ok();
    for index in 0..page.count().min(2100) {
        let (cell, place) = (page.cell(index).is_ok(), page.value_place(index));
        assert_eq!(cell, place.is_ok());
        place.into_iter().for_each(|(at, length)| assert!(at + length <= PAGE_SIZE));
    }
    let found = page.search(key);
    if let Ok(Ok(index) | Err(index)) = found {
        assert!(index <= page.count());
        let _ = page.insert(index, key, b"value");
        if sound {
            let _ = page.remove(index);
        }
    }
    let _ = (page.gap(), page.dead(), page.level());
}

fuzz_target!(|input: &[u8]| {
    let key = &input[..input.len().min(20)];
    let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    let mut page = Page::new(0);
    for part in input.chunks(24) {
        let (key, value) = part.split_at(part.len().min(6));
        let Ok(place) = page.search(key) else { panic!("a page that was made here is sound") };
        match place {
            Err(index) if page.insert(index, key, value) => _ = model.insert(key.to_vec(), value.to_vec()),
            Err(_) => {}
            Ok(index) => {
                page.remove(index).expect("the cell is there");
                model.remove(key);
            }
        }
    }
    page.verify_header("page").expect("a page that was made here is sound");
    let cells = (0..page.count()).map(|index| page.cell(index).expect("its cells too"));
    assert!(cells.eq(model.iter().map(|(key, value)| (key.as_slice(), value.as_slice()))));
    let bytes = patched(&*page.0, input);
    touch(Page(Box::new(*bytes.first_chunk().expect("a page"))), key);
    let mut raw = [0; PAGE_SIZE];
    raw.iter_mut().zip(input).for_each(|(to, from)| *to = *from);
    touch(Page(Box::new(raw)), key);
});
