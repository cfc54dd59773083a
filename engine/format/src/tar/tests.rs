use super::*;
use crate::fuzz::scanned;
use crate::{Format, Index, Scan as _, scan_whole};

/// A ustar header.
fn header(name: &[u8], size: u64, kind: u8) -> [u8; 512] {
    let mut block = [0; 512];
    block[..name.len()].copy_from_slice(name);
    block[124..135].copy_from_slice(format!("{size:011o}").as_bytes());
    block[156] = kind;
    block[257..263].copy_from_slice(b"ustar\0");
    seal(&mut block);
    block
}

fn seal(block: &mut [u8; 512]) {
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

fn member(name: &str, content: &[u8]) -> Vec<u8> {
    typed(name, content, b'0')
}

fn typed(name: &str, content: &[u8], kind: u8) -> Vec<u8> {
    let mut bytes = header(name.as_bytes(), content.len() as u64, kind).to_vec();
    bytes.extend_from_slice(content);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

fn pax(records: &[(&str, &str)], kind: u8) -> Vec<u8> {
    let record = |(key, value): &(&str, &str)| {
        let rest = format!(" {key}={value}\n");
        let length = (1..).find(|length: &usize| *length == length.to_string().len() + rest.len()).unwrap();
        format!("{length}{rest}")
    };
    typed("pax", records.iter().map(record).collect::<String>().as_bytes(), kind)
}

fn read(archive: &[u8]) -> Result<Index<Vec<u8>>> {
    let mut builder = IndexBuilder::new(Format::WebDataset, [0; 16], 1);
    scan_whole(&mut Scan::new(0, archive.len() as u64), archive, &mut builder)?;
    Index::open(builder.to_bytes())
}

fn keys(archive: &[u8]) -> Vec<String> {
    let index = read(archive).unwrap();
    index
        .iter()
        .map(|record| {
            let names: Vec<&str> = record.fields().map(|(name, _)| name).collect();
            format!("{}: {}", record.key().unwrap().escape_ascii(), names.join(" "))
        })
        .collect()
}

#[test]
fn paths_split_as_webdatasets_pattern_does() {
    // What `webdataset.tariterators.base_plus_ext` returns.
    for (path, expected) in [
        ("a.b", Some(("a", "b"))),
        ("a", None),
        ("a.b.c", Some(("a", "b.c"))),
        ("x.y/a.b", Some(("x.y/a", "b"))),
        ("x.y/a", None),
        (".a", None),
        ("x/.a", Some(("x/", "a"))),
        ("x.y/.a", None),
        ("x.y/z/.a.b", Some(("x.y/z/", "a.b"))),
        ("/.a", Some(("/", "a"))),
        ("//.a", Some(("//", "a"))),
        ("a.", Some(("a", ""))),
        ("./a.b", Some(("./a", "b"))),
        ("", None),
    ] {
        assert_eq!(split(path.as_bytes()), expected.map(|(key, field)| (key.as_bytes(), field.as_bytes())), "{path}");
    }
    for (path, meta) in [
        ("__a__", true),
        ("__a__/b.c", true),
        ("__a__.b", false),
        ("a/__b__", false),
        ("__", true),
        ("___", true),
        ("___/a.b", false),
    ] {
        assert_eq!(is_meta(path.as_bytes()), meta, "{path}");
    }
}

#[test]
fn records_end_where_the_key_changes() {
    let archive =
        [member("1.a", b"x"), member("skipped", b""), member("1.B", b""), member("2.a", b""), member("1.a", b"")]
            .concat();
    assert_eq!(keys(&archive), ["1: a b", "2: a", "1: a"]);
    assert_eq!(keys(&[archive, vec![0; 512], b"anything".to_vec()].concat()), ["1: a b", "2: a", "1: a"]);
    assert_eq!(keys(&[0; 10240]), [""; 0]);
}

#[test]
fn an_archive_without_a_block_of_zeroes_at_its_end_is_noted() {
    let open_ends = |archive: &[u8]| {
        let mut index = IndexBuilder::new(Format::WebDataset, [0; 16], 4);
        scan_whole(&mut Scan::new(3, archive.len() as u64), archive, &mut index).unwrap();
        index.open_ends().to_vec()
    };
    let members = [member("1.a", b"x"), member("2.a", &[7; 600])].concat();
    assert_eq!(open_ends(&members), [3]);
    for blocks in [1, 2, 20] {
        assert_eq!(open_ends(&[&members[..], &vec![0; blocks * 512]].concat()), [0; 0], "{blocks} blocks");
    }
}

#[test]
fn compressed_archives_are_named_however_short() {
    for (magic, name) in
        [(&b"\x1F\x8B\x08"[..], "gzip"), (b"\x28\xB5\x2F\xFD", "zstd"), (b"BZh9", "bzip2"), (b"\xFD7zXZ\0", "xz")]
    {
        for len in [100, 511, 512, 5000] {
            let mut file = magic.to_vec();
            file.resize(len, 0x55);
            let error = read(&file).unwrap_err();
            let says = format!("the archive is compressed with {name}");
            assert!(error.to_string().contains(&says) && error.hint().is_some(), "{len} bytes: {error}");
        }
    }
}

#[test]
fn duplicate_fields_are_named() {
    for name in ["d/1.A.b", "d/1.__key__"] {
        let archive = [member("d/1.a.b", b"x"), member(name, b"y")].concat();
        let error = read(&archive).unwrap_err();
        assert_eq!(error.kind(), fuelrail_base::Kind::Undecodable);
        let field = name[4..].to_lowercase();
        let says = format!("at byte 1024: duplicate field '{field}' of record 'd/1': member '{name}'");
        assert!(error.to_string().starts_with(&says), "{error}");
    }
}

#[test]
fn extended_headers_apply_to_what_follows() {
    let long = format!("{}.x", "n".repeat(300));
    let archives = [
        [pax(&[("path", &long), ("mtime", "1.5")], b'x'), member("short.y", b"1"), member("2.z", b"")].concat(),
        [typed("././@LongLink", format!("{long}\0").as_bytes(), b'L'), member("short.y", b"1"), member("2.z", b"")]
            .concat(),
        [
            typed("././@LongLink", &[b'x'; 600], b'K'),
            pax(&[("path", &long)], b'x'),
            member("a", b""),
            member("2.z", b""),
        ]
        .concat(),
        [
            pax(&[("path", "1.one")], b'g'),
            pax(&[("path", &long)], b'x'),
            member("a", b""),
            pax(&[("path", "")], b'g'),
            pax(&[("path", "2.z")], b'g'),
            member("3.a", b""),
        ]
        .concat(),
    ];
    for archive in archives {
        assert_eq!(keys(&archive), [format!("{}: x", &long[..300]), "2: z".to_owned()]);
    }
    // A size above what octal digits hold: in pax, and big-endian.
    let mut large = header(b"2.a", 0, b'0');
    large[124..136].fill(0);
    large[124] = 0x80;
    large[134] = 2;
    seal(&mut large);
    for (header, rest) in [(member("2.a", b""), pax(&[("size", "512")], b'x')), (large.to_vec(), Vec::new())] {
        let archive = [rest, header, vec![1; 512], member("3.a", b"")].concat();
        assert_eq!(keys(&archive), ["2: a", "3: a"]);
    }
}

#[test]
fn flaws_are_typed_errors_with_their_place() {
    let good = member("1.a", b"xyz");
    let mut flipped = [&good[..], &good].concat();
    flipped[1024] ^= 1;
    let lying = header(b"1.a", 5000, b'0').to_vec();
    let huge = {
        let mut h = header(b"1.a", 0, b'0');
        h[124..128].fill(0);
        h[128..136].fill(0xFF);
        h[124] = 0x80;
        seal(&mut h);
        h.to_vec()
    };
    let negative = {
        let mut h = header(b"1.a", 0, b'0');
        h[124..136].fill(0xFF);
        seal(&mut h);
        h.to_vec()
    };
    let bad = |content: &[u8]| [typed("x", content, b'x'), good.clone()].concat();
    for (archive, says) in [
        (vec![], "at byte 0: the object is truncated: a header ends at byte 512, the object at byte 0"),
        (flipped, "at byte 1024: it is no tar header: the checksum does not match"),
        (vec![b'x'; 600], "at byte 0: it is no tar header: the checksum is not a number"),
        (
            [&good[..], &lying].concat(),
            "at byte 1024: the object is truncated: a member of 5000 bytes ends at byte 6656, the object at byte 1536",
        ),
        (huge, "the object is truncated: a member of"),
        (negative, "the size of the member is not a number"),
        (bad(b"99 path=x\n"), "at byte 512: a malformed record of a pax header"),
        (bad(b"path=x\n"), "a malformed record"),
        (bad(b"3 x"), "a malformed record"),
        (bad(b"12 size=-12\n"), "the size in a pax header is not a number"),
        (bad(&[b'x'; (1 << 20) + 1]), "an extended header of 1048577 bytes"),
    ] {
        let error = read(&archive).unwrap_err();
        assert_eq!(error.kind(), fuelrail_base::Kind::Undecodable, "{error}");
        assert!(error.to_string().contains(says), "{says}: {error}");
    }
}

#[test]
fn archives_cut_at_any_byte_are_errors_or_end_between_members() {
    let archive =
        [pax(&[("path", "1.a")], b'x'), member("x", b"abc"), member("1.b", &[1; 600]), vec![0; 1024]].concat();
    for cut in 0..archive.len() {
        let cut_off = read(&archive[..cut]);
        let sound_end = [2048, 3584].contains(&cut) || cut >= 4096;
        let last_blocks = cut > 3584 && cut < 4096;
        assert_eq!(cut_off.is_ok(), sound_end && !last_blocks, "{cut}: {:?}", cut_off.err());
    }
}

#[test]
fn reads_that_are_too_short_can_be_tried_again() {
    let mut builder = IndexBuilder::new(Format::WebDataset, [0; 16], 1);
    let mut scan = Scan::new(0, 10240);
    assert_eq!(scan.need(), Need::Read { offset: 0, at_least: 512 });
    assert_eq!(scan.give(&[0; 511], &mut builder).unwrap_err().kind(), fuelrail_base::Kind::Truncated);
    scan.give(&[0; 512], &mut builder).unwrap();
    assert_eq!(scan.need(), Need::Done);
}

#[test]
fn ten_million_tiny_members_take_the_memory_of_their_index() {
    const MEMBERS: u64 = 10_000_000;
    const CHUNK: usize = 2048;
    let size = MEMBERS * 512;
    let mut chunk = vec![0; CHUNK * 512];
    let mut next = 0;
    let counted = allocation_counter::measure(|| {
        let mut builder = IndexBuilder::new(Format::WebDataset, [0; 16], 1).without_keys();
        let mut scan = Scan::new(0, size);
        while let Need::Read { offset, .. } = scan.need() {
            assert_eq!(offset, next * 512);
            let count = (MEMBERS - next).min(CHUNK as u64);
            for block in chunk.as_chunks_mut::<512>().0.iter_mut().take(count as usize) {
                tiny(block, next);
                next += 1;
            }
            scan.give(&chunk[..count as usize * 512], &mut builder).unwrap();
        }
        assert_eq!(builder.len(), MEMBERS / 2);
        assert!(builder.bytes() <= 128 + MEMBERS / 2 * 24, "{}", builder.bytes());
    });
    let most = MEMBERS / 2 * 24 + (4 << 20);
    assert!(counted.bytes_max < most, "{} of {most}", counted.bytes_max);
}

/// Every second member begins a record. Digits sum up to the checksum without a pass over the block.
fn tiny(block: &mut [u8; 512], number: u64) {
    if block[0] == 0 {
        *block = header(b"00000000.a", 0, b'0');
    }
    let digits = format!("{:08}.{}", number / 2, if number.is_multiple_of(2) { 'a' } else { 'b' });
    let old: u32 = block[..10].iter().map(|byte| u32::from(*byte)).sum();
    let new: u32 = digits.bytes().map(u32::from).sum();
    let sum = u32::from_str_radix(core::str::from_utf8(&block[148..154]).unwrap(), 8).unwrap() + new - old;
    block[..10].copy_from_slice(digits.as_bytes());
    block[148..154].copy_from_slice(format!("{sum:06o}").as_bytes());
}

#[test]
fn scanning_allocates_only_for_the_index() {
    let archive = (0..2000)
        .flat_map(|n| [member(&format!("{n}.a"), b"x"), member(&format!("{n}.b"), b"y")])
        .collect::<Vec<_>>()
        .concat();
    let mut builder = IndexBuilder::new(Format::WebDataset, [0; 16], 1);
    let counted = allocation_counter::measure(|| {
        scanned(&mut Scan::new(0, archive.len() as u64), &archive, 0, &mut builder).unwrap()
    });
    assert!(counted.count_total < 100, "{}", counted.count_total);
}
