//! `fuelrail cp`: single objects, and whole prefixes and folders, out of a bucket or into one.
//!
//! A prefix comes through the loader, at the rate it feeds a trainer with; objects too long for its batches come in pieces. Files
//! and objects appear when they are whole, never before, so what an earlier run left is complete.

use std::collections::HashMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use fuelrail::{
    Access, BadSamples, Batch, ByteRange, ByteSize, Error, Kind, Listed, Loader, LoaderBuilder, PutOptions,
};
use serde_json::json;

use crate::failure::{Failure, Outcome, Stop, file, usage};
use crate::screen::{Bar, JsonTo, note};
use crate::settings::{PIECE_BYTES, Trust, WHOLE_BYTES, batch_samples, given, load, once};
use crate::signals::is_signalled;
use crate::whole::WholeFile;
use crate::{get, put};

const EXAMPLES: &str = "Examples:
  fuelrail cp s3://bucket/training/ ./training/                # a whole prefix
  fuelrail cp s3://bucket/training/ ./training/ --resume       # what is missing of it
  fuelrail cp ./checkpoints/ s3://bucket/runs/7/               # a whole folder
  fuelrail cp http://127.0.0.1:9000/bucket/shard_000000.bin .  # one object
  fuelrail cp model.pt gs://bucket/models/                     # one file";

/// Copy objects out of a bucket or into one: single ones, prefixes, folders
///
/// A URI that ends in / or has braces stands for all objects under it, a folder for all files in it. The path after the
/// URI's last /, or below the folder, is kept. What cannot be copied is named, and the rest copied all the same.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Cp {
    /// What to copy: a URI, a file or a folder
    from: String,
    /// Where to: a file, a folder (one that ends in / is made) or a URI
    to: String,
    /// Skip what is there with the same length: the rest of an interrupted copy, or a single object
    #[arg(long)]
    resume: bool,
    #[command(flatten)]
    trust: Trust,
    /// Print what was done as one JSON document
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Cp, stop: &Stop) -> Outcome {
    let from_folder = Path::new(&args.from).is_dir();
    match (is_uri(&args.from), is_uri(&args.to)) {
        (true, true) => Err(usage("both ends are URIs", "copy to a folder of this machine first, and from there")),
        (false, false) => Err(usage("neither end is a URI", "write s3://BUCKET/PREFIX/ or http://HOST/BUCKET/KEY")),
        (true, false) if is_tree(&args.from) => tree(args, &args.from, stop, copy_down),
        (true, false) => one_down(args, stop),
        (false, true) if from_folder && args.to.contains('{') => {
            Err(usage("the target has braces, which stand for several prefixes", "copy to one prefix at a time"))
        }
        (false, true) if from_folder => tree(args, &format!("{}/", args.to.trim_end_matches('/')), stop, copy_up),
        (false, true) => one_up(args, stop),
    }
}

fn one_down(args: &Cp, stop: &Stop) -> Outcome {
    let get = get::Get::of(&args.from, &args.trust, args.json);
    let path = get.place(&args.to)?;
    if args.resume && path.is_file() {
        let bytes = fuelrail::internal::object_bytes(&args.trust.access(&args.from)?, &args.from, "")?;
        if bytes.is_some_and(|bytes| is_there(&path, bytes)) {
            return skipped(args, &path.display().to_string());
        }
    }
    let whole = if args.to.ends_with('/') { WholeFile::create_below(&path) } else { WholeFile::create(&path) };
    get::save(&get, (&path, whole?), stop)
}

fn one_up(args: &Cp, stop: &Stop) -> Outcome {
    let put = put::Put::of(&args.from, &args.to, args.trust.clone(), args.json);
    if args.resume {
        let access = args.trust.access(&args.to)?;
        // Who may only write is not told what is there.
        let there = fuelrail::internal::object_bytes(&access, &args.to, &put.below(&access)?);
        let there = there.or_else(|error| if error.kind() == Kind::Denied { Ok(None) } else { Err(error) })?;
        let file = fs::metadata(&args.from).ok().filter(fs::Metadata::is_file);
        if file.is_some_and(|file| there == Some(file.len())) {
            return skipped(args, &args.to);
        }
    }
    put::run(&put, stop)
}

