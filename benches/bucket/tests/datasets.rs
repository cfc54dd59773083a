//! Generated content: it decodes, it can be learned from, and it is the same everywhere for ever.

use fuelrail_bucket::{DataSet, ErrorKind, SetKind};
use xxhash_rust::xxh3::xxh3_64;

fn pixels(png: &[u8]) -> Vec<u8> {
    let mut reader = png::Decoder::new(std::io::Cursor::new(png)).read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut pixels).unwrap();
    assert_eq!((info.width, info.height), (28, 28));
    assert_eq!((info.color_type, info.bit_depth), (png::ColorType::Grayscale, png::BitDepth::Eight));
    pixels
}

#[test]
fn digits_decode_and_can_be_learned() {
    let set = DataSet::digits(3000, 11);
    let is_training = |index: u64| !index.is_multiple_of(5);
    let mut sums = vec![[0f64; 784]; 10];
    let mut counts = [0f64; 10];
    for index in (0..set.len()).filter(|&index| is_training(index)) {
        let class = set.class(index) as usize;
        counts[class] += 1.0;
        sums[class].iter_mut().zip(pixels(&set.content(index))).for_each(|(sum, pixel)| *sum += f64::from(pixel));
    }
    let distance = |class: usize, image: &[u8]| -> f64 {
        let means = sums[class].iter().map(|sum| sum / counts[class]);
        means.zip(image).map(|(mean, &pixel)| (mean - f64::from(pixel)).powi(2)).sum()
    };
    let (mut right, mut all) = (0, 0);
    for index in (0..set.len()).filter(|&index| !is_training(index)) {
        let image = pixels(&set.content(index));
        let guess = (0..10).min_by(|&a, &b| distance(a, &image).total_cmp(&distance(b, &image))).unwrap();
        all += 1;
        right += u64::from(guess as u64 == set.class(index));
    }
    let accuracy = right as f64 / f64::from(all);
    // Chance is 0.1. The mean of each class is about the weakest model there is, so it must not be perfect either.
    assert!((0.6..0.999).contains(&accuracy), "accuracy {accuracy}");
}

#[test]
fn photos_decode() {
    let set = DataSet::photos(60, 3);
    let mut widths = Vec::new();
    for index in 0..set.len() {
        let file = set.content(index);
        assert_eq!(file.len() as u64, set.size(index));
        let mut decoder = zune_jpeg::JpegDecoder::new(std::io::Cursor::new(&file));
        let pixels = decoder.decode().unwrap_or_else(|e| panic!("photo {index}: {e:?}"));
        let (width, height) = decoder.dimensions().unwrap();
        assert_eq!(pixels.len(), width * height * 3);
        assert_eq!(file[file.len() - 2..], [0xFF, 0xD9], "ends with the end-of-image marker");
        widths.push(width);
    }
    assert!(widths.contains(&500), "{widths:?}");
}

#[test]
fn photo_sizes_stay_in_bounds() {
    let set = DataSet::photos(20_000, 3);
    let sizes: Vec<u64> = (0..set.len()).map(|i| set.size(i)).collect();
    assert!(sizes.iter().all(|size| (5 << 10..=500 << 10).contains(size)));
    assert!(sizes.iter().any(|&size| size < 30 << 10) && sizes.iter().any(|&size| size > 350 << 10));
}

#[test]
fn any_range_is_the_range_of_the_whole() {
    for set in
        [DataSet::digits(5, 1), DataSet::photos(5, 1), DataSet::volumes(2, 1, 0.005), DataSet::tokens(2, 1, 100_002)]
    {
        for index in 0..set.len() {
            let (key, whole) = (set.key(index), set.content(index));
            set.verify(&key, &whole).unwrap();
            for step in 0..40usize {
                let from = whole.len() * step / 41;
                let to = (from + step * step * 7).min(whole.len());
                assert!(set.content_range(index, from as u64..to as u64) == whole[from..to]);
            }
        }
    }
}

#[test]
fn wrong_bytes_are_named() {
    let set = DataSet::tokens(2, 1, 200_000);
    let key = set.key(0);
    let mut bytes = set.content(0);
    bytes[150_001] ^= 4;
    let error = set.verify(&key, &bytes).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Mismatch);
    assert!(error.to_string().contains("byte 150001"), "{error}");
    assert_eq!(set.verify(&key, &bytes[1..]).unwrap_err().kind(), ErrorKind::Mismatch);
    assert_eq!(set.verify("shard_000002.bin", &[]).unwrap_err().kind(), ErrorKind::NotFound);
    let other = DataSet::tokens(2, 2, 200_000);
    assert!(other.verify(&key, &set.content(0)).is_err(), "the seed chooses the content");
    assert!(set.content(0) != set.content(1), "the key chooses the content");
}

#[test]
fn keys_ascend_and_lead_back_to_their_index() {
    for count in [1, 9, 10, 11, 999, 1001, 12_345] {
        for kind in ["digits", "photos", "volumes", "tokens"] {
            let set = DataSet::new(kind.parse::<SetKind>().unwrap(), count, 0);
            let mut last = String::new();
            for index in 0..count {
                let key = set.key(index);
                assert!(key > last, "{key} after {last}");
                assert_eq!(set.index(&key), Some(index));
                last = key;
            }
            let far = DataSet { count: 100_000_001, ..set.clone() };
            assert!(far.key(9_999_999) < far.key(10_000_000) && far.key(99_999_999) < far.key(100_000_000));
        }
    }
    let set = DataSet::digits(100, 0);
    for key in ["", "training", "training/0/00000", "training/1/00000.png", "training/0/0.png", "training/0/+0000.png"]
    {
        assert_eq!(set.index(key), None, "{key}");
    }
    let classes: Vec<u64> = (0..100).map(|i| set.class(i)).collect();
    assert!(classes.is_sorted() && (0..10).all(|class| classes.iter().filter(|&&c| c == class).count() == 10));
}

/// Content is a contract: results measured with one version must be comparable with those of the next.
#[test]
fn content_is_pinned_for_ever() {
    let hash = |set: DataSet| {
        let mut all = Vec::new();
        for index in [0, 1, set.len() - 1] {
            all.extend(set.key(index).into_bytes());
            all.extend(set.etag(index).into_bytes());
            all.extend(set.content(index));
        }
        xxh3_64(&all)
    };
    let hashes = [
        hash(DataSet::digits(1000, 42)),
        hash(DataSet::photos(1000, 42)),
        hash(DataSet::volumes(10, 42, 0.001)),
        hash(DataSet::tokens(10, 42, 4096)),
    ];
    assert_eq!(
        hashes,
        [0x4082_3f91_8447_bdae, 0x19be_957e_8b48_3c28, 0x3772_6832_fd50_a650, 0x4681_7576_51e6_cac4],
        "{hashes:#x?}"
    );
}
