//! Finds existing content of a device or file: known magic numbers, else bytes other than zero at either end.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Bytes looked at on each end.
pub const END_BYTES: u64 = 1 << 20;

/// Name, offset, bytes.
const KNOWN: &[(&str, u64, &[u8])] = &[
    ("a Terrace pool", 0, b"TERRACE0"),
    ("a Terrace pool", 8192, b"TERRACE0"),
    ("a Terrace pool", 0, b"TERRJNL0"),
    ("a tier of a Terrace pool", 0, b"TERRDEV0"),
    ("a tier 0 that a journal has taken over", 0, b"TERRMOV0"),
    ("a tier 0 that a journal has taken over", 8192, b"TERRMOV0"),
    ("an XFS file system", 0, b"XFSB"),
    ("an ext2, ext3 or ext4 file system", 1080, &[0x53, 0xef]),
    ("a Btrfs file system", 65600, b"_BHRfS_M"),
    ("a bcachefs file system", 4120, &[0xc6, 0x85, 0x73, 0xf6]),
    ("an F2FS file system", 1024, &[0x10, 0x20, 0xf5, 0xf2]),
    ("an EROFS file system", 1024, &[0xe2, 0xe1, 0xf5, 0xe0]),
    ("an NTFS file system", 3, b"NTFS    "),
    ("an exFAT file system", 3, b"EXFAT   "),
    ("a FAT file system", 54, b"FAT1"),
    ("a FAT file system", 82, b"FAT32"),
    ("a SquashFS file system", 0, b"hsqs"),
    ("an ISO 9660 file system", 32769, b"CD001"),
    ("a LUKS volume", 0, b"LUKS\xba\xbe"),
    ("an LVM volume", 536, b"LVM2 001"),
    ("a RAID member", 4096, &[0xfc, 0x4e, 0x2b, 0xa9]),
    ("a RAID member", 0, &[0xfc, 0x4e, 0x2b, 0xa9]),
    ("swap space", 4086, b"SWAPSPACE2"),
    ("a GPT partition table", 512, b"EFI PART"),
    ("a boot sector or partition table", 510, &[0x55, 0xaa]),
];

/// The content of a medium of `size` bytes, in words; `None` when both ends are zeros.
pub fn find(file: &File, size: u64) -> io::Result<Option<String>> {
    let head = read(file, 0, END_BYTES.min(size))?;
    for (name, offset, magic) in KNOWN {
        let place = head.get(*offset as usize..*offset as usize + magic.len());
        if place == Some(*magic) {
            return Ok(Some((*name).to_string()));
        }
    }
    let blank = |bytes: &[u8]| bytes.iter().all(|&byte| byte == 0);
    if !blank(&head) {
        return Ok(Some("data in its first MiB".to_string()));
    }
    let tail_bytes = END_BYTES.min(size);
    if !blank(&read(file, size - tail_bytes, tail_bytes)?) {
        return Ok(Some("data in its last MiB".to_string()));
    }
    Ok(None)
}

fn read(file: &File, offset: u64, length: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; length as usize];
    file.read_exact_at(&mut bytes, offset)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_content_is_named() -> io::Result<()> {
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(std::env::temp_dir().join(format!("terrace-signature-{}", std::process::id())))?;
        file.set_len(4 << 20)?;
        assert_eq!(find(&file, 4 << 20)?, None);
        file.write_all_at(b"x", (4 << 20) - 1)?;
        assert_eq!(find(&file, 4 << 20)?.as_deref(), Some("data in its last MiB"));
        file.write_all_at(&[0x53, 0xef], 1080)?;
        assert_eq!(find(&file, 4 << 20)?.as_deref(), Some("an ext2, ext3 or ext4 file system"));
        std::fs::remove_file(std::env::temp_dir().join(format!("terrace-signature-{}", std::process::id())))
    }
}
