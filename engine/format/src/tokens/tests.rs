use super::*;
use crate::{Format, scan_whole};

fn open(builder: &IndexBuilder) -> Index<Vec<u8>> {
    Index::open(builder.to_bytes()).unwrap()
}

fn builder() -> IndexBuilder {
    IndexBuilder::new(Format::Tokens, [0; 16], 3).without_keys()
}

/// Begin and length of each window in tokens of two bytes, and its object.
fn windows(index: Index<Vec<u8>>, length: u64, target: bool, stride: u64, keep_rest: bool) -> Vec<(u32, u64, u64)> {
    let windows = Windows::new(index, Window { dtype: Dtype::U16, length, target, stride, keep_rest }).unwrap();
    let at = |n| windows.get(n).map(|span| (span.object, span.offset / 2, span.length / 2)).expect("a window");
    let all = (0..windows.len()).map(at).collect();
    assert_eq!(windows.get(windows.len()), None);
    all
}

#[test]
fn windows_over_files() {
    let index = || {
        let mut builder = builder();
        add(0, 20, Dtype::U16, [], &mut builder).unwrap();
        add(1, 0, Dtype::U16, [], &mut builder).unwrap();
        add(2, 8, Dtype::U16, [], &mut builder).unwrap();
        open(&builder)
    };
    assert_eq!(windows(index(), 4, false, 4, false), [(0, 0, 4), (0, 4, 4), (2, 0, 4)]);
    assert_eq!(windows(index(), 4, false, 4, true), [(0, 0, 4), (0, 4, 4), (0, 8, 2), (2, 0, 4)]);
    assert_eq!(windows(index(), 4, true, 4, false), [(0, 0, 5), (0, 4, 5)]);
    assert_eq!(windows(index(), 4, true, 4, true), [(0, 0, 5), (0, 4, 5), (0, 8, 2), (2, 0, 4)]);
    assert_eq!(windows(index(), 8, false, 1, false), [(0, 0, 8), (0, 1, 8), (0, 2, 8)]);
    assert_eq!(windows(index(), 2, false, 9, true), [(0, 0, 2), (0, 9, 1), (2, 0, 2)]);
    assert_eq!(windows(index(), 2, true, 9, true), [(0, 0, 3), (2, 0, 3)]);
    assert_eq!(windows(index(), 100, false, 1, false), []);
}

#[test]
fn windows_respect_documents() {
    let tokens: Vec<u8> = [5_u16, 0, 1, 2, 3, 0, 0, 9].iter().flat_map(|token| token.to_le_bytes()).collect();
    let mut scanned = builder();
    scan_whole(&mut Scan::new(1, 16, Dtype::U16, 0).unwrap(), &tokens, &mut scanned).unwrap();
    let mut given = builder();
    add(1, 16, Dtype::U16, [2, 6, 7], &mut given).unwrap();
    assert_eq!(scanned.to_bytes(), given.to_bytes());
    assert_eq!(windows(open(&given), 2, false, 2, true), [(1, 0, 2), (1, 2, 2), (1, 4, 2), (1, 6, 1), (1, 7, 1)]);
    assert_eq!(windows(open(&given), 2, true, 2, true), [(1, 0, 2), (1, 2, 3), (1, 4, 2)]);
}

#[test]
fn wrong_arguments_and_files_are_named() {
    let mut index = builder();
    for (ends, says) in [
        ([3, 2], "before token 3 or behind"),
        ([1, 9], "behind the file's last, 8"),
        ([1, u64::MAX], "a document ends"),
    ] {
        let error = add(0, 16, Dtype::U16, ends, &mut index).unwrap_err();
        assert!(error.kind() == Kind::Usage && error.to_string().contains(says), "{error}");
    }
    let error = add(0, 17, Dtype::U32, [], &mut index).unwrap_err();
    assert!(
        error.to_string().contains("at byte 16: the file of 17 bytes ends within a token of type uint32"),
        "{error}"
    );
    for (dtype, token, fits) in [
        (Dtype::U8, 255, true),
        (Dtype::U8, 256, false),
        (Dtype::I32, -1, true),
        (Dtype::I32, 1 << 32, false),
        (Dtype::I32, -1 << 32, false),
        (Dtype::I64, i64::MIN, true),
    ] {
        assert_eq!(Scan::new(0, 0, dtype, token).is_ok(), fits, "{dtype} {token}");
    }
    for (length, stride) in [(0, 1), (1, 0), (u64::MAX, 1)] {
        let window = Window { dtype: Dtype::U16, length, stride, target: false, keep_rest: false };
        assert_eq!(Windows::new(open(&builder()), window).unwrap_err().kind(), Kind::Usage);
    }
    // So many windows that they cannot be counted.
    let mut large = builder();
    (0..1 << 17).for_each(|_| add(0, (1 << 48) - 4, Dtype::U8, [], &mut large).unwrap());
    let window = Window { dtype: Dtype::U8, length: 1, stride: 1, target: false, keep_rest: false };
    assert_eq!(Windows::new(open(&large), window).unwrap_err().kind(), Kind::Undecodable);
}
