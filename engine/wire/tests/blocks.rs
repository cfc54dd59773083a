//! The format of blocks on disk is pinned: what one version wrote, every later one reads, or says that it does not.

use fuelrail_wire::block::{
    Entry, Fingerprint, Flaw, PAGE_BYTES, RECORD_BYTES, Record, Scan, Scanned, SegmentHeader, SegmentName, entries,
    journal_page, records,
};
use fuelrail_wire::{Endpoint, Etag};
use proptest::prelude::*;

const HEADER: &str = "6675656c7261696c207365676d656e740200000000100000efcdab8967452301efcdab8967452301\
                      000010000000000000f15365000000000000000071955c7c";
const RECORD: &str = "000102030405060708090a0b0c0d0e0f0000800000000000003012000000000040e20100efbeadde\
                      0df0feca010000004d000000efcdab8967452301c8437a23";

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<char> = text.chars().collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(&pair.iter().collect::<String>(), 16).unwrap()).collect()
}

fn header() -> SegmentHeader {
    let id = 0x0123_4567_89ab_cdef_0123_4567_89ab_cdef;
    SegmentHeader { id, len: 1 << 20, unit: 4096, created_s: 1_700_000_000 }
}

fn record() -> Record {
    Record {
        fingerprint: Fingerprint(std::array::from_fn(|i| i as u8)),
        first: 8 << 20,
        len: 123_456,
        place: 0x12_3000,
        crc32c: 0xdead_beef,
        promised: Some(0xcafe_f00d),
        sequence: 77,
        mark: header().mark(),
    }
}

#[test]
fn the_bytes_are_pinned() {
    let page = header().encode();
    assert_eq!(page[..RECORD_BYTES], hex(HEADER));
    assert!(page.len() == PAGE_BYTES && page[RECORD_BYTES..].iter().all(|byte| *byte == 0));
    assert_eq!(SegmentHeader::decode(&page), Ok(header()));
    assert_eq!(record().encode()[..], hex(RECORD));
    assert_eq!(records(&hex(RECORD)).collect::<Vec<_>>(), [record()]);
}

#[test]
fn the_fingerprint_is_pinned_and_every_part_of_it_counts() {
    let at = |uri: &str, key: &str, etag: &str, size| {
        let endpoint: Endpoint = uri.parse().unwrap();
        Fingerprint::of(&endpoint, key, Etag::of(etag), size, true)
    };
    let one = at("http://host:9000/bucket/a/", "a/b.jpg", "\"0123abcd\"", 1_234);
    assert_eq!(one.0[..], hex("a4000d97105fa96ac99560c3b55a7200"));
    assert_eq!(at("http://host:9000/bucket/", "a/b.jpg", "0123abcd", 1_234), one, "prefix and quotes do not count");
    for other in [
        at("https://host:9000/bucket/", "a/b.jpg", "0123abcd", 1_234),
        at("http://host:9001/bucket/", "a/b.jpg", "0123abcd", 1_234),
        at("http://hosts:9000/bucket/", "a/b.jpg", "0123abcd", 1_234),
        at("http://host:9000/bucketa/", "a/b.jpg", "0123abcd", 1_234),
        at("http://host:9000/bucketa/", "/b.jpg", "0123abcd", 1_234),
        at("http://host:9000/bucket/", "a/b.jpeg", "0123abcd", 1_234),
        at("http://host:9000/bucket/", "a/b.jpg", "0123abce", 1_234),
        at("http://host:9000/bucket/", "a/b.jpg", "W/\"0123abcd\"", 1_234),
        at("http://host:9000/bucket/", "a/b.jpg", "0123abcd", 1_235),
    ] {
        assert_ne!(other, one);
    }
    let plain: Endpoint = "http://host:9000/bucket/".parse().unwrap();
    let with_base = Endpoint { base: "account".into(), ..plain.clone() };
    assert_ne!(Fingerprint::of(&with_base, "a/b.jpg", Etag::of("0123abcd"), 1_234, true), one, "accounts are apart");
    let unverified = Fingerprint::of(&plain, "a/b.jpg", Etag::of("0123abcd"), 1_234, false);
    assert_ne!(unverified, one, "and so is what anybody may have written");
}