/// Tells of a single object that is there already.
fn skipped(args: &Cp, there: &str) -> Outcome {
    if args.json {
        let done = json!({ "schema": 1, "from": args.from, "to": args.to, "objects": 0, "bytes": 0, "skipped": 1 });
        return JsonTo::Output.show(&done, String::new);
    }
    note(&format!("skipped: {there} has the same length"));
    Ok(ExitCode::SUCCESS)
}

fn is_uri(text: &str) -> bool {
    text.contains("://")
}

/// Whether a URI stands for all objects under it.
fn is_tree(uri: &str) -> bool {
    uri.ends_with('/') || uri.contains('{')
}

/// Failures that are named; the others are counted.
const NAMED_MAX: usize = 10;

/// Copies a tree by `copy`, which returns how many objects were not tried, and tells what came of it.
fn tree(args: &Cp, uri: &str, stop: &Stop, copy: fn(&Job<'_>, &Access, &Root) -> Outcome<usize>) -> Outcome {
    let start = Instant::now();
    let access = args.trust.access(uri)?;
    let Cp { from, to, resume, trust, .. } = args;
    let (bar, total) = (Bar::new(None, "bytes"), Mutex::default());
    let job = Job { from, to, resume: *resume, trust, stop, bar, total };
    let left = copy(&job, &access, &Root::of(&access, uri)?)?;
    let Job { bar, total, .. } = job;
    drop(bar);
    let Totals { objects, bytes, skipped, failed } = total.into_inner().expect("no thread panics in between");
    for (key, error) in failed.iter().take(NAMED_MAX) {
        note(&format!("'{}' was not copied: {error}", key.escape_debug()));
    }
    if failed.is_empty() || is_signalled() {
        stop.check().map_err(|error| error.with_hint("the same command with --resume copies the rest"))?;
    }
    if left > 0 {
        let failures = failed.len();
        note(&format!(
            "stopped after {failures} failures; objects not tried: {left} (the same command with --resume copies them)"
        ));
    }
    let wall_s = start.elapsed().as_secs_f64();
    if args.json {
        let failures: Vec<_> =
            failed.iter().map(|(key, error)| json!({ "key": key, "error": error.to_string() })).collect();
        let done = json!({
            "schema": 1, "from": args.from, "to": args.to, "objects": objects, "bytes": bytes, "skipped": skipped,
            "failed": failures, "wall_s": wall_s,
        });
        JsonTo::Output.show(&done, String::new)?;
    } else {
        let rate = ByteSize((bytes as f64 / wall_s) as u64);
        let skipped = if skipped > 0 { format!(", {skipped} skipped") } else { String::new() };
        note(&format!(
            "{objects} objects, {} in {wall_s:.2} s ({rate}/s){skipped}, {} failed",
            ByteSize(bytes),
            failed.len()
        ));
    }
    Ok(failed.first().map_or(ExitCode::SUCCESS, |(_, error)| ExitCode::from(error.kind().exit_code())))
}

/// Where objects of a bucket are named from: a URI up to its last slash, and the start that their keys have in common with it.
struct Root {
    uri: String,
    key: String,
}

impl Root {
    /// Of a URI with braces, which stands for several prefixes, what comes before them.
    fn of(access: &Access, uri: &str) -> fuelrail::Result<Root> {
        let fixed = uri.split('{').next().unwrap_or(uri);
        let uri = &fixed[..=fixed.rfind('/').unwrap_or(fixed.len() - 1)];
        let key = access.cloud.endpoint(uri)?.prefix;
        Ok(Root { key, uri: uri.to_owned() })
    }

    /// The path below that a key names.
    fn below<'k>(&self, key: &'k str) -> &'k str {
        key.strip_prefix(&self.key).unwrap_or(key)
    }
}

