//! Copies to and from memory that others may change at the same time, cache-line write-back, fences.
//!
//! Invariants: an aligned 8-byte word is loaded and stored whole. Head and tail that do not fill a
//! word are byte stores, respectively bytes picked from a whole loaded word; everything between is
//! moved by vector instructions at 8-byte-aligned PM addresses, which x86-64 processors execute
//! without tearing an aligned word. All accesses to shared memory are atomics or `asm!`, never plain
//! Rust loads and stores, which would be undefined where another thread stores.
//! The instruction set is chosen once at run time; `Portable` needs none and is tested too.

#[cfg(target_arch = "x86_64")]
mod x86;

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

type Bulk = unsafe fn(from: *const u8, to: *mut u8, lines: usize);

/// The instruction that writes a cache line back to memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteBack {
    Clwb,
    Clflushopt,
    Clflush,
    /// Nothing to issue: enough where only the process can die.
    #[cfg(not(target_arch = "x86_64"))]
    None,
}

/// The instructions chosen for this processor.
#[derive(Clone, Copy)]
pub(crate) struct Kernels {
    name: &'static str,
    load_lines: Bulk,
    store_lines: Bulk,
    stream_lines: Bulk,
    /// Streaming stores bypass the cache; otherwise they must be written back.
    streams: bool,
    write_back: WriteBack,
}

impl Kernels {
    /// The best set this processor has.
    pub(crate) fn detect() -> Kernels {
        // every set in the list runs here, the best one first
        Self::available()[0]
    }

    /// Every set this processor can run, best first (tests run all).
    pub(crate) fn available() -> Vec<Kernels> {
        #[allow(unused_mut)]
        let mut sets = vec![Kernels {
            name: "portable",
            load_lines: portable_load,
            store_lines: portable_store,
            stream_lines: portable_store,
            streams: false,
            write_back: detect_write_back(),
        }];
        #[cfg(target_arch = "x86_64")]
        {
            let x86 = |name, load_lines, store_lines, stream_lines| Kernels {
                name,
                load_lines,
                store_lines,
                stream_lines,
                streams: true,
                write_back: detect_write_back(),
            };
            sets.insert(0, x86("sse2", x86::load_sse2, x86::load_sse2, x86::stream_sse2));
            if is_x86_feature_detected!("avx2") {
                sets.insert(0, x86("avx2", x86::load_avx2, x86::load_avx2, x86::stream_avx2));
            }
            if is_x86_feature_detected!("avx512f") {
                sets.insert(0, x86("avx512", x86::load_avx512, x86::load_avx512, x86::stream_avx512));
            }
        }
        sets
    }

    /// Name of the instruction set and of the write-back instruction.
    pub(crate) fn describe(&self) -> String {
        format!("{} {:?}", self.name, self.write_back).to_lowercase()
    }

    /// Copies out of shared memory.
    ///
    /// # Safety
    /// `from` is readable for `length` bytes rounded outwards to whole words; `to` is writable and
    /// not shared.
    #[inline]
    pub(crate) unsafe fn read(&self, mut from: *const u8, mut to: *mut u8, mut length: usize) {
        // SAFETY: every step stays inside the caller's ranges; partial words are loaded whole, which
        // the caller allows.
        unsafe {
            let head = from as usize & 7;
            if head != 0 && length != 0 {
                let take = (8 - head).min(length);
                let word = load_word(from.sub(head)).to_ne_bytes();
                std::ptr::copy_nonoverlapping(word.as_ptr().add(head), to, take);
                from = from.add(take);
                to = to.add(take);
                length -= take;
            }
            if length >= 64 {
                let lines = length / 64;
                (self.load_lines)(from, to, lines);
                from = from.add(lines * 64);
                to = to.add(lines * 64);
                length %= 64;
            }
            while length >= 8 {
                to.cast::<u64>().write_unaligned(load_word(from));
                from = from.add(8);
                to = to.add(8);
                length -= 8;
            }
            if length != 0 {
                let word = load_word(from).to_ne_bytes();
                std::ptr::copy_nonoverlapping(word.as_ptr(), to, length);
            }
        }
    }