#[test]
fn a_header_that_is_none_says_why() {
    let page = header().encode();
    let with = |at: usize, byte: u8| {
        let mut page = page;
        page[at] = byte;
        SegmentHeader::decode(&page)
    };
    assert_eq!(SegmentHeader::decode(&page[..PAGE_BYTES - 1]), Err(Flaw::Short));
    assert_eq!(SegmentHeader::decode(&[0; PAGE_BYTES]), Err(Flaw::Foreign));
    assert_eq!(with(0, b'F'), Err(Flaw::Foreign));
    assert_eq!(with(16, 9), Err(Flaw::Version(9, 2)));
    assert_eq!(with(24, 9), Err(Flaw::Damaged));
    assert_eq!(with(100, 9), Ok(header()), "after the header nothing is looked at");
    for absurd in [
        SegmentHeader { unit: 1024, ..header() },
        SegmentHeader { len: 3 << 20, ..header() },
        SegmentHeader { len: 1 << 19, ..header() },
        SegmentHeader { len: 1 << 31, ..header() },
    ] {
        assert_eq!(SegmentHeader::decode(&absurd.encode()), Err(Flaw::Absurd), "{absurd:?}");
    }
}

#[test]
fn names_are_exact() {
    let id = 0x0123_4567_89ab_cdef_0123_4567_89ab_cdef;
    for (new, text) in [
        (false, "fuelrail-0123456789abcdef0123456789abcdef.segment"),
        (true, "fuelrail-0123456789abcdef0123456789abcdef.new"),
    ] {
        assert_eq!(SegmentName { id, new }.to_string(), text);
        assert_eq!(SegmentName::parse(text), Some(SegmentName { id, new }));
    }
    for other in [
        "fuelrail-0123456789ABCDEF0123456789abcdef.segment",
        "fuelrail-0123456789abcdef0123456789abcde.segment",
        "fuelrail-0123456789abcdef0123456789abcdef0.segment",
        "fuelrail-+123456789abcdef0123456789abcdef.segment",
        "fuelrail-0123456789abcdef0123456789abcdef.segment~",
        "fuelrail-0123456789abcdef0123456789abcdef.segment.new",
        "Fuelrail-0123456789abcdef0123456789abcdef.segment",
        "fuelrail-.segment",
        "fuelrail.segment",
        "",
    ] {
        assert_eq!(SegmentName::parse(other), None, "{other}");
    }
}

#[test]
fn places_of_pages_end_where_the_header_begins() {
    let len = 5 * PAGE_BYTES as u64;
    let places: Vec<_> = (0..6).map(|page| journal_page(len, page)).collect();
    assert_eq!(places, [Some(16_384), Some(12_288), Some(8_192), Some(4_096), None, None]);
    assert_eq!(journal_page(len, u64::MAX), None);
    let record = Record { place: 4_096, len: 100, ..record() };
    assert!(record.lies_before(4_196) && !record.lies_before(4_195));
    assert!(
        !Record { place: 4_095, ..record }.lies_before(1 << 20)
            && !Record { place: u64::MAX, ..record }.lies_before(u64::MAX)
    );
}

/// A segment's bytes with these records, 64 to a page, some pages left out.
fn segment(len: usize, pages: &[(u64, Vec<Record>)]) -> Vec<u8> {
    let mut bytes = vec![0; len];
    for (page, records) in pages {
        let at = journal_page(len as u64, *page).unwrap() as usize;
        for (nth, record) in records.iter().enumerate() {
            bytes[at + nth * RECORD_BYTES..][..RECORD_BYTES].copy_from_slice(&record.encode());
        }
    }
    bytes
}

fn scan(bytes: &[u8]) -> (Scanned, usize) {
    let new = || Scan::new(&SegmentHeader { len: bytes.len() as u64, ..header() });
    let (mut scan, mut skips, mut read) = (new(), new(), 0);
    while let Some((at, len)) = scan.wants() {
        let wanted = &bytes[at as usize..][..len];
        assert_eq!(skips.wants(), Some((at, len)));
        if wanted.iter().all(|byte| *byte == 0) {
            skips.skip()
        } else {
            skips.take(wanted)
        }
        scan.take(wanted);
        read += len;
    }
    let scanned = scan.finish();
    assert_eq!(skips.finish(), scanned, "what was never written may be passed over");
    (scanned, read)
}

