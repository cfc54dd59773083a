//! What is found on a disk: where a segment is gone on with, and which blocks its records are about.

use super::world::tagged_objects;
use crate::spill::{Contents, Known, resume};
use fuelrail_base::{BlockId, SampleId};
use fuelrail_plan::spill::{Mount, PAGE_BYTES, PAGE_RECORDS};
use fuelrail_wire::block::{Record, Scanned};

const SEGMENT_BYTES: u64 = 1 << 20;

#[test]
fn a_segment_that_was_found_is_gone_on_with_behind_whole_pages_while_an_eighth_of_it_is_left() {
    let found = |end, pages| resume(SEGMENT_BYTES, &Scanned { end, pages, ..Scanned::default() });
    let open = |end, records| Mount::Open { end, records };
    assert_eq!(found(PAGE_BYTES, 0), open(PAGE_BYTES, 0));
    assert_eq!(found(PAGE_BYTES + 1, 3), open(2 * PAGE_BYTES, 3 * PAGE_RECORDS));
    // The journal's first page is the segment's last.
    let brim = SEGMENT_BYTES - PAGE_BYTES - SEGMENT_BYTES / 8;
    assert_eq!(found(brim, 0), open(brim, 0));
    assert_eq!(found(brim + 1, 0), Mount::Sealed);
    assert_eq!(found(brim, 1), Mount::Sealed);
    assert_eq!(found(PAGE_BYTES, SEGMENT_BYTES / PAGE_BYTES), Mount::Sealed, "its journal is full");
}

#[test]
fn a_record_is_of_a_block_when_content_place_and_length_are() {
    const BLOCK: u64 = 128 << 10;
    let objects = tagged_objects(&[200_000, 100, 200_000], BLOCK);
    let contents = Contents::new(&objects);
    let record = |sample, first, len: u64| Record {
        fingerprint: objects.fingerprint(SampleId(sample)).unwrap(),
        first,
        len: len as u32,
        place: 8192,
        crc32c: 7,
        promised: Some(9),
        sequence: 0,
        mark: 0,
    };
    let known = |records| contents.known(&Scanned { records, ..Scanned::default() });
    let all = [record(2, BLOCK, 200_000 - BLOCK), record(1, 0, 100), record(0, 0, BLOCK)];
    let blocks = [(2, 1), (1, 0), (0, 0)].map(|(sample, index)| BlockId { sample: SampleId(sample), index });
    let expected = blocks.map(|block| Known { block, place: 8192, crc32c: 7, promised: Some(9) });
    assert_eq!(known(all.to_vec()), expected);
    let other = tagged_objects(&[5; 9], BLOCK).fingerprint(SampleId(8)).unwrap();
    let [whole, ..] = all;
    let odd = [
        Record { len: whole.len - 1, ..whole },
        Record { first: 1, ..whole },
        record(0, 2 * BLOCK, BLOCK),
        Record { place: 8193, ..whole },
        Record { fingerprint: other, ..whole },
    ];
    assert_eq!(known(odd.to_vec()), []);
}
