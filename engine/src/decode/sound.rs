//! Turns a FLAC or WAV file into one sample: a row of frames, cut or filled up with silence to the length asked for, as numbers
//! from -1 to 1 at the file's own rate.
//!
//! Owns nothing between files. What lies before the part taken is passed over undecoded: packets of both formats stand alone.

use std::io::Cursor;

use fuelrail_base::{Error, Result};
use symphonia::core::codecs::audio::AudioDecoderOptions;
use symphonia::core::formats::{FormatOptions, FormatReader, TrackType};
use symphonia::core::io::{MediaSourceStream, MediaSourceStreamOptions};
use symphonia::default::formats::{FlacReader, WavReader};
use symphonia::default::get_codecs;

use super::cut::{Cut, DrawKey, stretch};
use super::output::{Dtype, PixelLayout, write_number};
use super::{Decode, undecodable};

const FLAC: &[u8] = b"fLaC";

/// Whether the bytes start as those of a FLAC or a WAV file do.
pub(super) fn is_sound(bytes: &[u8]) -> bool {
    bytes.starts_with(FLAC) || (bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WAVE"))
}

/// Decodes the file into `out`, which is as long as a sample. Returns the part it took, in frames.
///
/// # Errors
/// `Undecodable`, without the object's name.
pub(super) fn decode(wanted: &Decode, bytes: &[u8], draw_key: DrawKey, out: &mut [u8]) -> Result<Cut> {
    if wanted.height != 1 || wanted.dtype == Dtype::U8 {
        return Err(undecodable("it is sound, and decode asks for pictures")
            .with_hint("write decode = 1xFRAMESxCHANNELS and decode_dtype = f32 or f16"));
    }
    let source = Box::new(Cursor::new(bytes));
    let stream = MediaSourceStream::new(source, MediaSourceStreamOptions::default());
    let mut reader: Box<dyn FormatReader + '_> = if bytes.starts_with(FLAC) {
        Box::new(FlacReader::try_new(stream, FormatOptions::default()).map_err(broken)?)
    } else {
        Box::new(WavReader::try_new(stream, FormatOptions::default()).map_err(broken)?)
    };
    let track = reader.default_track(TrackType::Audio).ok_or_else(|| undecodable("it holds no sound"))?;
    let parameters = track.codec_params.as_ref().and_then(|parameters| parameters.audio());
    let parameters = parameters.ok_or_else(|| undecodable("it does not say how its sound is written"))?;
    let channels = parameters.channels.as_ref().map_or(0, |channels| channels.count());
    let frames = track.num_frames.ok_or_else(|| undecodable("its header does not say how long it is"))?;
    let mut place = Place::new(wanted, channels, out)?;
    let (start, taken) = stretch(wanted, frames, draw_key).ok_or_else(|| wrong_length(wanted, frames))?;
    let mut decoder = get_codecs().make_audio_decoder(parameters, &AudioDecoderOptions::default()).map_err(broken)?;
    let (end, mut at, mut numbers) = (start + taken, 0, Vec::<f32>::new());
    while at < end {
        let packet = reader.next_packet().map_err(broken)?;
        let packet = packet.ok_or_else(|| undecodable(&format!("it ends after {at} of {frames} frames")))?;
        let behind = at + packet.dur.get();
        if behind > start {
            let decoded = decoder.decode(&packet).map_err(broken)?;
            decoded.copy_to_vec_interleaved(&mut numbers);
            if numbers.len() as u64 != packet.dur.get() * channels as u64 {
                return Err(undecodable(&format!("the packet at frame {at} is not whole")));
            }
            if numbers.iter().any(|number| !number.is_finite()) {
                return Err(undecodable(&format!("the packet at frame {at} has a number that is not finite")));
            }
            let numbered = (at..behind).zip(numbers.chunks_exact(channels));
            for (number, frame) in numbered.filter(|(number, _)| (start..end).contains(number)) {
                place.put((number - start) as usize, frame);
            }
        }
        at = behind;
    }
    for silent in taken as usize..wanted.width as usize {
        place.put(silent, &[0.0]);
    }
    let [left, width] = [start, taken].map(|frames| u32::try_from(frames).unwrap_or(u32::MAX));
    Ok(Cut { left, top: 0, width, height: 1, flip: false })
}

/// Where frames of a file go in a sample.
struct Place<'a> {
    wanted: &'a Decode,
    mean: [f32; 3],
    std: [f32; 3],
    out: &'a mut [u8],
}

impl<'a> Place<'a> {
    fn new(wanted: &'a Decode, channels: usize, out: &'a mut [u8]) -> Result<Place<'a>> {
        let asked = wanted.channels as usize;
        if channels == 0 || (channels != asked && channels != 1 && asked != 1) {
            return Err(undecodable(&format!("it has {channels} channels, decode = {} wants {asked}", wanted.shape())));
        }
        let [mean, std] = wanted.normalisation();
        Ok(Place { wanted, mean, std, out })
    }

    /// Writes a frame: each channel to its own, one to all, or the mean of all to one.
    fn put(&mut self, number: usize, frame: &[f32]) {
        let (channels, frames) = (self.wanted.channels as usize, self.wanted.width as usize);
        let bytes = self.wanted.dtype.bytes();
        for channel in 0..channels {
            let value = match frame {
                [one] => *one,
                several if channels == 1 => several.iter().sum::<f32>() / several.len() as f32,
                several => several[channel],
            };
            let value = (value - self.mean[channel]) / self.std[channel];
            let at = match self.wanted.layout {
                PixelLayout::Nhwc => number * channels + channel,
                PixelLayout::Nchw => channel * frames + number,
            };
            write_number(self.wanted.dtype, value, &mut self.out[at * bytes..]);
        }
    }
}

fn wrong_length(wanted: &Decode, frames: u64) -> Error {
    undecodable(&format!("it has {frames} frames, decode = {} wants {}", wanted.shape(), wanted.width))
        .with_hint("use decode_fit = center-crop or random-crop, which cut it or fill it up with silence")
}

fn broken(error: symphonia::core::errors::Error) -> Error {
    undecodable(&error.to_string())
}
