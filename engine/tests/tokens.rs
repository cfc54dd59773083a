//! Records that are windows over arrays of tokens, or documents of them.

use crate::common::{folder, loader};
use fuelrail::{ByteSize, Format, Kind, LoaderBuilder, OrderName};
use std::fs;

fn some(n: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| ((i * (n + 3)) >> 3) as u8).collect()
}

#[test]
fn windows_of_tokens_are_samples_near_each_other_or_anywhere() {
    let (dir, listings) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    // 100 000 tokens of two bytes, 7 000 (no window more than three), and fewer than a window.
    let files: Vec<Vec<u8>> = [200_000, 14_000, 3_000].iter().enumerate().map(|(n, len)| some(n, *len)).collect();
    for (n, bytes) in files.iter().enumerate() {
        fs::write(dir.path().join(format!("tokens-{n}.bin")), bytes).unwrap();
    }
    let bucket = folder(dir.path(), "");
    let tokens =
        || loader(&bucket).format(Format::Tokens).listing_dir(listings.path()).token_window(2_049).batch_size(8);
    for (stride, of_first, order) in
        [(2_048, 48, OrderName::Global), (2_049, 48, OrderName::Chunks), (1_024, 96, OrderName::Chunks)]
    {
        let windows = |len: usize| (len / 2 - 2_049) / stride + 1;
        let expected: Vec<&[u8]> = files[..2]
            .iter()
            .flat_map(|file| (0..windows(file.len())).map(move |n| &file[n * stride * 2..][..2_049 * 2]))
            .collect();
        assert_eq!(windows(files[0].len()), of_first);
        let builder = tokens().token_stride(stride as u64).order(order).chunk_size(ByteSize(32 << 10)).chunk_window(4);
        let mut loader = builder.build().unwrap();
        let mut seen = vec![0; expected.len()];
        while let Some(batch) = loader.next_batch() {
            let batch = batch.unwrap();
            for (i, sample) in batch.samples().enumerate() {
                assert!(
                    batch.field(i, "tokens").unwrap() == sample.bytes && sample.bytes == expected[sample.id.0 as usize]
                );
                seen[sample.id.0 as usize] += 1;
            }
        }
        assert!(seen.iter().all(|times| *times == 1), "{seen:?}");
        let requests = loader.stats().requests;
        let few = if order == OrderName::Global { expected.len() } else { expected.len() / 2 };
        assert!(requests <= few as u64, "{requests} requests for {} windows", expected.len());
    }
    let refused = |builder: LoaderBuilder, kind, word: &str| {
        let error = builder.build().unwrap_err();
        assert!(error.kind() == kind && error.to_string().contains(word), "{error}");
    };
    refused(tokens().token_window(0), Kind::Usage, "token_window is 0");
    refused(tokens().token_window(200_000), Kind::Usage, "no record");
    refused(tokens().token_bytes(3), Kind::Undecodable, "tokens-0.bin");
    refused(tokens().token_bytes(0), Kind::Usage, "token_bytes 0");
}

#[test]
fn no_sample_has_tokens_of_two_documents() {
    const END: u16 = 7;
    let (dir, listings) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    // Documents of 1 to 40 tokens, the last of a file without its end.
    let document = |n: u16| (0..n % 40).map(move |at| 100 + at + n).chain([END]);
    let mut expected = Vec::new();
    for file in 0..3u16 {
        let mut tokens: Vec<u16> = Vec::new();
        for n in 0..50 {
            let tokens_of: Vec<u16> = document(n * 3 + file).filter(|token| *token != END || n < 49).collect();
            tokens.extend(&tokens_of);
            // Windows of 16 that begin every 10, the last as long as what is left.
            let mut begin = 0;
            while begin < tokens_of.len() {
                let end = tokens_of.len().min(begin + 16);
                expected.push(tokens_of[begin..end].to_vec());
                if end == tokens_of.len() {
                    break;
                }
                begin += 10;
            }
        }
        let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
        fs::write(dir.path().join(format!("tokens-{file}.bin")), bytes).unwrap();
    }
    let bucket = folder(dir.path(), "");
    let builder = || {
        let builder = loader(&bucket).format(Format::Tokens).listing_dir(listings.path()).batch_size(8).shuffle(false);
        builder.token_document_end(u64::from(END))
    };
    let read = |builder: LoaderBuilder| {
        let mut loader = builder.build().unwrap();
        let mut samples = Vec::new();
        while let Some(batch) = loader.next_batch() {
            samples.extend(batch.unwrap().samples().map(|sample| {
                sample.bytes.chunks(2).map(|two| u16::from_le_bytes([two[0], two[1]])).collect::<Vec<u16>>()
            }));
        }
        (samples, loader.notices().to_vec())
    };
    let windows = || builder().token_window(16).token_stride(10);
    let (found, notices) = read(windows());
    assert_eq!(found, expected);
    assert!(notices.iter().any(|notice| notice.contains("records found by reading")), "{notices:?}");
    let (again, notices) = read(windows());
    assert!(again == expected && !notices.iter().any(|notice| notice.contains("records found")), "kept: {notices:?}");
    let (whole, _) = read(builder());
    assert_eq!(whole.len(), 150);
    assert!(whole.iter().all(|document| document.iter().filter(|token| **token == END).count() <= 1));
    let error = builder().token_bytes(3).build().unwrap_err();
    assert!(
        error.kind() == Kind::Usage && error.to_string().contains("token_document_end with token_bytes = 3"),
        "{error}"
    );
}
