//! Decoding: what comes out of the loader is what the files say, whichever thread decodes it, at whatever time.

use crate::common::pictures::{self, centre_cropped, difference, jpeg_pixels, png_pixels, scene};
use crate::common::{bucket, folder, loader};
use fuelrail::internal::PictureDecoder;
use fuelrail::{
    BadSamples, Decode, DecodeFunction, Dtype, Error, Fit, Kind, Loader, LoaderBuilder, PerChannel, PixelLayout,
    SampleId, Shape, State, Undecoded,
};
use fuelrail_bucket::{Bucket, DataSet};
use png::{BitDepth, ColorType};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Pixels by epoch and sample.
type Seen = BTreeMap<(u64, u64), Vec<u8>>;

/// Reads to the end, and holds every batch to its shape.
fn read(loader: &mut Loader, decode: &Decode) -> Seen {
    let mut seen = Seen::new();
    for batch in loader {
        let batch = batch.unwrap();
        let bytes = decode.sample_bytes() as usize;
        let (height, width) = (decode.height as usize, decode.width as usize);
        let channels = decode.channels as usize;
        let (samples, dtype, layout) = (batch.len(), decode.dtype, decode.layout);
        assert_eq!(batch.shape(), Some(Shape { samples, height, width, channels, dtype, layout }));
        assert_eq!((batch.bytes().len(), batch.payload_bytes() as usize), (batch.len() * bytes, batch.len() * bytes));
        assert_eq!(batch.offsets(), (0..batch.len()).map(|i| i * bytes).collect::<Vec<_>>());
        for sample in batch.samples() {
            assert!(seen.insert((batch.epoch(), sample.id.0), sample.bytes.to_vec()).is_none(), "delivered once");
        }
    }
    seen
}

fn contents(set: &DataSet) -> BTreeMap<String, Vec<u8>> {
    (0..set.len()).map(|index| (set.key(index), set.content(index))).collect()
}

#[test]
fn digits_are_what_the_png_crate_makes_of_them() {
    let set = DataSet::digits(300, 7);
    let (bucket, files) = (bucket(&set, ""), contents(&set));
    for (shards, threads) in [(1, 1), (2, 3)] {
        let decode = Decode::exact(28, 28, 1);
        let builder = loader(&bucket).shards(shards).batch_size(32).epochs(2).seed(5).decode(decode);
        let mut loader = builder.decode_threads(threads).build().unwrap();
        let seen = read(&mut loader, &decode);
        assert_eq!(seen.len(), 600);
        for ((_, id), pixels) in &seen {
            assert!(*pixels == png_pixels(&files[loader.key(SampleId(*id))]), "sample {id}");
        }
        let stats = loader.stats();
        let decoded = stats.decode.as_ref().expect("decoding is told of");
        assert_eq!((decoded.samples, decoded.refused, decoded.threads), (600, 0, threads));
        assert_eq!((decoded.bytes, decoded.object_bytes), (600 * 784, 2 * set.total_bytes()));
        assert_eq!((stats.samples, stats.bytes), (600, 600 * 784));
        assert!(decoded.cpu_s > 0.0);
        for name in ["decode", "decoded"] {
            let gate = stats.gates.iter().find(|gate| gate.name == name).expect("both gates are told of");
            assert_eq!((gate.passed, gate.capacity), (20, 4), "{name}");
        }
    }
}

#[test]
fn batches_come_in_order_with_their_labels_and_the_short_one_is_short() {
    let set = DataSet::digits(100, 7);
    let bucket = bucket(&set, "latency=uniform:0ms..4ms");
    let build = |builder: LoaderBuilder| builder.batch_size(16).epochs(2).seed(3).shards(3).build().unwrap();
    let raw: Vec<_> = build(loader(&bucket)).map(Result::unwrap).collect();
    assert!(raw.iter().all(|batch| batch.shape().is_none()));
    let decoded = build(loader(&bucket).decode(Decode::exact(28, 28, 1)).decode_threads(3).decode_depth(3));
    let mut count = 0;
    for (batch, raw) in decoded.zip(&raw) {
        let batch = batch.unwrap();
        assert_eq!((batch.seq(), batch.epoch(), batch.step()), (raw.seq(), raw.epoch(), raw.step()));
        assert_eq!((batch.ids(), batch.labels(), batch.positions()), (raw.ids(), raw.labels(), raw.positions()));
        assert_eq!(batch.bytes().len(), batch.len() * 784);
        count += 1;
    }
    assert_eq!((count, raw[6].len()), (14, 4));
}