/// A copy of many objects: how far it is, and what failed.
struct Job<'a> {
    from: &'a str,
    to: &'a str,
    /// What is there with the same length is skipped.
    resume: bool,
    trust: &'a Trust,
    stop: &'a Stop,
    bar: Bar,
    total: Mutex<Totals>,
}

#[derive(Default)]
struct Totals {
    objects: u64,
    bytes: u64,
    skipped: u64,
    failed: Vec<(String, Error)>,
}

impl Job<'_> {
    fn skipped(&self, objects: usize) {
        self.total.lock().expect("no thread panics in between").skipped += objects as u64;
    }

    /// An object has so many bytes and is copied, or it could not be. Others may be, unless many fail: a disk is full then, or a
    /// bucket closed.
    fn ended(&self, key: &str, outcome: Outcome<u64>) {
        let mut total = self.total.lock().expect("no thread panics in between");
        match outcome {
            Ok(bytes) => {
                total.objects += 1;
                total.bytes += bytes;
                self.bar.at(total.bytes, || format!("{} objects, {}", total.objects, ByteSize(total.bytes)));
            }
            // The whole copy ends: that says so.
            Err(Failure::Error(error)) if error.kind() == Kind::Cancelled => {}
            Err(Failure::Error(error)) => total.failed.push((key.to_owned(), error)),
            Err(Failure::ReaderGone) => unreachable!("files have no reader that could go"),
        }
        if total.failed.len() >= FAILURES_MAX {
            self.stop.ask();
        }
    }

    /// Objects that are copied or could not be.
    fn done(&self) -> usize {
        let total = self.total.lock().expect("no thread panics in between");
        total.objects as usize + total.failed.len()
    }

    fn goes_on(&self) -> bool {
        !self.stop.is_asked()
    }

    /// The next batch, as long as the copy goes on.
    fn next(&self, loader: &mut Loader) -> Option<fuelrail::Result<Batch>> {
        while self.goes_on() {
            match loader.next_batch_within(LOOK_EVERY) {
                Ok(fuelrail::Taken::Batch(batch)) => return Some(Ok(batch)),
                Ok(fuelrail::Taken::NotYet) => {}
                Ok(fuelrail::Taken::Over) => return None,
                Err(error) => return Some(Err(error)),
            }
        }
        None
    }
}

/// How often is looked whether a copy goes on.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// So many failures end a copy.
const FAILURES_MAX: usize = 100;

/// Threads that write files, and batches that wait for them.
const WRITERS: usize = 4;

fn copy_down(job: &Job<'_>, access: &Access, root: &Root) -> Outcome<usize> {
    let folder = Path::new(job.to);
    let bar = Bar::new(None, "objects listed");
    let listed = fuelrail::list_with(access, job.from, |count| bar.at(count, String::new))?;
    drop(bar);
    if listed.is_empty() {
        return Err(fuelrail::internal::no_objects(job.from).into());
    }
    let mut wanted = Vec::with_capacity(listed.len());
    for object in listed {
        match place(folder, root, &object.key) {
            Ok(path) if job.resume && is_there(&path, object.size) => job.skipped(1),
            Ok(_) => wanted.push(object),
            Err(error) => job.ended(&object.key, Err(error.into())),
        }
    }
    job.bar.total(wanted.iter().map(|object| object.size).sum());
    let expected = job.done() + wanted.len();
    if !wanted.is_empty() && job.goes_on() {
        fs::create_dir_all(folder).map_err(|error| file("making", folder, &error))?;
    }
    let (short, long): (Vec<_>, Vec<_>) = wanted.into_iter().partition(|object| object.size <= WHOLE_BYTES);
    if !short.is_empty() && job.goes_on() {
        batches(job, folder, root, short)?;
    }
    if !long.is_empty() && job.goes_on() {
        pieces(job, folder, root, long)?;
    }
    let left = expected.saturating_sub(job.done());
    if job.goes_on() && left > 0 {
        let error = Error::new(Kind::Truncated, format!("{} of {expected} objects came", job.done()));
        return Err(error.with_hint("copy the rest by the same command with --resume").into());
    }
    Ok(left)
}

