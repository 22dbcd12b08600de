//! Loops over whole lines. Each is called through a pointer and never inlined, so that clearing
//! the upper register halves at the end harms nobody.
use std::arch::asm;

macro_rules! line_loop {
    ($(#[$doc:meta])* $name:ident, [$($end:literal)?], $($instruction:literal),+) => {
        $(#[$doc])*
        #[inline(never)]
        pub(super) unsafe fn $name(from: *const u8, to: *mut u8, lines: usize) {
            if lines == 0 {
                return;
            }
            // SAFETY: the caller gives `lines` lines on both sides and a processor that has the
            // instructions; the loop touches nothing else.
            unsafe {
                asm!(
                    "2:",
                    $($instruction,)+
                    "add {from}, 64",
                    "add {to}, 64",
                    "dec {lines}",
                    "jnz 2b",
                    $($end,)?
                    from = inout(reg) from => _,
                    to = inout(reg) to => _,
                    lines = inout(reg) lines => _,
                    out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                    options(nostack),
                );
            }
        }
    };
}

line_loop!(
    load_sse2,
    [],
    "movdqu xmm0, [{from}]",
    "movdqu xmm1, [{from} + 16]",
    "movdqu xmm2, [{from} + 32]",
    "movdqu xmm3, [{from} + 48]",
    "movdqu [{to}], xmm0",
    "movdqu [{to} + 16], xmm1",
    "movdqu [{to} + 32], xmm2",
    "movdqu [{to} + 48], xmm3"
);
line_loop!(
    stream_sse2,
    [],
    "movdqu xmm0, [{from}]",
    "movdqu xmm1, [{from} + 16]",
    "movdqu xmm2, [{from} + 32]",
    "movdqu xmm3, [{from} + 48]",
    "movntdq [{to}], xmm0",
    "movntdq [{to} + 16], xmm1",
    "movntdq [{to} + 32], xmm2",
    "movntdq [{to} + 48], xmm3"
);
line_loop!(
    load_avx2,
    ["vzeroupper"],
    "vmovdqu ymm0, [{from}]",
    "vmovdqu ymm1, [{from} + 32]",
    "vmovdqu [{to}], ymm0",
    "vmovdqu [{to} + 32], ymm1"
);
line_loop!(
    stream_avx2,
    ["vzeroupper"],
    "vmovdqu ymm0, [{from}]",
    "vmovdqu ymm1, [{from} + 32]",
    "vmovntdq [{to}], ymm0",
    "vmovntdq [{to} + 32], ymm1"
);
line_loop!(load_avx512, ["vzeroupper"], "vmovdqu64 zmm0, [{from}]", "vmovdqu64 [{to}], zmm0");
line_loop!(stream_avx512, ["vzeroupper"], "vmovdqu64 zmm0, [{from}]", "vmovntdq [{to}], zmm0");
