//! `fuelrail cache`: what is in cache directories, whether it is sound, and giving it up.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use clap::{Args, Subcommand};
use fuelrail::ByteSize;
use fuelrail::internal::{CacheDirectory, CacheSegment, CacheVerdict, RemovedCache, SegmentState};
use serde_json::json;

use crate::failure::Outcome;
use crate::screen::{Bar, JsonTo, Table, note};

const EXAMPLES: &str = "Examples:
  fuelrail cache ls /scratch/fuelrail
  fuelrail cache verify /scratch/fuelrail --json
  fuelrail cache rm /scratch/fuelrail /mnt/nvme1/fuelrail";

const LS: &str = "Examples:
  fuelrail cache ls /scratch/fuelrail";
const VERIFY: &str = "Examples:
  fuelrail cache verify /scratch/fuelrail --json";
const RM: &str = "Examples:
  fuelrail cache rm /scratch/fuelrail
  fuelrail cache rm --force /scratch/fuelrail /mnt/nvme1/fuelrail";

/// Look into directories of cached blocks (`spill_dirs`), check them, empty them
///
/// Safe while jobs use them: `ls` and `verify` only read, and `rm` leaves what a living job owns. Files that are not named as
/// segments of blocks are never touched.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Cache {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Debug)]
enum What {
    /// List segments: whether a job owns them, and how many blocks they hold
    #[command(after_help = LS)]
    Ls(Directories),
    /// Read every block and compare it with its checksum; exit code 1 when one is corrupt
    ///
    /// A corrupt block is harmless to a run: the reader notices and fetches it again. It points to a failing disk.
    #[command(after_help = VERIFY)]
    Verify(Directories),
    /// Remove segments, damaged ones too; those of running jobs only with --force
    #[command(after_help = RM)]
    Rm {
        #[command(flatten)]
        directories: Directories,
        /// Remove what living jobs own, too: they go on, and fetch again what they do not find
        #[arg(long)]
        force: bool,
    },
}

#[derive(Args, Debug)]
struct Directories {
    /// The directories, as in `spill_dirs`, or as notices name them
    #[arg(value_name = "DIR", required = true)]
    paths: Vec<PathBuf>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Cache) -> Outcome {
    match &args.what {
        What::Ls(directories) => ls(directories),
        What::Verify(directories) => verify(directories),
        What::Rm { directories, force } => rm(directories, *force),
    }
}

fn ls(args: &Directories) -> Outcome {
    let listed: Result<Vec<_>, _> = args.paths.iter().map(|path| fuelrail::internal::list_cache(path)).collect();
    let listed = listed?;
    let document = json!({ "schema": 1, "directories": listed });
    JsonTo::output(args.json).show(&document, || listed.iter().map(directory_text).collect())
}

fn directory_text(directory: &CacheDirectory) -> String {
    let segments = &directory.segments;
    let bytes = segments.iter().map(|segment| segment.bytes).sum();
    let blocks: u64 = segments.iter().map(|segment| segment.blocks).sum();
    let mut text = format!(
        "{}: {} segments, {}; {blocks} blocks, {}; {} of {} free\n",
        directory.path.display(),
        segments.len(),
        ByteSize(bytes),
        ByteSize(segments.iter().map(|segment| segment.block_bytes).sum()),
        ByteSize(directory.free_bytes),
        ByteSize(directory.volume_bytes),
    );
    let mut table = Table::new(&[2, 3, 4]);
    for segment in segments {
        table.row(segment_row(segment));
    }
    text.push_str(&table.text());
    text
}

fn segment_row(segment: &CacheSegment) -> [String; 7] {
    let name = segment.path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let state = match segment.state {
        SegmentState::Owned => "owned",
        SegmentState::Free => "free",
        SegmentState::New => "being made",
        SegmentState::Unfit => "unfit",
    };
    let made = SystemTime::UNIX_EPOCH + Duration::from_secs(segment.created_s);
    let age = match (segment.created_s, made.elapsed()) {
        (1.., Ok(age)) => format!("{} h old", age.as_secs() / 3600),
        _ => String::new(),
    };
    let flaw = match (&segment.flaw, segment.damaged_records) {
        (Some(flaw), _) => flaw.clone(),
        (None, 0) => String::new(),
        (None, n) => format!("{n} damaged records"),
    };
    let bytes = |bytes| ByteSize(bytes).to_string();
    [
        name,
        state.into(),
        bytes(segment.bytes),
        format!("{} blocks", segment.blocks),
        bytes(segment.block_bytes),
        age,
        flaw,
    ]
}

fn verify(args: &Directories) -> Outcome {
    let bar = Bar::new(None, "segments");
    let mut segments: Vec<CacheVerdict> = Vec::new();
    for path in &args.paths {
        fuelrail::internal::verify_cache(path, |verdict| {
            segments.push(verdict.clone());
            bar.at(segments.len() as u64, || verdict.path.display().to_string());
            Ok(())
        })?;
    }
    drop(bar);
    let sum = |of: fn(&CacheVerdict) -> u64| segments.iter().map(of).sum();
    let (sound, sound_bytes, rotten) = (sum(|v| v.sound), sum(|v| v.sound_bytes), sum(|v| v.rotten));
    let document = json!({
        "schema": 1, "sound": sound, "sound_bytes": sound_bytes, "rotten": rotten, "segments": segments,
    });
    JsonTo::output(args.json).show(&document, || {
        let (flaws, bytes, count) = (flaws_text(&segments), ByteSize(sound_bytes), segments.len());
        format!("{flaws}{sound} valid blocks, {bytes}, in {count} segments; {rotten} corrupt\n")
    })?;
    let is_sound = rotten == 0 && segments.iter().all(|verdict| verdict.flaw.is_none());
    Ok(if is_sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn flaws_text(segments: &[CacheVerdict]) -> String {
    let mut text = String::new();
    for verdict in segments {
        let path = verdict.path.display();
        if let Some(flaw) = &verdict.flaw {
            text.push_str(&format!("{path}: {flaw}\n"));
        }
        if verdict.rotten + verdict.damaged_records > 0 {
            let CacheVerdict { rotten, damaged_records, .. } = verdict;
            text.push_str(&format!("{path}: {rotten} corrupt blocks, {damaged_records} damaged records\n"));
        }
    }
    text
}

fn rm(args: &Directories, force: bool) -> Outcome {
    let remove = |path: &PathBuf| Ok((path.clone(), fuelrail::internal::remove_cache(path, force)?));
    let directories: Result<Vec<_>, fuelrail::Error> = args.paths.iter().map(remove).collect();
    let directories = directories?;
    let document = json!({ "schema": 1, "directories": directories });
    JsonTo::output(args.json).show(&document, || directories.iter().map(removed_text).collect())?;
    let all = || directories.iter().map(|directory| &directory.1);
    let owned: usize = all().map(|outcome| outcome.owned.len()).sum();
    if owned > 0 {
        note(&format!("{owned} segments are in use by running jobs; stop the jobs, or use --force"));
    }
    for (path, why) in all().flat_map(|outcome| &outcome.left) {
        note(&format!("not removed: {}: {why}", path.display()));
    }
    let is_empty = all().all(|outcome| outcome.owned.is_empty() && outcome.left.is_empty());
    Ok(if is_empty { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn removed_text((path, outcome): &(PathBuf, RemovedCache)) -> String {
    format!("{}: {} segments removed, {}\n", path.display(), outcome.removed.len(), ByteSize(outcome.removed_bytes))
}
