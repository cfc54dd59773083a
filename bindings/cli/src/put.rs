//! `fuelrail put`: one object into a bucket, whole or not at all.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Instant, SystemTime};

use clap::Args;
use fuelrail::{Access, ByteSize, PutOptions, PutOver, Stored, Upload};
use serde_json::json;

use crate::failure::{Outcome, Stop, file, usage};
use crate::screen::{Bar, JsonTo, note};
use crate::settings::Trust;

const EXAMPLES: &str = "Examples:
  fuelrail put checkpoint-100.pt http://127.0.0.1:9000/bucket/runs/7/checkpoint-100.pt
  fuelrail put model.onnx http://127.0.0.1:9000/bucket/models/ --json
  fuelrail put part-7.tar s3://bucket/packed/part-7.tar --if-new
  fuelrail put 317.png https://bucket.example/set/training/3/00317.png --ca-file ca.pem";

/// Put one file into a bucket as an object
///
/// Replaces the object that was there, unless --if-new; readers see the old one or the new one, never a part of it. Above 64 MiB it
/// goes in parts, four at a time. What fails is sent again. A URI that ends in /, or names a bucket alone, gets the file's name. At most 5 TiB.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Put {
    /// The file to read
    file: PathBuf,
    /// The object: s3://BUCKET/KEY, gs://BUCKET/KEY, az://ACCOUNT/CONTAINER/KEY, http[s]://HOST:PORT/BUCKET/KEY
    uri: String,
    /// Only if nothing is there under its key: else nothing is changed, and the exit code is 1
    #[arg(long)]
    if_new: bool,
    #[command(flatten)]
    trust: Trust,
    /// Print what was done as one JSON document
    #[arg(long)]
    json: bool,
}

impl Put {
    /// Of one file, over what is there.
    pub(crate) fn of(file: &str, uri: &str, trust: Trust, json: bool) -> Put {
        Put { file: file.into(), uri: uri.to_owned(), if_new: false, trust, json }
    }

    /// What is appended to the key that the URI names: the file's name, where it stands for a folder or a bucket.
    pub(crate) fn below(&self, access: &Access) -> Outcome<String> {
        let there = access.cloud.endpoint(&self.uri)?;
        let is_folder = self.uri.ends_with('/') || there.prefix.is_empty();
        let name = self.file.file_name().filter(|_| is_folder && !there.bucket.is_empty()).unwrap_or_default();
        name.to_str().map(ToOwned::to_owned).ok_or_else(|| {
            let cause = format!("the name of the file '{}' is not UTF-8", self.file.display());
            usage(cause, "write the object's whole key in the URI: keys must be UTF-8")
        })
    }
}

/// A file that is put. Where its length or time of modification changes meanwhile it has no end but an error, so that no object is made.
pub(crate) struct Source {
    file: File,
    /// Its length and when it was last written to, as it was opened.
    was: (u64, SystemTime),
}

impl Source {
    pub(crate) fn open(path: &Path) -> Outcome<Source> {
        let opened = File::open(path).and_then(|file| Ok(Source { was: written(&file)?, file }));
        opened.map_err(|error| file("reading", path, &error))
    }
}

fn written(file: &File) -> io::Result<(u64, SystemTime)> {
    let facts = file.metadata()?;
    Ok((facts.len(), facts.modified()?))
}

impl Read for Source {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(bytes)?;
        if read == 0 && written(&self.file)? != self.was {
            return Err(io::Error::other("the file was written to meanwhile; put it once no process writes to it"));
        }
        Ok(read)
    }
}

impl Seek for Source {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}

/// Puts an object, to the key of a URI with the last part appended, unless a stop is requested meanwhile: nothing of it stays then, where the server
/// has not completed it.
pub(crate) fn send(
    stop: &Stop,
    options: &PutOptions,
    to: (&Access, &str, &str),
    source: &mut dyn Upload,
    progress: impl FnMut(u64) + Send,
) -> fuelrail::Result<Stored> {
    stop.uploading(|| fuelrail::internal::put_unless(&|| stop.is_asked(), options, to, source, progress))
}

pub(crate) fn run(args: &Put, stop: &Stop) -> Outcome {
    let start = Instant::now();
    let unreadable = |error: io::Error| file("reading", &args.file, &error);
    // Opening a pipe would wait until another process opens it.
    let about = fs::metadata(&args.file).map_err(unreadable)?;
    if !about.is_file() {
        let cause = format!("{} is not a regular file", args.file.display());
        return Err(usage(cause, "an object's length must be known before it is sent: write it to a file first"));
    }
    let mut source = Source::open(&args.file)?;
    // Some files of the system have no length.
    source.seek(SeekFrom::End(0)).map_err(unreadable)?;
    let access = args.trust.access(&args.uri)?;
    let below = args.below(&access)?;
    let slash = if below.is_empty() || args.uri.ends_with('/') { "" } else { "/" };
    let uri = format!("{}{slash}{below}", args.uri);
    let bar = Bar::new(Some(about.len()), "bytes");
    let over = if args.if_new { PutOver::Nothing } else { PutOver::Anything };
    let options = PutOptions { over, ..PutOptions::default() };
    let progress = |sent| bar.at(sent, || ByteSize(sent).to_string());
    let stored = send(stop, &options, (&access, &args.uri, &below), &mut source, progress)?;
    drop(bar);
    let Stored { bytes, etag, .. } = stored;
    let (file, wall_s) = (args.file.display().to_string(), start.elapsed().as_secs_f64());
    if args.json {
        let sent = json!({ "schema": 1, "uri": uri, "file": file, "bytes": bytes, "etag": etag, "wall_s": wall_s });
        JsonTo::Output.show(&sent, String::new)?;
    } else {
        note(&format!("{} in {wall_s:.2} s, put to {uri}", ByteSize(bytes)));
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fuelrail::Kind;
    use fuelrail_bucket::{Bucket, BucketConfig, DataSet};

    #[test]
    fn a_file_that_is_written_to_meanwhile_leaves_no_object() {
        let source = fuelrail_bucket::Source::Generated(DataSet::digits(1, 5));
        let bucket = Bucket::start(BucketConfig { source, ..BucketConfig::default() }).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let (path, uri) = (dir.path().join("file"), bucket.url("k"));
        let options = PutOptions { parts_above_bytes: 6 << 20, part_bytes: 5 << 20, ..PutOptions::default() };
        // In one request, and in parts.
        for len in [1 << 20, 21 << 20] {
            fs::write(&path, vec![1; len]).unwrap();
            let mut source = Source::open(&path).unwrap();
            // Of the same length, when its begin has been read. The kernel's clock of files may not have ticked since.
            let mut is_rewritten = false;
            let rewrite = |_: u64| {
                if !std::mem::replace(&mut is_rewritten, true) {
                    fs::write(&path, vec![2; len]).unwrap();
                    File::options().write(true).open(&path).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
                }
            };
            let error = send(&Stop::default(), &options, (&Access::default(), &uri, ""), &mut source, rewrite);
            let error = error.expect_err("a mixture");
            assert!(error.kind() == Kind::File && error.to_string().contains("written to meanwhile"), "{error}");
            assert!(fuelrail::list(&uri, |_| {}).unwrap().is_empty(), "{len}");
        }
        let mut source = Source::open(&path).unwrap();
        send(&Stop::default(), &options, (&Access::default(), &uri, ""), &mut source, |_| {}).unwrap();
    }
}
