//! Bytes to numbers on the way in: u8 pixels become f32, f16 or bf16, scaled by mean and deviation, channels last or first.
//!
//! Owns the kernel and its launches on the copy stream, behind the copy. Optional; never allocates on the device, never waits.

use core::ffi::{c_uint, c_void};
use std::sync::Arc;

use fuelrail_base::{Error, Kind, Result};

use crate::context::Context;
use crate::device::Device;
use crate::driver::{CUdeviceptr, CUfunction, CUmodule, CUstream};
use crate::note::Note;

/// What an element of a device batch is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Dtype {
    /// Bytes, as the bucket or the decoder has them.
    #[default]
    U8,
    /// 32-bit floats.
    F32,
    /// 16-bit floats (IEEE 754 binary16), rounded to nearest, ties to even.
    F16,
    /// bfloat16: the upper half of a 32-bit float, rounded likewise.
    Bf16,
}

impl Dtype {
    /// Bytes of an element.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Dtype::U8 => 1,
            Dtype::F16 | Dtype::Bf16 => 2,
            Dtype::F32 => 4,
        }
    }
}

/// The order of a converted batch's dimensions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Planes {
    /// Samples, channels, height, width (NCHW): what PyTorch's convolutions take.
    #[default]
    First,
    /// Samples, height, width, channels (NHWC): as decoded.
    Last,
}

/// How to turn pixels into numbers: `(x / 255 - mean) / deviation`, worked out in 32-bit floats as one multiplication and one
/// addition without rounding in between.
#[derive(Clone, PartialEq, Debug)]
pub struct Convert {
    /// Rows of a sample.
    pub height: u32,
    /// Columns of a sample.
    pub width: u32,
    /// Channels of a pixel, 1 to 4.
    pub channels: u32,
    /// To what: anything but bytes.
    pub dtype: Dtype,
    /// In which order.
    pub planes: Planes,
    /// One mean per channel, of values from 0 to 1.
    pub mean: [f32; 4],
    /// One standard deviation per channel.
    pub deviation: [f32; 4],
}

impl Default for Convert {
    /// 224 × 224 × 3 to 16-bit floats from 0 to 1, channels first.
    fn default() -> Convert {
        Convert {
            height: 224,
            width: 224,
            channels: 3,
            dtype: Dtype::F16,
            planes: Planes::First,
            mean: [0.0; 4],
            deviation: [1.0; 4],
        }
    }
}

impl Convert {
    /// Checks that samples of this form can be converted.
    ///
    /// # Errors
    /// `Usage` naming the field.
    pub fn validate(&self) -> Result<()> {
        let check = |good: bool, cause: String, cure: &str| {
            if good { Ok(()) } else { Err(Error::new(Kind::Usage, cause).cure(cure)) }
        };
        let pixels = u64::from(self.height) * u64::from(self.width);
        check(
            pixels > 0 && pixels < PIXELS_MAX,
            format!("convert: {} × {}", self.height, self.width),
            "give the decoded size",
        )?;
        check(
            (1..=4).contains(&self.channels),
            format!("convert: {} channels", self.channels),
            "1 to 4 can be converted",
        )?;
        check(self.dtype != Dtype::U8, "convert to bytes".into(), "leave convert out: batches are bytes")?;
        let numbers = self.coefficients();
        let finite = numbers.iter().flatten().all(|n| n.is_finite());
        check(finite, format!("convert: mean {:?}, deviation {:?}", self.mean, self.deviation), "deviations are not 0")
    }

    /// Bytes of a sample as it comes.
    #[must_use]
    pub fn sample_bytes(&self) -> usize {
        self.height as usize * self.width as usize * self.channels as usize
    }

    /// Bytes of a sample converted.
    #[must_use]
    pub fn converted_bytes(&self) -> usize {
        self.sample_bytes() * self.dtype.bytes()
    }

    /// The shape of a converted batch.
    pub(crate) fn shape(&self, samples: usize) -> [i64; 4] {
        let [n, h, w, c] = [samples as i64, self.height.into(), self.width.into(), self.channels.into()];
        match self.planes {
            Planes::First => [n, c, h, w],
            Planes::Last => [n, h, w, c],
        }
    }

    /// Scale and bias of every channel.
    pub(crate) fn coefficients(&self) -> [[f32; 4]; 2] {
        let scale = core::array::from_fn(|c| (1.0 / (255.0 * f64::from(self.deviation[c]))) as f32);
        let bias = core::array::from_fn(|c| (-f64::from(self.mean[c]) / f64::from(self.deviation[c])) as f32);
        [scale, bias]
    }

