//! FLAC and WAV as samples: the files under `sounds/` were written by the reference encoder (`flac -8`) from numbers that this test
//! makes again, so what comes out is held against what went in.

use crate::common::pictures::png;
use ::png::{BitDepth, ColorType};
use fuelrail::{BadSamples, Decode, Dtype, Fit, Kind, Loader, PerChannel, PixelLayout};
use std::fs;
use std::path::Path;

const FRAMES: u32 = 5000;

/// The number in this frame and channel of a file, as its encoder was given it.
fn number(frame: u32, channel: u32, bits: u32) -> i64 {
    let (span, frame, channel) = (1i64 << bits, i64::from(frame), i64::from(channel));
    let step = if bits == 8 { 1 } else { span >> 9 };
    let offset = if bits == 8 { 0 } else { channel * span / 7 };
    (frame * (3 + channel) * step + offset) % span - span / 2
}

fn scaled(frame: u32, channel: u32, bits: u32) -> f32 {
    number(frame, channel, bits) as f32 / (1u64 << (bits - 1)) as f32
}

/// A WAV file of the same numbers.
fn wav(channels: u32, bits: u32, frames: u32) -> Vec<u8> {
    let mut data = Vec::new();
    for (frame, channel) in (0..frames).flat_map(|frame| (0..channels).map(move |channel| (frame, channel))) {
        let number = number(frame, channel, bits);
        match bits {
            8 => data.push((number + 128) as u8),
            _ => data.extend_from_slice(&number.to_le_bytes()[..bits as usize / 8]),
        }
    }
    let (block, rate) = (channels * bits / 8, 16_000u32);
    let mut file = b"RIFF".to_vec();
    file.extend((36 + data.len() as u32).to_le_bytes());
    file.extend(b"WAVEfmt ");
    file.extend(16u32.to_le_bytes());
    file.extend([1u16, channels as u16].map(u16::to_le_bytes).concat());
    file.extend([rate, rate * block].map(u32::to_le_bytes).concat());
    file.extend([block as u16, bits as u16].map(u16::to_le_bytes).concat());
    file.extend(b"data");
    file.extend((data.len() as u32).to_le_bytes());
    file.extend(data);
    file
}

fn flac(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sounds").join(name)).unwrap()
}

fn sound(frames: u32, channels: u32, fit: Fit) -> Decode {
    Decode { dtype: Dtype::F32, fit, ..Decode::exact(1, frames, channels) }
}

fn loader(folder: &Path, decode: Decode) -> fuelrail::LoaderBuilder {
    Loader::builder(folder.to_str().unwrap())
        .batch_size(1)
        .shuffle(false)
        .memory_limit("64MiB".parse().unwrap())
        .decode(decode)
}

/// The numbers of the only sample.
fn decoded(file: &[u8], decode: Decode) -> fuelrail::Result<Vec<f32>> {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a"), file).unwrap();
    let batch = loader(folder.path(), decode).build()?.next_batch().expect("one batch")?;
    let bytes = batch.sample(0).chunks_exact(4);
    Ok(bytes.map(|four| f32::from_ne_bytes(four.try_into().unwrap())).collect())
}

#[test]
fn flac_and_wav_give_the_numbers_that_were_encoded() {
    for (name, channels, bits) in [("mono8", 1, 8), ("mono16", 1, 16), ("mono24", 1, 24), ("stereo16", 2, 16)] {
        let places = (0..FRAMES).flat_map(|frame| (0..channels).map(move |channel| (frame, channel)));
        let expected: Vec<f32> = places.map(|(frame, channel)| scaled(frame, channel, bits)).collect();
        let exact = sound(FRAMES, channels, Fit::Exact);
        assert!(decoded(&flac(&format!("{name}.flac")), exact).unwrap() == expected, "{name}.flac");
        assert!(decoded(&wav(channels, bits, FRAMES), exact).unwrap() == expected, "{name}.wav");
    }
    let exact = sound(FRAMES, 1, Fit::Exact);
    let of_32_bits: Vec<f32> = (0..FRAMES).map(|frame| scaled(frame, 0, 32)).collect();
    let mut file = wav(1, 32, FRAMES);
    assert!(decoded(&file, exact).unwrap() == of_32_bits, "integers of 32 bits");
    // The same bits as floating point: code 3, and numbers from -1 to 1.
    file[20] = 3;
    let data = file.len() - FRAMES as usize * 4;
    file.splice(data.., of_32_bits.iter().flat_map(|number| number.to_le_bytes()));
    assert!(decoded(&file, exact).unwrap() == of_32_bits, "floating point");
}

