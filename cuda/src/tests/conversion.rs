//! The conversion kernel against a reference on the processor, through the driver's interpreter: every type, order and odd size.
#![cfg(test)]

use cudarc::driver::sys;
use fuelrail_base::prng::Prng;
use fuelrail_cuda_driver::{Settings, under_driver};
use half::{bf16, f16};

use super::stand::{Store, check, control};
use crate::context::{DeviceMemory, Stream};
use crate::convert::Converter;
use crate::note::Note;
use crate::{Convert, Device, Dtype, Feed, FeedConfig, Planes, RawStream};

/// What the kernel must write for one sample.
pub(super) fn reference(convert: &Convert, pixels: &[u8]) -> Vec<u8> {
    let [scale, bias] = convert.coefficients();
    let (channels, area) = (convert.channels as usize, (convert.height * convert.width) as usize);
    let value = |pixel: usize, channel: usize| {
        f32::from(pixels[pixel * channels + channel]).mul_add(scale[channel], bias[channel])
    };
    let values: Vec<f32> = match convert.planes {
        Planes::First => (0..channels).flat_map(|c| (0..area).map(move |p| value(p, c))).collect(),
        Planes::Last => (0..area).flat_map(|p| (0..channels).map(move |c| value(p, c))).collect(),
    };
    let bytes = |x: f32| match convert.dtype {
        Dtype::F32 => x.to_le_bytes().to_vec(),
        Dtype::F16 => f16::from_f32(x).to_le_bytes().to_vec(),
        Dtype::Bf16 => bf16::from_f32(x).to_le_bytes().to_vec(),
        Dtype::U8 => unreachable!("bytes are not converted"),
    };
    values.into_iter().flat_map(bytes).collect()
}

/// Whether two results are the same: every bit, but for which NaN a 16- or 32-bit float is.
fn same(dtype: Dtype, a: &[u8], b: &[u8]) -> bool {
    let nan = |x: &[u8]| match dtype {
        Dtype::F32 => f32::from_le_bytes([x[0], x[1], x[2], x[3]]).is_nan(),
        Dtype::F16 => f16::from_le_bytes([x[0], x[1]]).is_nan(),
        Dtype::Bf16 => bf16::from_le_bytes([x[0], x[1]]).is_nan(),
        Dtype::U8 => false,
    };
    let size = dtype.bytes();
    a.len() == b.len() && a.chunks(size).zip(b.chunks(size)).all(|(a, b)| a == b || nan(a) && nan(b))
}

/// Runs the kernel over samples at these offsets.
fn convert_on_device(device: &Device, convert: &Convert, source: &[u8], offsets: &[usize]) -> Vec<u8> {
    let context = device.context();
    let _entered = context.enter().unwrap();
    let room = offsets.len() * convert.converted_bytes();
    let from = DeviceMemory::new(context, source.len()).unwrap().unwrap();
    let to = DeviceMemory::new(context, room).unwrap().unwrap();
    let stream = Stream::new(context, false).unwrap();
    let converter = Converter::new(device, convert.clone()).unwrap();
    let note = Note { offsets: offsets.to_vec(), ..Note::default() };
    let mut result = vec![0; room];
    // SAFETY: both buffers live until the stream is empty, at the end of this block, and have the sizes that the note implies.
    unsafe {
        let stream = stream.handle();
        check(sys::cuMemcpyHtoDAsync_v2(from.at(), source.as_ptr().cast(), source.len(), stream));
        converter.launch(stream, from.at(), to.at(), &note).unwrap();
        check(sys::cuMemcpyDtoHAsync_v2(result.as_mut_ptr().cast(), to.at(), room, stream));
        check(sys::cuStreamSynchronize(stream));
    }
    result
}

fn compare(device: &Device, convert: &Convert, samples: usize, stride: usize, left_out: Option<usize>) {
    let mut random = Prng::new(samples as u64);
    let source: Vec<u8> = (0..samples * stride + 1).map(|_| random.below(256) as u8).collect();
    let offsets: Vec<usize> = (0..samples).filter(|n| Some(*n) != left_out).map(|n| n * stride).collect();
    let result = convert_on_device(device, convert, &source, &offsets);
    let expected: Vec<u8> =
        offsets.iter().flat_map(|at| reference(convert, &source[*at..*at + convert.sample_bytes()])).collect();
    assert!(same(convert.dtype, &result, &expected), "{convert:?}, {samples} samples {stride} bytes apart");
}

