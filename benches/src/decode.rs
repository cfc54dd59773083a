//! Decoding of JPEG files in memory by one thread, for `rivals/python/decode.py`, which times others with the same files and crops.

use std::path::PathBuf;
use std::{fs, io};

use clap::Args;
use fuelrail::internal::{PictureDecoder, thread_cpu};
use fuelrail::{Decode, Error, Fit, Kind, Result};
use fuelrail_cli::machine::Machine;
use serde::Serialize;

/// Times the decoding of JPEG files to random crops of 224 × 224, and writes the pixels beside them
#[derive(Args, Debug)]
pub struct DecodeArgs {
    /// Crops of each file.
    #[arg(long, default_value_t = 8)]
    crops: u64,
    /// Files; the pixels of all crops of one go to its name and `.rgb`.
    #[arg(required = true)]
    files: Vec<PathBuf>,
}

/// What it came to.
#[derive(Serialize, Debug)]
pub struct Decoded {
    machine: Machine,
    /// CPU time of one crop of one file, ms: the lower of two rounds.
    cpu_ms: f64,
    /// For each file and crop the left edge, top, width and height.
    crops: Vec<Vec<[u32; 4]>>,
}

/// Decodes every file, once for the pixels and twice to measure.
///
/// # Errors
/// Those of files, and `Undecodable` with the file's name.
pub fn decode(args: &DecodeArgs) -> Result<Decoded> {
    let lost = |e: io::Error| Error::new(Kind::Environment, format!("the files cannot be read or written: {e}"));
    let files: Vec<Vec<u8>> = args.files.iter().map(fs::read).collect::<io::Result<_>>().map_err(lost)?;
    let wanted = Decode { fit: Fit::RandomCrop, ..Decode::exact(224, 224, 3) };
    let (mut decoder, mut out) = (PictureDecoder::new(wanted), vec![0; wanted.sample_bytes() as usize]);
    let mut crops = Vec::new();
    for (path, file) in args.files.iter().zip(&files) {
        let (mut pixels, mut drawn) = (Vec::new(), Vec::new());
        for epoch in 0..args.crops {
            let crop = decoder.decode(file, epoch, &mut out);
            drawn.push(crop.map_err(|e| e.with_object(path.display().to_string()))?);
            pixels.extend_from_slice(&out);
        }
        fs::write(format!("{}.rgb", path.display()), pixels).map_err(lost)?;
        crops.push(drawn);
    }
    let mut rounds = [0.0; 2];
    for round in &mut rounds {
        let start = thread_cpu();
        for file in &files {
            for epoch in 0..args.crops {
                decoder.decode(file, epoch, &mut out)?;
            }
        }
        *round = (thread_cpu() - start).as_secs_f64() * 1e3 / (files.len() as u64 * args.crops) as f64;
    }
    Ok(Decoded { machine: Machine::here(), cpu_ms: rounds[0].min(rounds[1]), crops })
}