fn is_there(path: &Path, size: u64) -> bool {
    fs::symlink_metadata(path).is_ok_and(|there| there.is_file() && there.len() == size)
}

/// The file of a key. Only names that stay below the folder, and that no two keys share.
fn place(folder: &Path, root: &Root, key: &str) -> fuelrail::Result<PathBuf> {
    let below = root.below(key);
    let names = below.split('/');
    if !names.clone().all(get::is_name) {
        return Err(Error::new(Kind::Usage, "its key is not a valid path inside a folder")
            .with_hint("fetch this object by itself: `fuelrail get URI -o FILE`"));
    }
    Ok(folder.join(names.collect::<PathBuf>()))
}

/// Copies objects through a loader, several files at once.
fn batches(job: &Job<'_>, folder: &Path, root: &Root, objects: Vec<Listed>) -> Outcome<()> {
    let longest = objects.iter().map(|object| object.size).max().unwrap_or(0);
    let mut loader = in_order(job, objects, longest)?.build()?;
    loader.notices().iter().for_each(|notice| note(notice));
    let (to_writers, from_loader) = sync_channel::<Taken>(WRITERS);
    let from_loader = Mutex::new(from_loader);
    thread::scope(|scope| {
        for _ in 0..WRITERS {
            scope.spawn(|| write_batches(&from_loader, folder, root, job));
        }
        // Gone before the scope ends: writers end with it.
        let to_writers = to_writers;
        while let Some(batch) = job.next(&mut loader) {
            let batch = batch?;
            for (sample, error) in batch.left_out() {
                job.ended(loader.key(*sample), Err(error.clone().into()));
            }
            let keys = batch.ids().iter().map(|sample| loader.key(*sample).to_owned()).collect();
            to_writers.send(Taken { batch, keys }).expect("writers end after their source");
        }
        Ok(())
    })
}

struct Taken {
    batch: Batch,
    keys: Vec<String>,
}

fn write_batches(source: &Mutex<Receiver<Taken>>, folder: &Path, root: &Root, job: &Job<'_>) {
    let next = || source.lock().expect("a writer does not panic").recv();
    while let Ok(Taken { batch, keys }) = next() {
        for (sample, key) in batch.samples().zip(&keys) {
            // Once it has failed for good, what is left is drained.
            if job.goes_on() {
                let written =
                    place(folder, root, key).map_err(Failure::from).and_then(|path| write(&path, sample.bytes));
                job.ended(key, written.map(|()| sample.bytes.len() as u64));
            }
        }
    }
}

/// A loader's settings that brings each object once, in order; a sample has so many bytes at most.
fn in_order(job: &Job<'_>, objects: Vec<Listed>, longest: u64) -> Outcome<LoaderBuilder> {
    let mut settings = given(job.trust);
    settings.push(("uri".into(), job.from.to_owned()));
    let builder = once(load(None, &settings)?, None).listing(objects).batch_size(batch_samples(longest));
    Ok(builder.bad_samples(BadSamples::Skip).inner())
}

