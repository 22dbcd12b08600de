//! Images of media as text: the lines that are not zero, with a checksum of the whole medium.

use std::fmt::Write;
use terrace_format::checksum::crc32c;

const LINE: usize = 64;

/// The explanation at the head of each file.
const HEAD: &str = "\
# Every medium begins with its name, its bytes and the CRC32C of all of them. Then, of each 64-byte line that is not
# zero: offset, how many equal lines stand there, bytes without the zeros at their end; numbers in hexadecimal.
";

/// A medium: its name and its bytes.
pub type Medium = (String, Vec<u8>);

/// Writes media as text, after a sentence that describes their content.
pub fn encode(sentence: &str, media: &[(&str, &[u8])]) -> String {
    let mut text = format!("# {sentence}\n{HEAD}");
    for (name, bytes) in media {
        assert!(bytes.len().is_multiple_of(LINE), "{name} is not made of lines");
        let _ = writeln!(text, "{name} {:x} crc32c {:08x}", bytes.len(), crc32c(bytes));
        let lines: Vec<&[u8]> = bytes.chunks(LINE).collect();
        let mut at = 0;
        while let Some(line) = lines.get(at) {
            let equal = lines[at..].iter().take_while(|other| *other == line).count();
            if let Some(last) = line.iter().rposition(|byte| *byte != 0) {
                let _ = write!(text, "{:x} {equal:x} ", at * LINE);
                line[..=last].iter().for_each(|byte| _ = write!(text, "{byte:02x}"));
                text.push('\n');
            }
            at += equal;
        }
    }
    text
}

/// Reads media back.
///
/// # Errors
/// A message with the line that cannot be read, or the medium with a wrong checksum.
pub fn decode(text: &str) -> Result<Vec<Medium>, String> {
    let mut media: Vec<(Medium, u32)> = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let wrong = || format!("does not read: {line}");
        let number = |word: &str| usize::from_str_radix(word, 16).map_err(|_| wrong());
        match line.split(' ').collect::<Vec<_>>().as_slice() {
            [name, length, "crc32c", crc] => {
                let crc = u32::from_str_radix(crc, 16).map_err(|_| wrong())?;
                media.push((((*name).to_string(), vec![0; number(length)?]), crc));
            }
            [offset, count, bytes] => {
                let bytes = bytes.as_bytes().chunks(2).map(|pair| {
                    let pair = std::str::from_utf8(pair).map_err(|_| wrong())?;
                    u8::from_str_radix(pair, 16).map_err(|_| wrong())
                });
                let bytes: Vec<u8> = bytes.collect::<Result<_, _>>()?;
                let ((_, medium), _) = media.last_mut().ok_or_else(wrong)?;
                for index in 0..number(count)? {
                    let at = number(offset)? + index * LINE;
                    let place = medium.get_mut(at..at + bytes.len()).ok_or_else(wrong)?;
                    place.copy_from_slice(&bytes);
                }
            }
            _ => return Err(wrong()),
        }
    }
    for ((name, bytes), crc) in &media {
        let found = crc32c(bytes);
        if found != *crc {
            return Err(format!("{name}: CRC32C {found:08x} instead of {crc:08x}"));
        }
    }
    Ok(media.into_iter().map(|(medium, _)| medium).collect())
}