/// Several kinds of large and small pictures in one batch: the large ones are slow.
#[test]
fn slow_samples_hold_nothing_up_but_their_batch_and_order_stays() {
    let dir = tempfile::tempdir().unwrap();
    let slow = pictures::png(3000, 2000, ColorType::Rgb, BitDepth::Eight, &scene(3000, 2000, 3));
    let quick = pictures::png(8, 8, ColorType::Rgb, BitDepth::Eight, &scene(8, 8, 3));
    let names: Vec<String> = (0..24).map(|n| format!("{n:02}.png")).collect();
    let file = |n: usize| if n.is_multiple_of(8) { slow.clone() } else { quick.clone() };
    let files: Vec<_> = names.iter().enumerate().map(|(n, name)| (name.as_str(), file(n))).collect();
    pictures::write(dir.path(), &files);
    let bucket = folder(dir.path(), "");
    let decode = Decode { fit: Fit::CenterCrop, ..Decode::exact(8, 8, 3) };
    let builder = loader(&bucket).memory_limit("256MB".parse().unwrap()).batch_size(4).shuffle(false);
    let loader = builder.decode(decode).decode_threads(3).build().unwrap();
    let ids: Vec<u64> = loader.flat_map(|batch| batch.unwrap().ids().to_vec()).map(|id| id.0).collect();
    assert_eq!(ids, (0..24).collect::<Vec<_>>());
}

/// The small ones are decoded at a part of their size.
#[test]
fn photos_cropped_at_the_centre_are_what_the_plain_way_makes_of_them() {
    let set = DataSet::photos(60, 3);
    let (bucket, files) = (bucket(&set, ""), contents(&set));
    for (height, width) in [(16, 16), (64, 64), (48, 96), (224, 224), (90, 20)] {
        let decode = Decode { fit: Fit::CenterCrop, ..Decode::exact(height, width, 3) };
        let mut loader = loader(&bucket).batch_size(8).decode(decode).decode_threads(2).build().unwrap();
        let seen = read(&mut loader, &decode);
        assert_eq!(seen.len(), 60);
        for ((_, id), pixels) in &seen {
            let (w, h, rgb) = jpeg_pixels(&files[loader.key(SampleId(*id))]);
            let plain = centre_cropped(&rgb, (w, h), (width as usize, height as usize));
            let apart = difference(pixels, &plain);
            assert!(apart.1 <= 2.0, "sample {id}: {w} × {h} to {width} × {height}: {apart:?}");
        }
    }
}

fn random(bucket: &Bucket) -> LoaderBuilder {
    let decode = Decode { fit: Fit::RandomCrop, flip: true, ..Decode::exact(32, 32, 3) };
    loader(bucket).batch_size(6).epochs(2).seed(9).decode(decode).decode_threads(2)
}

#[test]
fn random_crops_depend_on_seed_epoch_and_sample_only() {
    let set = DataSet::photos(48, 3);
    let bucket = bucket(&set, "");
    let decode = Decode { fit: Fit::RandomCrop, flip: true, ..Decode::exact(32, 32, 3) };
    let all = read(&mut random(&bucket).build().unwrap(), &decode);
    assert_eq!(all.len(), 96);
    let same = (0..48).filter(|&id| all[&(0, id)] == all[&(1, id)]).count();
    assert_eq!(same, 0, "epochs differ");
    let other = read(&mut random(&bucket).seed(10).build().unwrap(), &decode);
    assert!((0..48).all(|id| other[&(0, id)] != all[&(0, id)]), "seeds differ");
    // Whichever threads decode, and however many.
    for (threads, shards, depth) in [(1, 1, 1), (5, 2, 7)] {
        let builder = random(&bucket).decode_threads(threads).shards(shards).decode_depth(depth);
        assert!(read(&mut builder.build().unwrap(), &decode) == all, "{threads} threads");
    }
    for world in [2, 3] {
        let mut joined = Seen::new();
        for rank in 0..world {
            joined.extend(read(&mut random(&bucket).rank(rank).world(world).build().unwrap(), &decode));
        }
        assert!(joined == all, "{world} ranks");
    }
    // Stopped after any batch and gone on with.
    for stop in [0, 1, 5, 8, 11, 15] {
        let mut loader = random(&bucket).build().unwrap();
        let mut joined = Seen::new();
        for _ in 0..stop {
            let batch = loader.next_batch().unwrap().unwrap();
            joined.extend(batch.samples().map(|s| ((batch.epoch(), s.id.0), s.bytes.to_vec())));
        }
        let state = State::from_json(&loader.state().to_json()).unwrap();
        drop(loader);
        joined.extend(read(&mut random(&bucket).resume(state).build().unwrap(), &decode));
        assert!(joined == all, "stopped after {stop} batches");
    }
}