#[test]
fn a_journal_may_be_read_behind_the_pages_that_are_known() {
    let (first, last) = (Record { place: 4096, len: 10, ..record() }, Record { place: 8192, len: 10, ..record() });
    let bytes = segment(1 << 20, &[(0, vec![first]), (3, vec![last])]);
    let whole = SegmentHeader { len: 1 << 20, ..header() };
    for (pages, found) in [(0, vec![first, last]), (1, vec![last]), (4, vec![])] {
        let mut scan = Scan::starting_at(&whole, pages);
        let (at, len) = scan.wants().unwrap();
        scan.take(&bytes[at as usize..][..len]);
        assert_eq!(scan.found(), found.len());
        let scanned = scan.finish();
        assert_eq!((scanned.pages, scanned.records), (if found.is_empty() { 0 } else { 4 }, found));
    }
}

#[test]
fn a_journal_is_read_down_to_the_last_block_whatever_is_missing() {
    const LEN: usize = 1 << 20;
    let block = |place, len| Record { place, len, ..record() };
    assert_eq!(scan(&segment(LEN, &[])), (Scanned { end: 4096, ..Scanned::default() }, LEN - PAGE_BYTES));
    // Pages 0 and 2 of a full segment: page 1 is lost, and below page 2 there are blocks.
    let (low, high) = (block(4096, 4096), block(8192, (LEN - 3 * PAGE_BYTES - 8192) as u32));
    let full = segment(LEN, &[(0, vec![low]), (2, vec![high])]);
    let (found, read) = scan(&full);
    assert_eq!((found.records, found.pages, found.damaged), (vec![low, high], 3, 0));
    assert_eq!(found.end, high.place + u64::from(high.len));
    assert!(read <= 64 * PAGE_BYTES, "{read} bytes of a full segment read");
    // A page in use far down, after many that are not.
    let far = segment(LEN, &[(200, vec![low])]);
    assert_eq!((scan(&far).0.pages, scan(&far).0.records), (201, vec![low]));
    // A record whose block would lie in the journal is none, and neither is half of one.
    let beyond = block((LEN - 2 * PAGE_BYTES) as u64, 4097);
    let mut odd = segment(LEN, &[(0, vec![low, beyond, high])]);
    // Neither is another segment's, nor anything far after the last record: a block without a record.
    odd[300_000..300_064].copy_from_slice(&Record { mark: 1, ..low }.encode());
    odd[400_000..500_000].fill(7);
    let at = LEN - PAGE_BYTES + 2 * RECORD_BYTES;
    odd[at + 20] ^= 1;
    let (found, _) = scan(&odd);
    assert_eq!((found.records, found.damaged, found.pages, found.end), (vec![low], 2, 1, 8192));
}

fn any_record() -> impl Strategy<Value = Record> {
    let numbers = (0u64..1 << 40, 1u32..=1 << 30, any::<u64>(), any::<u32>());
    (any::<[u8; 16]>(), numbers, any::<Option<u32>>(), any::<u32>()).prop_map(
        |(fingerprint, (first, len, place, crc32c), promised, sequence)| Record {
            fingerprint: Fingerprint(fingerprint),
            first,
            len,
            place,
            crc32c,
            promised,
            sequence,
            mark: crc32c.into(),
        },
    )
}

proptest! {
    /// Whatever sectors of a page are torn away, the records that were in the others are there, and no other ones.
    #[test]
    fn a_torn_page_costs_records_and_never_truth(all in prop::collection::vec(any_record(), 64), torn in any::<u8>()) {
        let mut page: Vec<u8> = all.iter().flat_map(Record::encode).collect();
        for sector in (0..8).filter(|sector| torn >> sector & 1 == 1) {
            page[sector * 512..][..512].fill(0);
        }
        let kept: Vec<Record> =
            all.iter().enumerate().filter(|(i, _)| torn >> (i / 8) & 1 == 0).map(|(_, record)| *record).collect();
        prop_assert_eq!(records(&page).collect::<Vec<_>>(), kept);
        prop_assert!(entries(&page).all(|entry| entry != Entry::Damaged));
    }

    /// A page torn in the middle of a record, over what was there before.
    #[test]
    fn half_a_record_is_none(old in any_record(), new in any_record(), cut in 1usize..63) {
        prop_assume!(old != new);
        let mixed: Vec<u8> = new.encode()[..cut].iter().chain(&old.encode()[cut..]).copied().collect();
        let entry = entries(&mixed).next().unwrap();
        prop_assert!(entry == Entry::Damaged || entry == Entry::Record(old) || entry == Entry::Record(new));
    }
}
