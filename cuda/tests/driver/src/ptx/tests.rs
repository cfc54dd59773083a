//! Small kernels written by hand, and what is refused.

use super::reader::Refusal;
use super::{Cause, Fault, Grid, Memory, read, run};

/// Global memory that begins at an address.
struct Bytes(Vec<u8>);

const BASE: u64 = 0x1000;

impl Bytes {
    fn range(&self, at: u64, count: usize) -> Result<std::ops::Range<usize>, String> {
        let start = usize::try_from(at.wrapping_sub(BASE)).unwrap_or(usize::MAX);
        let end = start.checked_add(count).filter(|end| *end <= self.0.len()).ok_or(format!("{at:#x} is outside"))?;
        Ok(start..end)
    }
}

impl Memory for Bytes {
    fn read(&mut self, at: u64, into: &mut [u8]) -> Result<(), String> {
        into.copy_from_slice(&self.0[self.range(at, into.len())?]);
        Ok(())
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), String> {
        let range = self.range(at, bytes.len())?;
        self.0[range].copy_from_slice(bytes);
        Ok(())
    }
}

fn kernel(body: &str) -> String {
    format!(
        ".version 7.4\n.target sm_37\n.address_size 64\n.visible .entry k(.param .u64 out, .param .u32 n)\n{{\n\
         .reg .pred %p<4>; .reg .b16 %h<8>; .reg .b32 %r<16>; .reg .f32 %f<8>; .reg .b64 %rd<8>;\n\
         ld.param.u64 %rd1, [out]; cvta.to.global.u64 %rd1, %rd1; ld.param.u32 %r1, [n];\n{body}\n}}\n"
    )
}

/// Runs a kernel over 64 zeros, with `n` as its second parameter.
fn ran(body: &str, n: u32, grid: Grid) -> Result<Vec<u8>, Fault> {
    let module = read(&kernel(body)).unwrap();
    let mut memory = Bytes(vec![0; 64]);
    let mut parameters = BASE.to_le_bytes().to_vec();
    parameters.extend(n.to_le_bytes());
    run(&module.entries[0], grid, &parameters, &mut memory)?;
    Ok(memory.0)
}

const ONE: Grid = Grid { blocks: [1; 3], threads: [1; 3] };

fn refused(body: &str) -> Refusal {
    read(&kernel(body)).unwrap_err()
}

#[test]
fn every_thread_of_every_block_runs_with_its_own_place() {
    let body = "mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x;\n\
                mad.lo.s32 %r5, %r2, %r3, %r4; setp.ge.u32 %p1, %r5, %r1; @%p1 bra $END;\n\
                cvt.u64.u32 %rd2, %r5; add.s64 %rd3, %rd1, %rd2; add.s32 %r6, %r5, 1; st.global.u8 [%rd3], %r6;\n\
                $END: ret;";
    let grid = Grid { blocks: [4, 1, 1], threads: [8, 1, 1] };
    let memory = ran(body, 30, grid).unwrap();
    let expected: Vec<u8> = (0..64).map(|i| if i < 30 { i + 1 } else { 0 }).collect();
    assert_eq!(memory, expected);
}

#[test]
fn loops_predicates_and_selections() {
    let body = "mov.u32 %r2, 0; mov.u32 %r3, 0;\n\
                L: add.u32 %r3, %r3, %r2; add.u32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, %r1; @%p1 bra L;\n\
                selp.b32 %r4, 7, 9, %p1; @!%p1 mov.u32 %r5, 5; @%p1 mov.u32 %r5, 6;\n\
                st.global.v4.u32 [%rd1], {%r3, %r4, %r5, %r2};";
    let memory = ran(body, 10, ONE).unwrap();
    let words: Vec<u32> = memory[..16].chunks(4).map(|c| u32::from_le_bytes(c.try_into().unwrap())).collect();
    assert_eq!(words, [45, 9, 5, 10]);
}

