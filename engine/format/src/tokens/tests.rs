use super::*;
use crate::index::{Field, Index};
use crate::{Format, scan_whole};

/// Begin and length of each window over these documents, and its object.
fn windows(documents: &[(u32, u64, u64)], length: u64, stride: u64, keep_rest: bool) -> Vec<(u32, u64, u64)> {
    let span = |&(object, offset, length): &(u32, u64, u64)| Span { object, offset, length };
    let windows = documents.iter().map(span).flat_map(|span| super::windows(span, length, stride, keep_rest));
    windows.map(|span| (span.object, span.offset, span.length)).collect()
}

#[test]
fn windows_over_files() {
    let files = [(0, 0, 20), (1, 0, 0), (2, 0, 8)];
    assert_eq!(windows(&files, 8, 8, false), [(0, 0, 8), (0, 8, 8), (2, 0, 8)]);
    assert_eq!(windows(&files, 8, 8, true), [(0, 0, 8), (0, 8, 8), (0, 16, 4), (2, 0, 8)]);
    assert_eq!(windows(&files, 16, 2, false), [(0, 0, 16), (0, 2, 16), (0, 4, 16)]);
    assert_eq!(windows(&files, 4, 18, true), [(0, 0, 4), (0, 18, 2), (2, 0, 4)]);
    assert_eq!(windows(&files, 4, 20, true), [(0, 0, 4), (2, 0, 4)]);
    assert_eq!(windows(&files, 200, 2, false), []);
    assert_eq!(windows(&files, 200, 2, true), [(0, 0, 20), (2, 0, 8)]);
    assert_eq!(windows(&[(3, 4, 6)], 4, 2, false), [(3, 4, 4), (3, 6, 4)]);
}

#[test]
fn documents_end_with_their_token() {
    let tokens: Vec<u8> = [5_u16, 0, 1, 2, 3, 0, 0, 9].iter().flat_map(|token| token.to_le_bytes()).collect();
    let mut scanned = IndexBuilder::new(Format::Tokens, [0; 16], 3).without_keys();
    scan_whole(&mut Scan::new(1, 16, Dtype::U16, 0).unwrap(), &tokens, &mut scanned).unwrap();
    let index = Index::open(scanned.to_bytes()).unwrap();
    let documents = index.iter().map(|record| match record.field(0) {
        Some(Field::Span(span)) => (span.object, span.offset, span.length),
        other => panic!("{other:?}"),
    });
    let documents: Vec<_> = documents.collect();
    assert_eq!(documents, [(1, 0, 4), (1, 4, 8), (1, 12, 2), (1, 14, 2)]);
    let all = [(1, 0, 4), (1, 4, 4), (1, 8, 4), (1, 12, 2), (1, 14, 2)];
    assert_eq!(windows(&documents, 4, 4, true), all, "none goes over the end of one");
}

#[test]
fn wrong_arguments_and_files_are_named() {
    let error = Scan::new(0, 17, Dtype::U32, 0).unwrap_err();
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
}
