//! What must hold for any bytes at all, one function per parser. Fuzz targets and the corpus test run the same ones.
//!
//! Each function panics when an invariant breaks and returns otherwise. Nothing here is for users of the crate.

use crate::bytes::Dtype;
use crate::index::{Field, HEADER_BYTES, Index, IndexBuilder, Span};
use crate::tfrecord::{self, Example};
use crate::{Format, Need, Scan, manifest, mds, tar, tokens};
use fuelrail_base::{Kind, Result};
use xxhash_rust::xxh3::xxh3_64;

/// A parser on trial: its name, and what must hold for any bytes it is given.
pub type Target = (&'static str, fn(&[u8]));

/// Every target of this crate.
pub const TARGETS: [Target; 6 + cfg!(feature = "parquet") as usize] = [
    ("mds", mds),
    #[cfg(feature = "parquet")]
    ("parquet", parquet),
    ("record_index", record_index),
    ("rows", rows),
    ("tar", tar),
    ("tfrecord", tfrecord),
    ("tokens", tokens),
];

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

/// An index that opens can be read as a whole. Its checksums are corrected first, as an attacker would.
fn record_index(bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    if let Some((header, body)) = bytes.split_at_mut_checked(HEADER_BYTES) {
        header[HEADER_BYTES - 16..HEADER_BYTES - 8].copy_from_slice(&xxh3_64(body).to_le_bytes());
        let hash = xxh3_64(&header[..HEADER_BYTES - 8]);
        header[HEADER_BYTES - 8..].copy_from_slice(&hash.to_le_bytes());
    }
    match Index::open(bytes) {
        Ok(index) => {
            let records = index.iter().map(|record| record.fields().count() + record.key().map_or(0, <[u8]>::len));
            assert_eq!(records.filter(|count| *count < usize::MAX).count() as u64, index.len());
        }
        Err(error) => assert_eq!(error.kind(), Kind::Undecodable),
    }
}

/// As it is, and with the checksums of all blocks made right, without which nothing after them would be reached.
fn tar(bytes: &[u8]) {
    let mut sealed = bytes.to_vec();
    for block in sealed.as_chunks_mut::<512>().0.iter_mut().filter(|block| block[257..].starts_with(b"ustar")) {
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    }
    for archive in [bytes, &sealed] {
        any_reads(Format::WebDataset, archive, || tar::Scan::new(0, archive.len() as u64));
    }
}

/// A shard after the `index.json` that ends at the first NUL. The samples that are found can be split or are errors.
fn mds(bytes: &[u8]) {
    let split = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let Ok(set) = mds::DataSet::parse(&bytes[..split]) else { return };
    assert_eq!(mds::Columns::parse(&set.columns.description()).as_ref(), Ok(&set.columns));
    let shard = bytes.get(split + 1..).unwrap_or_default();
    if let Some(Err(error)) = set.compression.map(|compression| compression.decompress(shard, &mut [0; 1000])) {
        assert_eq!(error.kind(), Kind::Undecodable);
    }
    for listed in &set.shards {
        let size = shard.len() as u64;
        let scan = || mds::Scan::new(0, size, listed, &set.columns);
        let index = if scan().is_ok() { any_reads(Format::Mds, shard, || scan().expect("as before")) } else { None };
        for field in index.iter().flat_map(Index::iter).filter_map(|record| record.field(0)) {
            let Field::Span(span) = field else { panic!("a sample is a range") };
            let Ok(fields) = set.columns.split(&shard[span.offset as usize..][..span.length as usize]) else {
                continue;
            };
            let fields: Vec<_> = fields.map(|(column, bytes)| column.encoding.view(bytes)).collect();
            assert_eq!(fields.len(), set.columns.all().len());
        }
    }
}

/// A file that opens has the rows that its groups say, or is damaged.
#[cfg(feature = "parquet")]
fn parquet(bytes: &[u8]) {
    // libFuzzer's hook ends the program at panics that are caught, too; one that is not ends it without the hook.
    static HOOK: std::sync::Once = std::sync::Once::new();
    HOOK.call_once(|| drop(std::panic::take_hook()));
    let size = bytes.len() as u64;
    let read = crate::parquet::File::open(bytes, size, &[]).and_then(|file| {
        file.groups().enumerate().try_for_each(|(number, group)| {
            let pieces = group.ranges.iter().map(|range| bytes[range.start as usize..range.end as usize].to_vec());
            let mut rows = 0;
            file.rows(number, pieces.collect(), &mut |fields| {
                rows += 1;
                assert!(fields.len() <= file.columns().len());
                Ok(())
            })?;
            assert_eq!(rows, group.rows);
            Ok(())
        })
    });
    if let Err(error) = read {
        assert!(matches!(error.kind(), Kind::Undecodable | Kind::Usage | Kind::Truncated), "{error}");
    }
}

/// A manifest; the first byte chooses its syntax. Its objects are as long as the manifest, so that ranges can be checked.
fn rows(bytes: &[u8]) {
    let [choice, text @ ..] = bytes else { return };
    let syntax = if choice % 2 == 0 { manifest::Syntax::Csv } else { manifest::Syntax::Jsonl };
    let size = text.len() as u64;
    any_reads(Format::Manifest, text, || manifest::Scan::new(syntax, size, |key| (key != "none").then_some((1, size))));
}

/// Every record is a frame of the length that it says; its data may be damaged.
fn tfrecord(bytes: &[u8]) {
    let index = any_reads(Format::TfRecord, bytes, || tfrecord::Scan::new(0, bytes.len() as u64));
    for field in index.iter().flat_map(|index| index.iter()).filter_map(|record| record.field(0)) {
        let Field::Span(span) = field else { panic!("a frame is a range") };
        let checked = tfrecord::check(&bytes[span.offset as usize..][..span.length as usize]);
        assert!(checked.as_ref().map_or_else(|error| error.kind() == Kind::Mismatch, |_| true), "{checked:?}");
    }
    if let Ok(features) = Example::default().read(bytes) {
        let names = features.iter().map(|(name, feature)| (name, feature.values().count()));
        names.for_each(|(name, values)| assert_eq!(features.get(name).map(|f| f.values().count()), Some(values)));
    }
}

/// Documents and windows cover the file. The first bytes choose the window.
fn tokens(bytes: &[u8]) {
    let [length, stride, choice, file @ ..] = bytes else { return };
    let (length, stride, keep_rest) = (u64::from(*length), u64::from(*stride), choice & 2 != 0);
    let scan = || tokens::Scan::new(0, file.len() as u64, Dtype::U16, 0x0A0A);
    let Ok(index) = scan().map(|_| any_reads(Format::Tokens, file, || scan().expect("as before"))) else { return };
    let index = index.expect("any whole tokens are documents");
    let (mut ends, mut covered) = (0, 0);
    for field in index.iter().filter_map(|record| record.field(0)) {
        let Field::Span(document) = field else { panic!("a document is a range") };
        assert_eq!(document.offset, ends, "documents cover the file");
        ends += document.length;
        if length == 0 || stride == 0 {
            continue;
        }
        for span in tokens::windows(document, length, stride, keep_rest) {
            assert!(span.length > 0 && span.offset >= document.offset && span.offset + span.length <= ends);
            covered = covered.max(span.offset + span.length);
        }
        assert!(!keep_rest || stride > length || covered == ends, "the rest is kept");
    }
    assert_eq!(ends, file.len() as u64);
}