#[test]
fn mirrored_samples_are_the_others_left_to_right() {
    let set = DataSet::digits(200, 2);
    let (bucket, files) = (bucket(&set, ""), contents(&set));
    let decode = Decode { flip: true, ..Decode::exact(28, 28, 1) };
    let mut loader = loader(&bucket).batch_size(20).decode(decode).build().unwrap();
    let mut mirrored = 0;
    for ((_, id), pixels) in read(&mut loader, &decode) {
        let plain = png_pixels(&files[loader.key(SampleId(id))]);
        let other: Vec<u8> = plain.chunks(28).flat_map(|row| row.iter().rev().copied()).collect();
        assert!(pixels == plain || pixels == other, "sample {id}");
        mirrored += usize::from(pixels == other);
    }
    assert!((70..130).contains(&mirrored), "{mirrored} of 200");
}

/// Delivers the files of a folder, in the order of their names.
fn delivered(files: &[(&str, Vec<u8>)], decode: Decode) -> Vec<Vec<u8>> {
    let dir = tempfile::tempdir().unwrap();
    pictures::write(dir.path(), files);
    let bucket = folder(dir.path(), "");
    let mut loader = loader(&bucket).batch_size(4).shuffle(false).decode(decode).build().unwrap();
    read(&mut loader, &decode).into_values().collect()
}

/// As torchvision's `ToTensor` and `Normalize` do it.
#[test]
fn numbers_are_normalised_and_laid_out_as_asked() {
    let (mean, std) = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]);
    let normalised = (Some(PerChannel::new(mean)), Some(PerChannel::new(std)));
    let (rgb, plain) = (scene(10, 6, 3), Decode::exact(6, 10, 3));
    let files = [("a.png", pictures::png(10, 6, ColorType::Rgb, BitDepth::Eight, &rgb))];
    for layout in PixelLayout::ALL {
        for dtype in Dtype::ALL {
            for (mean, std) in [(None, None), normalised].into_iter().filter(|of| dtype != Dtype::U8 || of.0.is_none())
            {
                let wanted = Decode { dtype, layout, mean, std, ..plain };
                let seen = &delivered(&files, wanted)[0];
                let number = |at: usize, channel: usize| {
                    let unit = f32::from(rgb[at]) / 255.0;
                    let [mean, std] = [mean, std].map(|of| of.map(|of| of.values()[channel]));
                    (unit - mean.unwrap_or(0.0)) / std.unwrap_or(1.0)
                };
                for (at, &byte) in rgb.iter().enumerate() {
                    let (pixel, channel) = (at / 3, at % 3);
                    let place = if layout == PixelLayout::Nhwc { at } else { channel * 60 + pixel } * dtype.bytes();
                    let bytes = &seen[place..place + dtype.bytes()];
                    match *bytes {
                        [one] => assert_eq!(one, byte),
                        [low, high] => {
                            // A half of these sizes is no subnormal: its exponent and fraction, less 15 of bias.
                            let bits = u16::from_le_bytes([low, high]);
                            let size = f32::from(bits & 0x3FF | 0x400) * 2f32.powi(i32::from(bits >> 10 & 31) - 25);
                            let half = if bits & 0x7FFF == 0 {
                                0.0
                            } else if bits >> 15 == 1 {
                                -size
                            } else {
                                size
                            };
                            let apart = (half - number(at, channel)).abs();
                            assert!(apart <= number(at, channel).abs() / 2048.0, "{half} for {}", number(at, channel));
                        }
                        _ => assert_eq!(f32::from_le_bytes(bytes.try_into().unwrap()), number(at, channel)),
                    }
                }
            }
        }
    }
    for wrong in [
        Decode { mean: normalised.0, ..plain },
        Decode { dtype: Dtype::F32, std: Some(PerChannel::new([0.5, 0.0, 0.5])), ..plain },
    ] {
        let error = Loader::builder("/nowhere").decode(wrong).build().unwrap_err();
        assert!(error.kind() == Kind::Usage && error.to_string().contains("decode_"), "{error}");
    }
}

