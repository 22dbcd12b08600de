//! Requests of the FUSE protocol, as both ways of transport hand them over.
#![no_main]

use libfuzzer_sys::fuzz_target;
use terrace_fuse::protocol::request::{FIXED_BYTES, header};
use terrace_fuse::protocol::{Input, Operation};

/// The bytes that an operation borrows.
fn borrowed<'a>(operation: &Operation<'a>) -> [&'a [u8]; 2] {
    match *operation {
        Operation::Lookup { name }
        | Operation::MakeNode { name, .. }
        | Operation::MakeDirectory { name, .. }
        | Operation::Unlink { name }
        | Operation::RemoveDirectory { name }
        | Operation::Link { name, .. }
        | Operation::Create { name, .. } => {
            assert!(!name.is_empty() && !name.contains(&b'/'));
            [name, &[]]
        }
        Operation::SymbolicLink { name, target } => [name, target],
        Operation::Rename { name, new_name, .. } => [name, new_name],
        Operation::Write(part, data) => {
            assert_eq!(part.size as usize, data.len());
            [data, &[]]
        }
        Operation::SetXattr { name, value, .. } => [name, value],
        Operation::GetXattr { name, .. } | Operation::RemoveXattr { name } => [name, &[]],
        _ => [&[], &[]],
    }
}

fn check(opcode: u32, input: Input<'_>, room: usize) {
    let Ok(operation) = Operation::decode(opcode, input) else { return };
    let length: usize = borrowed(&operation).iter().map(|part| part.len()).sum();
    assert!(length <= room, "{length} of {room} bytes are borrowed");
    if let Operation::BatchForget(forgets) = operation {
        assert!(forgets.iter().count() * 16 <= room);
    }
}

fuzz_target!(|input: &[u8]| {
    if let Ok((header, body)) = header(input) {
        assert!(body.len() <= input.len());
        check(header.opcode, Input::Joined(body), body.len());
    }
    let Some((number, rest)) = input.split_first() else { return };
    let opcode = u32::from(*number) % 56;
    check(opcode, Input::Joined(rest), rest.len());
    let mut fixed = [0; FIXED_BYTES];
    let (first, rest) = rest.split_at(rest.len().min(FIXED_BYTES));
    fixed[..first.len()].copy_from_slice(first);
    check(opcode, Input::Apart { fixed: &fixed, rest }, rest.len());
});