#[test]
fn floats_and_halves_are_rounded_once() {
    let body = "mov.u32 %r2, 200; cvt.rn.f32.u32 %f1, %r2; fma.rn.f32 %f2, %f1, 0f3B808081, 0fBF000000;\n\
                div.rn.f32 %f3, %f2, 0f3E800000; cvt.rn.f16.f32 %h1, %f3; st.global.b16 [%rd1+2], %h1;\n\
                st.global.f32 [%rd1+4], %f3; mov.b32 %r3, %f3; shr.u32 %r4, %r3, 16; cvt.u16.u32 %h2, %r4;\n\
                st.global.u16 [%rd1], %h2;";
    let memory = ran(body, 0, ONE).unwrap();
    let value = 200f32.mul_add(f32::from_bits(0x3b80_8081), -0.5) / 0.25;
    assert_eq!(memory[4..8], value.to_le_bytes());
    assert_eq!(memory[2..4], super::arithmetic::half_bits(value).to_le_bytes());
    assert_eq!(memory[..2], ((value.to_bits() >> 16) as u16).to_le_bytes());
}

#[test]
fn bytes_are_widened_as_their_type_says() {
    let body = "mov.u32 %r2, 254; st.global.u8 [%rd1], %r2; ld.global.nc.u8 %h1, [%rd1]; ld.global.s8 %r3, [%rd1];\n\
                cvt.u32.u16 %r4, %h1; st.global.u32 [%rd1+4], %r4; st.global.u32 [%rd1+8], %r3;";
    let memory = ran(body, 0, ONE).unwrap();
    assert_eq!(memory[4..8], 254u32.to_le_bytes());
    assert_eq!(memory[8..12], (-2i32).to_le_bytes());
}

#[test]
fn misdeeds_stop_the_kernel_with_line_and_thread() {
    let cases = [
        ("add.s64 %rd2, %rd1, 64; mov.u32 %r2, 1;\nst.global.u8 [%rd2], %r2;", Cause::Address, "line 9"),
        ("mov.u32 %r2, 1; st.global.u32 [%rd1+2], %r2;", Cause::Alignment, "multiple of 4"),
        ("st.global.u32 [%rd1], %r9;", Cause::Conduct, "%r9 is read before it is written"),
        ("L: bra L;", Cause::Endless, "no end"),
    ];
    for (body, cause, words) in cases {
        let fault = ran(body, 0, ONE).unwrap_err();
        assert!(fault.cause == cause && fault.text.contains(words), "{body}: {fault:?}");
        assert!(fault.text.contains("kernel k") && fault.text.contains("thread [0, 0, 0]"));
    }
}

#[test]
fn what_is_not_known_is_refused_with_its_line() {
    let cases = [
        ("bar.sync 0;", "'bar.sync'"),
        ("shfl.sync.bfly.b32 %r2, %r1, 1, 31, -1;", "not known"),
        ("cvt.rn.bf16.f32 %h1, %f1;", "not known"),
        ("cvt.u8.f32 %r2, %f1;", "not known"),
        ("add.f16 %h1, %h2, %h3;", "not known"),
        ("add.u32 %r2, %r1, %h1;", "wrong type"),
        ("add.f32 %f1, %f2, 1;", "no operand"),
        ("mov.u32 %r99, 1;", "no register '%r99'"),
        ("bra NOWHERE;", "no label 'NOWHERE'"),
        ("ld.param.u32 %r1, [m];", "no parameter 'm'"),
        ("ld.shared.u32 %r1, [%rd1];", "not known"),
        ("L: L: ret;", "stands twice"),
        ("mov.u32 %r2, 1", "';' is missing"),
        (".reg .b32 %r1;", "declared twice"),
        ("b32;", "not known"),
    ];
    for (body, words) in cases {
        let refusal = refused(&format!("\n{body}"));
        assert!(refusal.line >= 9 && refusal.why.contains(words), "{body}: {refusal:?}");
    }
    for text in ["", ".version 7.4 .target sm_37 .address_size 32", ".version x", ".version 7.4 .target K80"] {
        assert!(read(text).is_err(), "{text}");
    }
}

#[test]
fn headings_and_parameters_are_read() {
    let text = "// made by hand\n.version 7.1\n.target sm_52\n.address_size 64\n\
                .visible .entry a(.param .u8 x, .param .align 8 .b8 row[12], .param .u64 .ptr .global .align 4 p)\n\
                .maxntid 128, 1, 1\n{ .pragma \"nounroll\"; ret; }\n.entry b() { ret; }";
    let module = read(text).unwrap();
    assert_eq!((module.version, module.target), ((7, 1), 52));
    let places: Vec<(usize, usize)> = module.entries[0].parameters.iter().map(|p| (p.offset, p.bytes)).collect();
    assert_eq!(places, [(0, 1), (8, 12), (24, 8)]);
    assert_eq!(module.entries[1].name, "b");
}