#[test]
fn every_kind_of_png_becomes_grey_or_rgb() {
    use ColorType::{Grayscale, GrayscaleAlpha, Indexed, Rgb, Rgba};
    let (rgb, grey) = (scene(10, 6, 3), scene(10, 6, 1));
    let wide = |samples: &[u8]| samples.iter().flat_map(|&s| [s, 0x77]).collect::<Vec<u8>>();
    let with_alpha = |samples: &[u8], n: usize| {
        samples.chunks(n).enumerate().flat_map(|(i, p)| [p, &[i as u8]].concat()).collect::<Vec<u8>>()
    };
    // Two indices of four bits each in a byte, five bytes a row.
    let packed: Vec<u8> = (0..30u8).map(|i| ((i % 4) << 4) | ((i + 1) % 4)).collect();
    let bits: Vec<u8> = (0..12u8).map(|i| if i % 2 == 0 { 0b1010_1010 } else { 0b1100_0000 }).collect();
    let files = [
        ("a.png", pictures::png(10, 6, Rgb, BitDepth::Eight, &rgb)),
        ("b.png", pictures::png(10, 6, Rgb, BitDepth::Sixteen, &wide(&rgb))),
        ("c.png", pictures::png(10, 6, Rgba, BitDepth::Eight, &with_alpha(&rgb, 3))),
        ("d.png", pictures::png(10, 6, Grayscale, BitDepth::Eight, &grey)),
        ("e.png", pictures::png(10, 6, GrayscaleAlpha, BitDepth::Sixteen, &wide(&with_alpha(&grey, 1)))),
        ("f.png", pictures::png(10, 6, Indexed, BitDepth::Four, &packed)),
        ("g.png", pictures::png(10, 6, Grayscale, BitDepth::One, &bits)),
    ];
    let threefold = |grey: &[u8]| grey.iter().flat_map(|&g| [g; 3]).collect::<Vec<u8>>();
    let seen = delivered(&files, Decode::exact(6, 10, 3));
    assert!(seen[0] == rgb && seen[1] == rgb, "16 bits keep the upper eight");
    assert!(seen[2] == rgb, "alpha is dropped, colours stay");
    assert!(seen[3] == threefold(&grey) && seen[4] == threefold(&grey));
    assert_eq!(
        (&seen[5][..3], &seen[5][3..6], &seen[5][9..12]),
        (&[250, 10, 20][..], &[0, 200, 100][..], &[5, 6, 7][..])
    );
    assert_eq!((&seen[6][..3], &seen[6][3..6]), (&[255; 3][..], &[0; 3][..]));

    let seen = delivered(&files, Decode::exact(6, 10, 1));
    let luma = |p: &[u8]| (0.299 * f64::from(p[0]) + 0.587 * f64::from(p[1]) + 0.114 * f64::from(p[2])).round() as u8;
    let lumas: Vec<u8> = rgb.chunks(3).map(luma).collect();
    for seen in &seen[..3] {
        assert!(difference(seen, &lumas).0 <= 1);
    }
    assert!(seen[3] == grey && seen[4] == grey);
    assert_eq!(&seen[6][..4], [255, 0, 255, 0]);
}