    /// From a pixel to the next, and from a channel to the next, in a converted sample, bytes.
    fn steps(&self) -> (u64, u64) {
        let element = self.dtype.bytes() as u64;
        match self.planes {
            Planes::First => (element, element * u64::from(self.height) * u64::from(self.width)),
            Planes::Last => (element * u64::from(self.channels), element),
        }
    }

    /// Whether every sample of a batch is of the size that is converted.
    pub(crate) fn check(&self, note: &Note) -> Result<()> {
        match note.lens.iter().position(|len| *len != self.sample_bytes()) {
            None => Ok(()),
            Some(at) => {
                let (id, len, want) = (note.ids[at].0, note.lens[at], self.sample_bytes());
                let cause = format!(
                    "sample {id} of batch {} has {len} bytes; convert takes {} × {} × {} = {want}",
                    note.seq, self.height, self.width, self.channels
                );
                Err(Error::new(Kind::Mismatch, cause).cure("decode to that size, or leave convert out"))
            }
        }
    }
}

/// Pixels of one launch: their numbers, and one step beyond, fit 32 bits.
const PIXELS_MAX: u64 = 1 << 31;
const BLOCK_THREADS: u32 = 512;
/// One block for so many multiprocessors. The kernel has to keep up with the copies, not to be fast: 16 blocks of 512 threads on
/// an H100's 132 multiprocessors have some 8000 loads under way, enough for a link of 50 GB/s, and leave most of
/// the multiprocessors, and of the caches, to the trainer's kernels. The stream's priority, the lowest by default, keeps the
/// trainer's blocks ahead of ours where both wait.
const MULTIPROCESSORS_PER_BLOCK: u32 = 8;
/// A die of a K80 has 13 multiprocessors.
const BLOCKS_MIN: u32 = 2;

const KERNEL: &str = concat!(include_str!("kernel.ptx"), "\0");

/// The kernel on a device.
pub(crate) struct Converter {
    context: Arc<Context>,
    module: CUmodule,
    function: CUfunction,
    blocks_max: u32,
    convert: Convert,
}

// SAFETY: handles of modules and functions may be used by any thread; the driver locks.
unsafe impl Send for Converter {}

impl Converter {
    /// Loads the kernel into the current context; the driver translates it for the device.
    pub(crate) fn new(device: &Device, convert: Convert) -> Result<Converter> {
        let context = Arc::clone(device.context());
        let driver = context.driver;
        let (mut module, mut function) = (core::ptr::null_mut(), core::ptr::null_mut());
        // SAFETY: the text ends with a NUL and is read during the call; one handle is written, to a variable that lives.
        let code = unsafe { driver.cuModuleLoadData(&raw mut module, KERNEL.as_ptr().cast()) };
        driver.check(code, "loading the conversion kernel")?;
        let blocks_max = device.facts().multiprocessors.div_ceil(MULTIPROCESSORS_PER_BLOCK).max(BLOCKS_MIN);
        let mut converter = Converter { context, module, function, blocks_max, convert };
        // SAFETY: the module is alive; the name ends with a NUL; one handle is written, to a variable that lives.
        let code = unsafe { driver.cuModuleGetFunction(&raw mut function, module, c"fuelrail_convert".as_ptr()) };
        driver.check(code, "finding the conversion kernel")?;
        converter.function = function;
        Ok(converter)
    }

    pub(crate) fn convert(&self) -> &Convert {
        &self.convert
    }

    /// Puts the conversion of a batch into a stream: one launch, or a few where samples were left out in between.
    ///
    /// # Safety
    /// `from` holds the batch the note describes, each sample of the size [`Convert::check`] asks for, and `to` has room for all
    /// of them converted; both stay until the stream has done this.
    pub(crate) unsafe fn launch(
        &self,
        stream: CUstream,
        from: CUdeviceptr,
        to: CUdeviceptr,
        note: &Note,
    ) -> Result<()> {
        let pixels = u64::from(self.convert.height) * u64::from(self.convert.width);
        let samples_max = (PIXELS_MAX - 1) / pixels;
        let mut first = 0;
        while first < note.offsets.len() {
            let (samples, stride) = run(&note.offsets[first..], samples_max as usize);
            let from = from + note.offsets[first] as u64;
            let to = to + (first * self.convert.converted_bytes()) as u64;
            // SAFETY: the caller's promise, for a part of the samples.
            unsafe { self.launch_run(stream, from, to, samples as u32, stride as u64) }?;
            first += samples;
        }
        Ok(())
    }