/// Copies objects that are too long for a batch: many pieces of each are under way at once, and are written in order.
fn pieces(job: &Job<'_>, folder: &Path, root: &Root, objects: Vec<Listed>) -> Outcome<()> {
    let of_object = |(object, listed): (u32, &Listed)| ByteRange::pieces(object, listed.size, PIECE_BYTES);
    let ranges: Vec<ByteRange> = (0..).zip(&objects).flat_map(of_object).collect();
    let mut loader = in_order(job, objects.clone(), PIECE_BYTES)?.ranges(ranges.clone()).build()?;
    loader.notices().iter().for_each(|notice| note(notice));
    // The object being written; `None` once it has failed.
    let (mut at, mut whole): (Option<u32>, Option<WholeFile>) = (None, None);
    while let Some(batch) = job.next(&mut loader) {
        let batch = batch?;
        let good = batch.samples().map(|sample| (sample.id, Ok(sample.bytes)));
        let mut all: Vec<_> = good.chain(batch.left_out().iter().map(|(id, error)| (*id, Err(error)))).collect();
        all.sort_unstable_by_key(|(id, _)| *id);
        for (id, piece) in all {
            let ByteRange { object, first, len } = ranges[id.0 as usize];
            let Listed { key, size, .. } = &objects[object as usize];
            let mut put = || -> Outcome<()> {
                if at.replace(object) != Some(object) {
                    whole = Some(WholeFile::create_below(&place(folder, root, key)?)?);
                }
                let Some(writing) = &mut whole else { return Ok(()) };
                let written = writing.write_all(piece.map_err(Clone::clone)?);
                written.map_err(|error| file("writing", &place(folder, root, key).unwrap_or_default(), &error))?;
                if first + len < *size {
                    return Ok(());
                }
                whole.take().map_or(Ok(()), WholeFile::finish)?;
                job.ended(key, Ok(*size));
                Ok(())
            };
            if let Err(error) = put() {
                whole = None;
                job.ended(key, Err(error));
            }
        }
    }
    Ok(())
}

fn write(path: &Path, bytes: &[u8]) -> Outcome<()> {
    let mut whole = WholeFile::create_below(path)?;
    whole.write_all(bytes).map_err(|error| file("writing", path, &error))?;
    whole.finish()
}

/// Files that are sent at once.
const SENDERS: usize = 8;

fn copy_up(job: &Job<'_>, access: &Access, root: &Root) -> Outcome<usize> {
    let (mut files, left_out) = fuelrail::internal::list_folder(job.from)?;
    if job.resume {
        let there = match fuelrail::list_with(access, &root.uri, |_| {}) {
            Err(error) if error.kind() == Kind::NotFound => Vec::new(),
            listed => listed?,
        };
        let there: HashMap<&str, u64> = there.iter().map(|object| (root.below(&object.key), object.size)).collect();
        let all = files.len();
        files.retain(|file| there.get(file.key.as_str()) != Some(&file.size));
        job.skipped(all - files.len());
    }
    job.bar.total(files.iter().map(|file| file.size).sum());
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..SENDERS.min(files.len()) {
            scope.spawn(|| {
                while let Some(object) = files.get(next.fetch_add(1, Ordering::Relaxed)).filter(|_| job.goes_on()) {
                    job.ended(&object.key, send(job, access, root, object));
                }
            });
        }
    });
    let left = files.len().saturating_sub(job.done());
    let mut special = Vec::new();
    // Last: were they many, they would end the copy.
    for (path, why) in left_out {
        match why {
            Some(error) => job.ended(&path, Err(error.into())),
            None => special.push(path),
        }
    }
    if let Some(first) = special.first() {
        let (count, path) = (special.len(), first.escape_debug());
        note(&format!(
            "skipped {count} files that are not regular (pipes, sockets, devices), the first of them '{path}'"
        ));
    }
    Ok(left)
}

fn send(job: &Job<'_>, access: &Access, root: &Root, object: &Listed) -> Outcome<u64> {
    let path = Path::new(job.from).join(&object.key);
    let mut source = put::Source::open(&path)?;
    let to = (access, root.uri.as_str(), object.key.as_str());
    Ok(put::send(job.stop, &PutOptions::default(), to, &mut source, |_| {})?.bytes)
}
