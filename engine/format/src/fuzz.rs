//! What must hold for any bytes at all, one function per parser. Fuzz targets and the corpus test run the same ones.
//!
//! Each function panics when an invariant breaks and returns otherwise. Nothing here is for users of the crate.

use crate::index::{Field, Index, IndexBuilder, Span};
use crate::{Format, Need, Scan, tar};
use fuelrail_base::{Kind, Result};

/// A parser on trial: its name, and what must hold for any bytes it is given.
pub type Target = (&'static str, fn(&[u8]));

/// Every target of this crate.
pub const TARGETS: [Target; 2] = [("record_index", record_index), ("tar", tar)];

/// Scans an object by reads that are `extra` bytes longer than needed.
///
/// # Errors
/// Those of the scan.
pub fn scanned(scan: &mut impl Scan, object: &[u8], extra: usize, index: &mut IndexBuilder) -> Result<()> {
    while let Need::Read { offset, at_least } = scan.need() {
        let from = usize::try_from(offset).expect("within the object");
        let end = from + usize::try_from(at_least).expect("within the object");
        assert!(end <= object.len(), "a scan needs {at_least} bytes at {offset} of {}", object.len());
        scan.give(&object[from..end.saturating_add(extra).min(object.len())], index)?;
        assert_ne!(scan.need(), Need::Read { offset, at_least }, "a scan makes progress");
    }
    Ok(())
}

/// Reads of any length give the same records or the same error, and every record lies in the object.
fn any_reads<S: Scan>(format: Format, object: &[u8], scan: impl Fn() -> S) -> Option<Index<Vec<u8>>> {
    let run = |extra| {
        let mut index = IndexBuilder::new(format, [7; 16], 2);
        scanned(&mut scan(), object, extra, &mut index).map(|()| index.to_bytes())
    };
    let whole = run(object.len());
    for extra in [0, 700] {
        assert_eq!(run(extra).is_ok(), whole.is_ok(), "reads of other lengths");
    }
    match whole {
        Ok(bytes) => {
            assert_eq!((run(0).as_ref(), run(700).as_ref()), (Ok(&bytes), Ok(&bytes)));
            let index = Index::open(bytes).expect("what is built can be opened");
            for (_, field) in index.iter().flat_map(|record| record.fields()) {
                let Field::Span(Span { object: number, offset, length }) = field else { continue };
                assert!(number < 2 && offset + length <= object.len() as u64, "a field lies in its object");
            }
            Some(index)
        }
        Err(error) => {
            assert!(matches!(error.kind(), Kind::Undecodable | Kind::Usage | Kind::Mismatch), "{error}");
            None
        }
    }
}

/// An index that opens can be read as a whole.
fn record_index(bytes: &[u8]) {
    match Index::open(bytes) {
        Ok(index) => {
            let objects = index.iter().map(|record| (record.key(), record.fields().count())).collect::<Vec<_>>();
            assert_eq!(objects.len() as u64, index.len());
        }
        Err(error) => assert_eq!(error.kind(), Kind::Undecodable),
    }
}

fn tar(bytes: &[u8]) {
    any_reads(Format::WebDataset, bytes, || tar::Scan::new(0, bytes.len() as u64));
}