    /// # Safety
    /// As [`Converter::launch`], for `samples` samples `stride` bytes apart.
    unsafe fn launch_run(
        &self,
        stream: CUstream,
        mut from: CUdeviceptr,
        mut to: CUdeviceptr,
        mut samples: u32,
        mut stride: u64,
    ) -> Result<()> {
        let convert = &self.convert;
        let mut pixels: u32 = convert.height * convert.width;
        let mut channels = convert.channels;
        let mut kind: u32 = match convert.dtype {
            Dtype::F16 => 1,
            Dtype::Bf16 => 2,
            Dtype::F32 | Dtype::U8 => 0,
        };
        let mut sample_step = convert.converted_bytes() as u64;
        let (mut pixel_step, mut channel_step) = convert.steps();
        let [mut scale, mut bias] = convert.coefficients();
        let numbers = scale.iter_mut().chain(&mut bias).map(|number| core::ptr::from_mut(number).cast::<c_void>());
        let mut arguments: [*mut c_void; 18] = [core::ptr::null_mut(); 18];
        let first: [*mut c_void; 10] = [
            (&raw mut from).cast(),
            (&raw mut to).cast(),
            (&raw mut samples).cast(),
            (&raw mut pixels).cast(),
            (&raw mut channels).cast(),
            (&raw mut kind).cast(),
            (&raw mut stride).cast(),
            (&raw mut sample_step).cast(),
            (&raw mut pixel_step).cast(),
            (&raw mut channel_step).cast(),
        ];
        arguments.iter_mut().zip(first.into_iter().chain(numbers)).for_each(|(slot, argument)| *slot = argument);
        let blocks: c_uint = (samples * pixels).div_ceil(BLOCK_THREADS).min(self.blocks_max);
        let driver = self.context.driver;
        // SAFETY: the arguments are of the number, order and types that kernel.ptx declares, and are read during the call. The
        // kernel reads and writes only what the caller promises to be there.
        let code = unsafe {
            driver.cuLaunchKernel(
                self.function,
                blocks,
                1,
                1,
                BLOCK_THREADS,
                1,
                1,
                0,
                stream,
                arguments.as_mut_ptr(),
                core::ptr::null_mut(),
            )
        };
        driver.check(code, "launching the conversion kernel")
    }
}

impl Drop for Converter {
    fn drop(&mut self) {
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: the module is ours; its owner, the copy thread, drops it only when every launch's event was reached, or
            // forgets it.
            let _ = unsafe { self.context.driver.cuModuleUnload(self.module) };
        }
    }
}

/// How many samples from the first on lie equally far apart, and how far.
fn run(offsets: &[usize], samples_max: usize) -> (usize, usize) {
    let Some(second) = offsets.get(1) else { return (offsets.len(), 0) };
    let stride = second - offsets[0];
    let same = offsets.windows(2).take_while(|pair| pair[1] - pair[0] == stride).count() + 1;
    (same.min(samples_max), stride)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_equally_far_apart_are_one_launch() {
        assert_eq!(run(&[], 9), (0, 0));
        assert_eq!(run(&[128], 9), (1, 0));
        assert_eq!(run(&[0, 64, 128], 9), (3, 64));
        assert_eq!(run(&[0, 64, 128], 2), (2, 64));
        assert_eq!(run(&[0, 64, 192, 256], 9), (2, 64), "one was left out");
        assert_eq!(run(&[0, 128, 192], 9), (2, 128));
    }

    #[test]
    fn what_cannot_be_converted_is_refused_by_name() {
        let refused = |convert: Convert| convert.validate().unwrap_err().to_string();
        Convert::default().validate().unwrap();
        assert!(refused(Convert { height: 0, ..Convert::default() }).contains("0 × 224"));
        assert!(refused(Convert { height: 1 << 16, width: 1 << 15, ..Convert::default() }).contains("decoded size"));
        assert!(refused(Convert { channels: 5, ..Convert::default() }).contains("5 channels"));
        assert!(refused(Convert { dtype: Dtype::U8, ..Convert::default() }).contains("leave convert out"));
        assert!(refused(Convert { deviation: [1.0, 0.0, 1.0, 1.0], ..Convert::default() }).contains("deviation"));
        assert!(refused(Convert { mean: [f32::NAN; 4], ..Convert::default() }).contains("NaN"));
    }
}
