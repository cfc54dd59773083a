use super::pages::Pages;
use super::*;
use fuelrail_base::Kind;
use parquet::column::page::PageReader as _;

/// The rows of a file that is in memory.
pub(crate) fn rows(file: &File, bytes: &[u8], take: TakeFields<'_>) -> Result<()> {
    for (number, group) in file.groups().enumerate() {
        let piece = |range: Range<u64>| bytes[range.start as usize..range.end as usize].to_vec();
        file.rows(number, group.ranges.into_iter().map(piece).collect(), take)?;
    }
    Ok(())
}

/// How many rows there are, and the memory that reading them takes beside the file.
fn read(bytes: &[u8]) -> (Result<u64>, u64) {
    let mut result = Ok(0);
    let measured = allocation_counter::measure(|| {
        let mut count = 0;
        let read = File::open(bytes, bytes.len() as u64, &[]).and_then(|file| {
            rows(&file, bytes, &mut |_| {
                count += 1;
                Ok(())
            })
        });
        result = read.map(|()| count);
    });
    (result, measured.bytes_max)
}

fn golden(name: &str) -> Vec<u8> {
    let bytes: &[u8] = match name {
        "rows-snappy" => include_bytes!("../../tests/data/rows-snappy.parquet"),
        "rows-zstd" => include_bytes!("../../tests/data/rows-zstd.parquet"),
        "rows-gzip" => include_bytes!("../../tests/data/rows-gzip.parquet"),
        "rows-none" => include_bytes!("../../tests/data/rows-none.parquet"),
        _ => include_bytes!("../../tests/data/bomb.parquet"),
    };
    bytes.to_vec()
}

/// Most memory that a damaged file of some KiB may take.
const MEMORY_MAX: u64 = 16 << 20;

fn assert_typed(bytes: &[u8], what: &str) {
    let (result, memory) = read(bytes);
    assert!(memory < MEMORY_MAX, "{what} takes {memory} bytes");
    if let Err(error) = result {
        let is_typed = matches!(error.kind(), Kind::Undecodable | Kind::Usage | Kind::Truncated);
        assert!(is_typed && error.hint().is_some(), "{what}: {error}");
    }
}

#[test]
fn a_file_that_is_cut_off_anywhere_is_an_error() {
    for name in ["rows-snappy", "rows-zstd"] {
        let bytes = golden(name);
        assert_eq!(read(&bytes).0, Ok(10));
        for end in 0..bytes.len() {
            assert!(read(&bytes[..end]).0.is_err(), "{name}, {end} bytes");
        }
    }
}

#[test]
fn any_damaged_byte_gives_rows_or_a_typed_error_in_bounded_memory() {
    // What the library panics on is caught; a backtrace would count as memory.
    std::panic::set_hook(Box::new(|_| {}));
    for name in ["rows-snappy", "rows-zstd"] {
        let bytes = golden(name);
        for at in 0..bytes.len() {
            for mask in [0x01, 0xFF] {
                let mut damaged = bytes.clone();
                damaged[at] ^= mask;
                assert_typed(&damaged, &format!("{name}, byte {at} ^ {mask}"));
            }
        }
    }
}

/// The pages of the first column that stores bytes, with a footer that lies about it.
fn lied(name: &str, lie: impl Fn(&ColumnChunkMetaData) -> ColumnChunkMetaData) -> Result<()> {
    let bytes = golden(name);
    let file = File::open(&bytes, bytes.len() as u64, &[]).unwrap();
    let chunk = lie(file.metadata.row_group(1).column(0));
    let mut pages = Pages::of(Pieces::new(vec![(0, bytes.into())]), &chunk).map_err(pages::error)?;
    while pages.get_next_page().map_err(pages::error)?.is_some() {}
    Ok(())
}

#[test]
fn pages_have_no_more_than_the_footer_says() {
    for name in ["rows-snappy", "rows-zstd", "rows-gzip", "rows-none"] {
        assert_eq!(lied(name, Clone::clone), Ok(()), "{name}");
        let shorter = lied(name, |chunk| chunk.clone().into_builder().set_total_uncompressed_size(20).build().unwrap());
        assert!(shorter.unwrap_err().to_string().contains("more bytes than its footer says"), "{name}");
        let fewer = lied(name, |chunk| chunk.clone().into_builder().set_num_values(3).build().unwrap());
        assert!(fewer.unwrap_err().to_string().contains("more values than its footer says"), "{name}");
    }
}

#[test]
fn a_page_that_unpacks_to_much_more_stops_at_what_the_footer_says() {
    // One value of 64 MiB.
    let bytes = golden("bomb");
    assert!(bytes.len() < 16 << 10 && read(&bytes).0 == Ok(1));
    let mut result = Ok(());
    let lie =
        |chunk: &ColumnChunkMetaData| chunk.clone().into_builder().set_total_uncompressed_size(1000).build().unwrap();
    let measured = allocation_counter::measure(|| {
        let file = File::open(&bytes, bytes.len() as u64, &[]).unwrap();
        let chunk = lie(file.metadata.row_group(0).column(0));
        let mut pages = Pages::of(Pieces::new(vec![(0, bytes.clone().into())]), &chunk).unwrap();
        result = pages.get_next_page().map(drop).map_err(pages::error);
    });
    assert!(result.unwrap_err().to_string().contains("more bytes than its footer says"));
    assert!(measured.bytes_max < 1 << 20, "{} bytes", measured.bytes_max);
}

#[test]
fn columns_nested_without_end_are_refused() {
    let file = |depth: usize| {
        // Thrift's compact protocol: version 1; the schema, whose groups have one child each; no row; no row group.
        let mut footer = vec![0x15, 2, 0x19, 0xFC];
        let size = depth + 2;
        footer.extend([size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14].map(|byte| byte as u8));
        footer.extend([0x48, 1, b'a', 0x15, 2, 0]);
        (0..depth).for_each(|_| footer.extend([0x35, 0, 0x18, 1, b'a', 0x15, 2, 0]));
        footer.extend([0x15, 2, 0x25, 0, 0x18, 1, b'a', 0, 0x16, 0, 0x19, 0x0C, 0]);
        let length = footer.len() as u32;
        [b"PAR1", &footer[..], &length.to_le_bytes(), b"PAR1"].concat()
    };
    assert_eq!(read(&file(5)).0, Ok(0));
    assert_eq!(read(&file(1000)).0, Ok(0), "within the stack");
    assert!(read(&file(100_000)).0.unwrap_err().to_string().contains("100002 columns and groups"));
}