/// Restart markers keep libjpeg from stopping after a cut, and change no pixel.
#[test]
fn rows_behind_a_cut_are_not_decoded_and_change_nothing() {
    use jpeg_encoder::{ColorType, Encoder, SamplingFactor};
    let (width, height) = (501, 377);
    let encode = |factor: SamplingFactor, channels: usize, restarts: u16| {
        let (mut file, color) = (Vec::new(), if channels == 1 { ColorType::Luma } else { ColorType::Rgb });
        let mut encoder = Encoder::new(&mut file, 90);
        encoder.set_sampling_factor(factor);
        if restarts > 0 {
            encoder.set_restart_interval(restarts);
        }
        encoder.encode(&scene(width, height, channels), width as u16, height as u16, color).unwrap();
        file
    };
    let factors = [SamplingFactor::F_1_1, SamplingFactor::F_2_2, SamplingFactor::F_2_1, SamplingFactor::F_1_2];
    let kinds = factors.map(|factor| (factor, 3)).into_iter().chain([(SamplingFactor::F_1_1, 1)]);
    for ((factor, channels), side) in kinds.flat_map(|kind| [224, 96, 40, 12].map(|side| (kind, side))) {
        let decode = Decode { fit: Fit::RandomCrop, ..Decode::exact(side, side, channels as u32) };
        let mut decoder = PictureDecoder::new(decode);
        let mut decoded = |file: &[u8], epoch| {
            let mut out = vec![0; decode.sample_bytes() as usize];
            decoder.decode(file, epoch, &mut out).map(|_| out)
        };
        let [file, whole] = [0, 7].map(|restarts| encode(factor, channels, restarts));
        let cut_short = [&file[..file.len() * 7 / 10], &[0x7F, 0xFF, 0xD9]].concat();
        let mut refused = 0;
        for epoch in 0..24 {
            let pixels = decoded(&whole, epoch).unwrap();
            assert!(decoded(&file, epoch).unwrap() == pixels, "{factor:?} {channels} {side} {epoch}");
            match decoded(&cut_short, epoch) {
                Ok(above) => assert!(above == pixels, "{factor:?} {channels} {side} {epoch}"),
                Err(error) => refused += u32::from(error.to_string().contains("truncated")),
            }
        }
        assert!((1..24).contains(&refused), "{factor:?} {channels} {side}: {refused}");
    }
}

#[test]
fn every_kind_of_jpeg_becomes_grey_or_rgb() {
    use jpeg_encoder::{ColorType, SamplingFactor};
    let (rgb, grey) = (scene(50, 40, 3), scene(50, 40, 1));
    let cmyk: Vec<u8> = rgb.chunks(3).flat_map(|p| [255 - p[0], 255 - p[1], 255 - p[2], 0]).collect();
    let jpeg = pictures::jpeg;
    let files = [
        ("a.jpg", jpeg(50, 40, ColorType::Rgb, &rgb, |e| e.set_sampling_factor(SamplingFactor::F_1_1))),
        ("b.jpg", jpeg(50, 40, ColorType::Rgb, &rgb, |e| e.set_sampling_factor(SamplingFactor::F_2_2))),
        ("c.jpg", jpeg(50, 40, ColorType::Rgb, &rgb, |e| e.set_sampling_factor(SamplingFactor::F_2_1))),
        ("d.jpg", jpeg(50, 40, ColorType::Rgb, &rgb, |e| e.set_progressive(true))),
        ("e.jpg", jpeg(50, 40, ColorType::Rgb, &rgb, |e| e.set_restart_interval(3))),
        ("f.jpg", jpeg(50, 40, ColorType::Luma, &grey, |_| ())),
        ("g.jpg", jpeg(50, 40, ColorType::Cmyk, &cmyk, |_| ())),
        ("h.jpg", jpeg(50, 40, ColorType::CmykAsYcck, &cmyk, |_| ())),
    ];
    let threefold = |grey: &[u8]| grey.iter().flat_map(|&g| [g; 3]).collect::<Vec<u8>>();
    let grey_of = |rgb: &[u8]| {
        let luma = |p: &[u8]| 0.299 * f64::from(p[0]) + 0.587 * f64::from(p[1]) + 0.114 * f64::from(p[2]);
        rgb.chunks(3).map(|p| luma(p).round() as u8).collect::<Vec<u8>>()
    };
    // What stands between the headers (the first is JFIF's), or after the last pixel, is of no account.
    let file = files[0].1.clone();
    let (start, end) = file.split_at(20);
    let profile = [&[0xFF, 0xE2, 0, 18][..], b"ICC_PROFILE\0", &[7, 2, 1, 1]].concat();
    let (pixels, marker) = end.split_at(end.len() - 2);
    let odd = [start, &[0, 1, 2, 0xFF][..], &profile, pixels, &[0x12; 40], marker, b"behind"].concat();
    let odds = [("a.jpg", file), ("b.jpg", odd)];
    let seen = delivered(&odds, Decode::exact(40, 50, 3));
    assert!(seen[0] == seen[1]);

    for (n, seen) in delivered(&files, Decode::exact(40, 50, 3)).iter().enumerate() {
        let wanted = if n == 5 { threefold(&grey) } else { rgb.clone() };
        let apart = difference(seen, &wanted);
        assert!(apart.1 < 6.0, "{}: {apart:?}", files[n].0);
    }
    for (n, seen) in delivered(&files, Decode::exact(40, 50, 1)).iter().enumerate() {
        let wanted = if n == 5 { grey.clone() } else { grey_of(&rgb) };
        let apart = difference(seen, &wanted);
        assert!(apart.1 < 4.0, "{}: {apart:?}", files[n].0);
    }
}