#[test]
fn every_type_and_order_is_converted_as_on_the_processor() {
    let name = "tests::conversion::every_type_and_order_is_converted_as_on_the_processor";
    if !under_driver(name, &Settings::default()) {
        return;
    }
    let device = Device::open(0).unwrap();
    let (mean, deviation) = ([0.485, 0.456, 0.406, 0.5], [0.229, 0.224, 0.225, 0.25]);
    for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
        for planes in [Planes::First, Planes::Last] {
            for channels in 1..=4 {
                let convert = Convert { height: 7, width: 5, channels, dtype, planes, mean, deviation };
                compare(&device, &convert, 3, convert.sample_bytes(), None);
                compare(&device, &convert, 4, convert.sample_bytes().next_multiple_of(64), Some(1));
            }
            // More pixels than the grid has threads, one sample and one pixel.
            let large = Convert { height: 61, width: 67, channels: 3, dtype, planes, mean, deviation };
            compare(&device, &large, 1, large.sample_bytes() + 3, None);
            compare(&device, &Convert { height: 1, width: 1, ..large }, 1, 3, None);
        }
    }
    drop(device);
    control().assert_clean();
}

#[test]
fn every_byte_is_rounded_right_also_where_numbers_end() {
    let name = "tests::conversion::every_byte_is_rounded_right_also_where_numbers_end";
    if !under_driver(name, &Settings::default()) {
        return;
    }
    let device = Device::open(0).unwrap();
    let all: Vec<u8> = (0..=255).collect();
    let pairs: [(f32, f32); 10] = [
        (0.0, 1.0),
        // Whole numbers in the middle between two bf16, and between two f16.
        (0.0, 1.0 / (255.0 * 3.0)),
        (0.0, 1.0 / (255.0 * 17.0)),
        (0.5, 1.0 / 3.0),
        // Subnormal and overflowing 16-bit floats, overflowing 32-bit ones, and numbers that are none.
        (0.0, 4e6),
        (0.5, 6e-6),
        (0.0, 1e-38),
        (-1e30, 1e-9),
        (f32::NAN, 1.0),
        (0.1, 0.0),
    ];
    let scale = |at: usize| Convert { deviation: [pairs[at].1; 4], ..Convert::default() }.coefficients()[0][0];
    assert_eq!((scale(1), scale(2)), (3.0, 17.0));
    for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
        for (mean, deviation) in pairs {
            let (mean, deviation) = ([mean; 4], [deviation; 4]);
            let convert = Convert { height: 16, width: 16, channels: 1, dtype, planes: Planes::First, mean, deviation };
            let result = convert_on_device(&device, &convert, &all, &[0]);
            assert!(same(dtype, &result, &reference(&convert, &all)), "{convert:?}");
        }
    }
}

#[test]
fn a_feed_hands_out_converted_batches_in_their_shape() {
    let name = "tests::conversion::a_feed_hands_out_converted_batches_in_their_shape";
    if !under_driver(name, &Settings { delay_us: 0..=50, ..Settings::default() }) {
        return;
    }
    let store = Store::digits(20);
    let builder = || store.loader().batch_size(8).seed(3).decode(fuelrail::Decode::exact(28, 28, 1));
    let plain: Vec<_> = builder().build().unwrap().map(Result::unwrap).collect();
    for (dtype, planes) in [(Dtype::F16, Planes::First), (Dtype::F32, Planes::Last)] {
        let convert = Convert { height: 28, width: 28, channels: 1, dtype, planes, ..Convert::default() };
        let config = FeedConfig { convert: Some(convert.clone()), ..FeedConfig::default() };
        let mut feed = Feed::start(builder().build().unwrap(), config).unwrap();
        for host in &plain {
            let batch = feed.next(RawStream::LEGACY).unwrap().unwrap();
            let n = host.len() as i64;
            assert_eq!(batch.shape(), if planes == Planes::First { [n, 1, 28, 28] } else { [n, 28, 28, 1] });
            assert_eq!((batch.dtype(), batch.ids()), (dtype, host.ids()));
            let mut bytes = vec![0; host.len() * convert.converted_bytes()];
            let device = Device::open(0).unwrap();
            let _entered = device.context().enter().unwrap();
            // SAFETY: the batch is held; the target is as long as is said; the call returns when the bytes are there.
            check(unsafe {
                sys::cuMemcpyDtoHAsync_v2(
                    bytes.as_mut_ptr().cast(),
                    batch.pointer(),
                    bytes.len(),
                    core::ptr::null_mut(),
                )
            });
            let expected: Vec<u8> = host.samples().flat_map(|s| reference(&convert, s.bytes)).collect();
            assert_eq!(bytes, expected);
        }
        assert!(feed.next(RawStream::LEGACY).is_none());
        drop(feed);
        control().assert_clean();
    }
    // Samples of another size end the run behind the good batches, of which there are none.
    let convert = Convert { height: 27, width: 28, channels: 1, ..Convert::default() };
    let config = FeedConfig { convert: Some(convert), ..FeedConfig::default() };
    let mut feed = Feed::start(builder().build().unwrap(), config).unwrap();
    let error = feed.next(RawStream::LEGACY).unwrap().unwrap_err().to_string();
    assert!(error.contains("784 bytes") && error.contains("27 × 28 × 1 = 756"), "{error}");
    assert!(feed.next(RawStream::LEGACY).is_none());
    drop(feed);
    control().assert_clean();
}