    /// Copies into shared memory through the cache; not written back yet.
    ///
    /// # Safety
    /// `to` is writable for `length` bytes; `from` is readable and not shared.
    #[inline]
    pub(crate) unsafe fn store(&self, mut from: *const u8, mut to: *mut u8, mut length: usize) {
        // SAFETY: every step stays inside the caller's ranges.
        unsafe {
            while to as usize & 7 != 0 && length != 0 {
                (*to.cast::<AtomicU8>()).store(*from, Ordering::Relaxed);
                from = from.add(1);
                to = to.add(1);
                length -= 1;
            }
            if length >= 64 {
                let lines = length / 64;
                (self.store_lines)(from, to, lines);
                from = from.add(lines * 64);
                to = to.add(lines * 64);
                length %= 64;
            }
            while length >= 8 {
                let word = from.cast::<u64>().read_unaligned();
                (*to.cast::<AtomicU64>()).store(word, Ordering::Relaxed);
                from = from.add(8);
                to = to.add(8);
                length -= 8;
            }
            while length != 0 {
                (*to.cast::<AtomicU8>()).store(*from, Ordering::Relaxed);
                from = from.add(1);
                to = to.add(1);
                length -= 1;
            }
        }
    }

    /// Stores and writes back.
    ///
    /// # Safety
    /// As [`Kernels::store`].
    #[inline]
    pub(crate) unsafe fn store_back(&self, from: *const u8, to: *mut u8, length: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            self.store(from, to, length);
            self.write_back(to, length);
        }
    }

    /// Stores whole lines past the cache, edges through it with write-back.
    ///
    /// # Safety
    /// As [`Kernels::store`].
    #[inline]
    pub(crate) unsafe fn stream(&self, mut from: *const u8, mut to: *mut u8, mut length: usize) {
        // SAFETY: every step stays inside the caller's ranges; the bulk starts at a line.
        unsafe {
            let edge = (64 - (to as usize & 63)) & 63;
            if edge != 0 {
                let head = edge.min(length);
                self.store_back(from, to, head);
                from = from.add(head);
                to = to.add(head);
                length -= head;
            }
            let lines = length / 64;
            if lines != 0 {
                (self.stream_lines)(from, to, lines);
                if !self.streams {
                    self.write_back(to, lines * 64);
                }
                from = from.add(lines * 64);
                to = to.add(lines * 64);
                length %= 64;
            }
            if length != 0 {
                self.store_back(from, to, length);
            }
        }
    }

    /// Issues the write-back of every line that the range touches.
    ///
    /// # Safety
    /// The range is mapped.
    #[inline]
    pub(crate) unsafe fn write_back(&self, at: *mut u8, length: usize) {
        if length == 0 {
            return;
        }
        let skew = at as usize & 63;
        let lines = (skew + length).div_ceil(64);
        // SAFETY: the first line holds `at`, the last the range's last byte: all mapped.
        unsafe { write_back_lines(self.write_back, at.sub(skew), lines) }
    }
}