#[test]
fn a_function_of_the_program_decodes_into_dense_batches() {
    let set = DataSet::digits(200, 7);
    let (bucket, files) = (bucket(&set, ""), contents(&set));
    // Sixteen numbers of four bytes: id, epoch, length, and the first bytes of the file.
    let wanted = Decode { dtype: Dtype::F32, ..Decode::exact(2, 8, 1) };
    let function = |sample: Undecoded<'_>, out: &mut [u8]| {
        match sample.id.0 {
            13 => return Err(Error::new(Kind::Undecodable, "thirteen")),
            17 => panic!("seventeen"),
            _ => {}
        }
        let numbers = [sample.id.0 as f32, sample.epoch as f32, sample.bytes.len() as f32];
        let numbers = numbers.into_iter().chain(sample.bytes.iter().map(|byte| f32::from(*byte))).take(16);
        out.copy_from_slice(&numbers.flat_map(f32::to_ne_bytes).collect::<Vec<u8>>());
        Ok(())
    };
    let builder =
        loader(&bucket).batch_size(16).epochs(2).decode_threads(2).decode_with(wanted, DecodeFunction::new(function));
    let mut loader = builder.clone().bad_samples(BadSamples::Skip).build().unwrap();
    let (mut seen, mut left_out) = (0, Vec::new());
    while let Some(batch) = loader.next_batch() {
        let batch = batch.unwrap();
        let shape = batch.shape().unwrap();
        assert_eq!((shape.dims(), shape.dtype), ([batch.len(), 2, 8, 1], Dtype::F32));
        for sample in batch.samples() {
            let numbers: Vec<f32> = sample.bytes.as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect();
            let file = &files[loader.key(sample.id)];
            assert_eq!(numbers[..3], [sample.id.0 as f32, batch.epoch() as f32, file.len() as f32]);
            assert!(numbers[3..].iter().zip(file).all(|(number, byte)| *number == f32::from(*byte)));
            seen += 1;
        }
        left_out.extend(batch.left_out().iter().map(|(id, error)| (id.0, error.kind())));
    }
    left_out.sort_unstable_by_key(|(id, _)| *id);
    assert_eq!((seen, left_out), (396, [13, 13, 17, 17].map(|id| (id, Kind::Undecodable)).to_vec()));
    let error = builder.build().unwrap().find_map(Result::err).unwrap();
    assert!(error.kind() == Kind::Undecodable && error.object().is_some(), "{error}");
}