#[test]
fn layout_channels_and_normalisation_are_as_asked() {
    let stereo = flac("stereo16.flac");
    let planes = Decode { layout: PixelLayout::Nchw, ..sound(FRAMES, 2, Fit::Exact) };
    let planar = decoded(&stereo, planes).unwrap();
    let at = |frame: u32, channel: u32| planar[(channel * FRAMES + frame) as usize];
    assert!((0..FRAMES).all(|frame| (0..2).all(|channel| at(frame, channel) == scaled(frame, channel, 16))));
    let mono = decoded(&stereo, sound(FRAMES, 1, Fit::Exact)).unwrap();
    let mean = |frame| (scaled(frame, 0, 16) + scaled(frame, 1, 16)) / 2.0;
    assert!((0..FRAMES).all(|frame| mono[frame as usize] == mean(frame)), "two channels become their mean");
    let both = decoded(&flac("mono16.flac"), sound(FRAMES, 2, Fit::Exact)).unwrap();
    assert!(both.chunks(2).zip(0..).all(|(pair, frame)| pair == [scaled(frame, 0, 16); 2]), "one channel goes to both");
    let (mean, std) = (Some(PerChannel::new([0.5; 3])), Some(PerChannel::new([2.0; 3])));
    let normalised = decoded(&stereo, Decode { mean, std, ..sound(FRAMES, 2, Fit::Exact) }).unwrap();
    assert_eq!(normalised[2], (scaled(1, 0, 16) - 0.5) / 2.0);
}

#[test]
fn a_longer_sound_is_cut_and_silence_is_put_behind_a_shorter_one() {
    let file = flac("mono16.flac");
    let middle = decoded(&file, sound(1000, 1, Fit::CenterCrop)).unwrap();
    assert!(middle.iter().zip(2000..).all(|(number, frame)| *number == scaled(frame, 0, 16)));
    let padded = decoded(&file, sound(6000, 1, Fit::CenterCrop)).unwrap();
    assert_eq!((padded[4999], &padded[5000..]), (scaled(4999, 0, 16), &[0.0; 1000][..]));
    // A random part: another in every epoch, the same in a second run.
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a.flac"), &file).unwrap();
    fs::write(folder.path().join("b.wav"), wav(1, 16, FRAMES)).unwrap();
    let run = || {
        let loader = loader(folder.path(), sound(1000, 1, Fit::RandomCrop)).epochs(4).seed(3).build().unwrap();
        let firsts = loader.map(|batch| f32::from_ne_bytes(batch.unwrap().sample(0)[..4].try_into().unwrap()));
        firsts.collect::<Vec<f32>>()
    };
    let firsts = run();
    assert_eq!(firsts, run());
    assert_eq!(firsts.len(), 8);
    assert!(firsts.windows(2).any(|pair| pair[0] != pair[1]), "{firsts:?}");
}

#[test]
fn what_is_not_sound_in_every_sense_is_refused_by_name() {
    let (flac, wav) = (flac("mono16.flac"), wav(1, 16, FRAMES));
    let exact = sound(FRAMES, 1, Fit::Exact);
    let refused = |file: &[u8], decode: Decode| {
        let error = decoded(file, decode).unwrap_err();
        assert!(error.kind() == Kind::Undecodable && error.object() == Some("a"), "{error}");
        error.to_string()
    };
    for file in [&flac, &wav] {
        let cut_off = refused(&file[..file.len() / 2], exact);
        assert!(cut_off.contains("end") || cut_off.contains("not whole"), "{cut_off}");
        assert!(refused(file, sound(4999, 1, Fit::Exact)).contains("it has 5000 frames"));
        assert!(refused(file, Decode::exact(28, 28, 1)).contains("it is sound"));
        assert!(refused(file, Decode::exact(1, FRAMES, 1)).contains("decode_dtype = f32"));
    }
    // A bit in the middle of a frame: its checksum tells.
    let mut torn = flac.clone();
    let middle = torn.len() / 2;
    torn[middle] ^= 4;
    refused(&torn, exact);
    // Lengths that lie: more than there is, and an impossible number of channels.
    let mut lying = wav.clone();
    lying[40..44].copy_from_slice(&u32::MAX.to_le_bytes());
    refused(&lying, exact);
    let mut none = wav.clone();
    none[22..24].copy_from_slice(&0u16.to_le_bytes());
    refused(&none, exact);
    // Floating point that is no number, and one that is beyond all.
    for number in [f32::NAN, f32::INFINITY] {
        let mut floats = self::wav(1, 32, FRAMES);
        floats[20] = 3;
        let data = floats.len() - FRAMES as usize * 4;
        floats[data..].fill(0);
        floats[data + 8..data + 12].copy_from_slice(&number.to_le_bytes());
        for dtype in [Dtype::F16, Dtype::F32] {
            assert!(refused(&floats, Decode { dtype, ..exact }).contains("not finite"));
        }
    }
    // Pictures of one row, whose pixels have three numbers, or two as stereo has.
    for (color, bytes) in [(ColorType::Rgb, 3), (ColorType::GrayscaleAlpha, 2)] {
        let picture = png(FRAMES, 1, color, BitDepth::Eight, &vec![7; FRAMES as usize * bytes]);
        assert!(refused(&picture, sound(FRAMES, 2, Fit::Exact)).contains("it is no sound"));
    }
    // A bad sample is left out where that is asked for.
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a"), &torn).unwrap();
    fs::write(folder.path().join("b"), &wav).unwrap();
    let loader = loader(folder.path(), exact).batch_size(2).bad_samples(BadSamples::Skip).build().unwrap();
    let left: Vec<(usize, usize)> =
        loader.map(|batch| batch.unwrap()).map(|batch| (batch.len(), batch.left_out().len())).collect();
    assert_eq!(left, [(1, 1)]);
}