impl Kernels {
    /// Takes the lines that a range touches out of all caches, and waits until they are out.
    ///
    /// The instruction was chosen when the kernels were: asking the processor again would end in the hypervisor of a
    /// virtual machine, which leaves the processor much colder than the lines.
    ///
    /// # Safety
    /// The range is mapped.
    pub(crate) unsafe fn drop_lines(&self, at: *mut u8, length: usize) {
        #[cfg(target_arch = "x86_64")]
        if length > 0 {
            let skew = at as usize & 63;
            let kind = match self.write_back {
                WriteBack::Clflush => WriteBack::Clflush,
                // `clwb` leaves the line in the cache.
                WriteBack::Clwb | WriteBack::Clflushopt => WriteBack::Clflushopt,
            };
            // SAFETY: the first line holds `at`, the last the range's last byte: all mapped. A processor with `clwb` has
            // `clflushopt`; `mfence` changes no data.
            unsafe {
                write_back_lines(kind, at.sub(skew), (skew + length).div_ceil(64));
                std::arch::asm!("mfence", options(nostack, preserves_flags));
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (at, length);
    }
}

/// Orders every store and write-back before it ahead of every one after it.
#[inline]
pub(crate) fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: sfence touches no register and no memory; without `nomem` the compiler moves no access
    // across it.
    unsafe {
        std::arch::asm!("sfence", options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::sync::atomic::fence(Ordering::SeqCst);
}

/// Fetches a line that is about to be stored to.
#[inline]
pub(crate) fn prefetch_for_store(at: *mut u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint; it faults on no address and changes no data.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Fetches a line that is about to be read.
#[inline]
pub(crate) fn prefetch_for_load(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint; it faults on no address and changes no data.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// # Safety
/// `at` is aligned and readable.
#[inline]
unsafe fn load_word(at: *const u8) -> u64 {
    // SAFETY: the caller's promise; atomic, so that racing stores are defined.
    unsafe { (*at.cast::<AtomicU64>()).load(Ordering::Relaxed) }
}

/// # Safety
/// `from` and `to` have `lines` cache lines each; `from` is aligned to words.
unsafe fn portable_load(from: *const u8, to: *mut u8, lines: usize) {
    for word in 0..lines * 8 {
        // SAFETY: the caller gives `lines` lines on both sides; `from` is aligned to words.
        unsafe {
            let value = load_word(from.add(word * 8));
            to.add(word * 8).cast::<u64>().write_unaligned(value);
        }
    }
}

/// # Safety
/// `from` and `to` have `lines` cache lines each; `to` is aligned to words.
unsafe fn portable_store(from: *const u8, to: *mut u8, lines: usize) {
    for word in 0..lines * 8 {
        // SAFETY: the caller gives `lines` lines on both sides; `to` is aligned to words.
        unsafe {
            let value = from.add(word * 8).cast::<u64>().read_unaligned();
            (*to.add(word * 8).cast::<AtomicU64>()).store(value, Ordering::Relaxed);
        }
    }
}

fn detect_write_back() -> WriteBack {
    #[cfg(target_arch = "x86_64")]
    {
        let leaves = std::arch::x86_64::__cpuid(0).eax;
        let features = if leaves >= 7 { std::arch::x86_64::__cpuid_count(7, 0).ebx } else { 0 };
        if features & (1 << 24) != 0 {
            WriteBack::Clwb
        } else if features & (1 << 23) != 0 {
            WriteBack::Clflushopt
        } else {
            WriteBack::Clflush
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    WriteBack::None
}

/// # Safety
/// `first` starts a line and `lines` lines from it are mapped; the processor has the instruction.
#[inline]
unsafe fn write_back_lines(kind: WriteBack, first: *mut u8, lines: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller's promise; the instructions change no data and no register.
    unsafe {
        use std::arch::asm;
        let line = |index: usize| first.add(index * 64);
        match kind {
            WriteBack::Clwb => {
                for index in 0..lines {
                    asm!("clwb [{}]", in(reg) line(index), options(nostack, preserves_flags));
                }
            }
            WriteBack::Clflushopt => {
                for index in 0..lines {
                    asm!("clflushopt [{}]", in(reg) line(index), options(nostack, preserves_flags));
                }
            }
            WriteBack::Clflush => {
                for index in 0..lines {
                    asm!("clflush [{}]", in(reg) line(index), options(nostack, preserves_flags));
                }
            }
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (kind, first, lines);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(align(64))]
    struct Arena([u8; 1024]);

    #[test]
    fn every_set_copies_every_alignment() {
        let source: Vec<u8> = (0..1024u32).map(|i| (i * 7 + 3) as u8).collect();
        for kernels in Kernels::available() {
            for at in (0..72).chain([127, 128, 129]) {
                for length in (0..150).chain([255, 256, 257, 511, 640]) {
                    let mut arena = Arena([0xee; 1024]);
                    let mut back = vec![0u8; length + 2];
                    let pm = arena.0.as_mut_ptr();
                    // SAFETY: at + length <= 1024 and the arena is aligned to lines.
                    unsafe {
                        match length % 3 {
                            0 => kernels.stream(source.as_ptr(), pm.add(at), length),
                            1 => kernels.store_back(source.as_ptr(), pm.add(at), length),
                            _ => kernels.store(source.as_ptr(), pm.add(at), length),
                        }
                        fence();
                        kernels.read(pm.add(at), back.as_mut_ptr().add(1), length);
                    }
                    let label = format!("{} {at} {length}", kernels.describe());
                    assert_eq!(&back[1..=length], &source[..length], "{label}");
                    assert_eq!(&arena.0[at..at + length], &source[..length], "{label}");
                    assert!(back[0] == 0 && back[length + 1] == 0, "{label}");
                    assert!(arena.0[..at].iter().all(|b| *b == 0xee), "{label}");
                    assert!(arena.0[at + length..].iter().all(|b| *b == 0xee), "{label}");
                }
            }
        }
    }
}