#[test]
fn a_function_that_takes_batches_is_called_once_for_each_and_tells_who_is_bad() {
    let set = DataSet::digits(200, 7);
    let bucket = bucket(&set, "");
    let wanted = Decode::exact(1, 4, 1);
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let function = DecodeFunction::of_batches(move |samples, out| {
        counted.fetch_add(1, Ordering::Relaxed);
        for (sample, out) in samples.iter().zip(out.chunks_exact_mut(4)) {
            match sample.id.0 {
                13 => return Err(Error::new(Kind::Undecodable, "thirteen")),
                17 => panic!("seventeen"),
                id => out.copy_from_slice(&(id as u32).to_ne_bytes()),
            }
        }
        Ok(())
    });
    for policy in [BadSamples::Skip, BadSamples::Quarantine] {
        calls.store(0, Ordering::Relaxed);
        let builder = loader(&bucket).batch_size(16).epochs(2).decode_threads(2).bad_samples(policy);
        let mut loader = builder.decode_with(wanted, function.clone()).build().unwrap();
        let (mut seen, mut left_out, mut bad_batches) = (0, Vec::new(), 0);
        while let Some(batch) = loader.next_batch() {
            let batch = batch.unwrap();
            for sample in batch.samples() {
                assert_eq!(*sample.bytes, (sample.id.0 as u32).to_ne_bytes());
                seen += 1;
            }
            left_out.extend(batch.left_out().iter().map(|(id, error)| (id.0, error.kind())));
            bad_batches += usize::from(!batch.left_out().is_empty());
        }
        left_out.sort_unstable_by_key(|(id, _)| *id);
        assert_eq!((seen, left_out), (396, [13, 13, 17, 17].map(|id| (id, Kind::Undecodable)).to_vec()));
        // Batches of 16, but for the last of an epoch, and each sample of one that failed.
        let most = 26 + 16 * bad_batches;
        assert!(calls.load(Ordering::Relaxed) <= most, "{calls:?} calls, {bad_batches} of 26 batches had a bad sample");
    }
    let builder = loader(&bucket).batch_size(16).decode_with(wanted, function);
    let error = builder.build().unwrap().find_map(Result::err).unwrap();
    let keys = loader(&bucket).build().unwrap();
    let bad = [13, 17].map(|n| keys.key(SampleId(n)).to_owned());
    assert!(bad.iter().any(|key| error.object() == Some(key)), "{error}");
}

#[test]
fn what_is_wrong_with_a_whole_call_is_no_samples_fault_and_said_first() {
    let set = DataSet::digits(8, 7);
    let bucket = bucket(&set, "");
    let function = DecodeFunction::of_batches(|samples, _| {
        Err(Error::new(Kind::Program, format!("{} for {} samples", samples.len() - 1, samples.len())))
    });
    let builder = || loader(&bucket).batch_size(8).decode_with(Decode::exact(1, 4, 1), function.clone());
    let error = builder().build().unwrap().next_batch().unwrap().unwrap_err();
    assert_eq!((error.kind(), error.object(), error.cause()), (Kind::Program, None, "7 for 8 samples"));
    let batch = builder().bad_samples(BadSamples::Skip).build().unwrap().next_batch().unwrap().unwrap();
    assert_eq!((batch.len(), batch.left_out().len()), (0, 8));
    let (_, error) = &batch.left_out()[0];
    assert_eq!(error.cause(), "7 for 8 samples; called with this sample alone: 0 for 1 samples");
}

#[test]
fn bytes_that_a_function_keeps_stay_behind_the_end_of_the_loader() {
    let set = DataSet::digits(200, 7);
    let (bucket, files) = (bucket(&set, ""), contents(&set));
    let kept = Arc::new(Mutex::new(Vec::new()));
    let keeps = Arc::clone(&kept);
    let function = DecodeFunction::of_batches(move |samples, out| {
        keeps.lock().unwrap().extend(samples.iter().take(3).map(|sample| (sample.id, sample.keep())));
        out.fill(0);
        Ok(())
    });
    let mut loader = loader(&bucket).batch_size(16).decode_with(Decode::exact(1, 4, 1), function).build().unwrap();
    let batches = std::iter::from_fn(|| loader.next_batch()).map(Result::unwrap).count();
    let keys: Vec<String> = (0..200).map(|id| loader.key(SampleId(id)).to_owned()).collect();
    drop(loader);
    let kept = kept.lock().unwrap();
    assert_eq!((batches, kept.len()), (13, 3 * 13));
    assert!(kept.iter().all(|(id, bytes)| **bytes == files[&keys[id.0 as usize]]));
}
