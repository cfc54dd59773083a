//! `fuelrail serve`: the embedded bucket as a process of its own, or its data sets as files.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use fuelrail::{ByteSize, Error, Kind};
use fuelrail_bucket::{AccessKey, Bucket, BucketConfig, Counters, DataSet, Script, SetKind, Source, Tls};
use serde_json::{Value, json};

use crate::failure::{Failure, Outcome, usage};
use crate::screen::{Bar, JsonTo, Table, note, print};
use crate::signals::stop_on_signals;

const EXAMPLES: &str = "Examples:
  fuelrail serve digits --count 14000 --port 9000
  fuelrail serve photos --script latency=lognormal:50ms/0.5,slowdown=0.02
  fuelrail serve volumes --count 4 --scale 0.1 --for 60 --json
  fuelrail serve ~/images --bucket mine --threads 4
  fuelrail serve photos --tls --tls-ca ca.pem
  fuelrail serve tokens --count 8 --write-to shards/

Scripts are settings joined by commas:
  seed=7                                chooses every draw
  latency=fixed:55ms                    or uniform:5ms..40ms, lognormal:50ms/0.5, pareto:20ms/1.5
  bandwidth=100MiB                      body bytes per second of one connection; bandwidth_total= of all
  slowdown=0.05                         probability of 503; slowdown_rps=200 above that rate; retry_after=1
  reset=0.01@4096                       reset, truncate, stall: probability, body byte, stall=0.01@4096/500ms
  length_long=0.01 length_short=0.01    wrong Content-Length; @N by how many bytes
  error= wrong_etag= changed= garbage= overlong_head= bad_status= chunked=       probability
  corrupt=0.01@4096 lost= hidden_error=                  what writes: a bit flipped, no answer, an error after a 200
  missing_keys=a*;b changed_keys=c*     patterns; only=a* limits which keys meet faults; per_key_max=3 how many
  close_after=100 drop_after=100        requests per connection";

/// Serve a folder or a generated data set as an S3-like bucket
///
/// The first line printed is the URL. Runs until interrupted or for --for seconds, then prints what it counted. A generated
/// set is the same on every machine for the same kind, count and seed, and costs no disk.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Serve {
    /// What to serve: digits, photos, volumes, tokens, or a folder
    #[arg(value_name = "SET|DIR")]
    what: String,
    /// Port to listen on; 0 takes a free one
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// Address to listen on
    #[arg(long, value_name = "IP", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    host: IpAddr,
    /// Objects of a generated set [default: digits 14000, photos 1000, volumes 8, tokens 8]
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// Chooses the content of a generated set [default: 0]
    #[arg(long)]
    seed: Option<u64>,
    /// Multiplies the sizes of volumes [default: 1, a mean of 140 MiB]
    #[arg(long, value_name = "FACTOR")]
    scale: Option<f64>,
    /// Size of each shard of tokens [default: 64MiB]
    #[arg(long, value_name = "SIZE")]
    shard_size: Option<ByteSize>,
    /// How the bucket misbehaves, see below
    #[arg(long, value_name = "SPEC", conflicts_with = "write_to")]
    script: Option<String>,
    /// Name of the bucket
    #[arg(long, value_name = "NAME", default_value = "bucket")]
    bucket: String,
    /// Let a folder be written to with PUT and DELETE; a generated set always may, into memory
    #[arg(long, conflicts_with = "write_to")]
    writable: bool,
    /// Refuse requests that are not signed with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY
    #[arg(long, conflicts_with = "write_to")]
    signed: bool,
    /// Serving threads
    #[arg(long, value_name = "N", default_value_t = 2)]
    threads: usize,
    /// Speak TLS, with a certificate made at the start for localhost and the address listened on
    #[arg(long, conflicts_with = "write_to")]
    tls: bool,
    /// Where to write the certificate authority that clients must trust: their ca_file [default: fuelrail-ca.pem]
    #[arg(long, value_name = "FILE", requires = "tls", conflicts_with = "tls_cert")]
    tls_ca: Option<PathBuf>,
    /// Show this certificate (with those that lead to its authority, PEM) instead
    #[arg(long, value_name = "FILE", requires_all = ["tls", "tls_key"])]
    tls_cert: Option<PathBuf>,
    /// Its private key, PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Stop after this many seconds
    #[arg(long = "for", value_name = "SECONDS", conflicts_with = "write_to")]
    duration_s: Option<f64>,
    /// Write the generated set to a folder instead of serving it
    #[arg(long, value_name = "DIR")]
    write_to: Option<PathBuf>,
    /// Print JSON, one document per line: {"url":…} at the start, {"counters":…} at the end
    #[arg(long)]
    json: bool,
}

/// How often is looked whether it is time to end.
const LOOK_EVERY: Duration = Duration::from_millis(10);

pub(crate) fn run(args: &Serve) -> Outcome {
    let source = source(args)?;
    match (&args.write_to, source) {
        (Some(dir), Source::Generated(set)) => write_out(&set, dir, args.json),
        (Some(_), Source::Directory(dir)) => {
            let cause = format!("{} is a folder of files already", dir.display());
            Err(usage(cause, "--write-to takes digits, photos, volumes or tokens"))
        }
        (None, source) => serve(args, source),
    }
}

/// The data set or folder that is meant. A folder named like a set is written `./digits`.
fn source(args: &Serve) -> Outcome<Source> {
    let kind = args.what.parse::<SetKind>().ok();
    let dir = PathBuf::from(&args.what);
    if kind.is_none() && !dir.is_dir() {
        let cause = format!("'{}' is neither a data set nor a folder", args.what);
        return Err(usage(cause, "use digits, photos, volumes, tokens or the path of a folder"));
    }
    for (name, given, only) in [
        ("--count", args.count.is_some(), None),
        ("--seed", args.seed.is_some(), None),
        ("--scale", args.scale.is_some(), Some(SetKind::Volumes)),
        ("--shard-size", args.shard_size.is_some(), Some(SetKind::Tokens)),
    ] {
        let (what, cure) = match (kind, only) {
            (None, _) => ("a folder".to_owned(), "leave it out: files are served as they are".to_owned()),
            (Some(kind), Some(only)) if kind != only => (kind.to_string(), format!("leave it out, or serve {only}")),
            _ => continue,
        };
        if given {
            return Err(usage(format!("{name} does not apply to {what}"), cure));
        }
    }
    let Some(kind) = kind else { return Ok(Source::Directory(dir)) };
    let count = args.count.unwrap_or(match kind {
        SetKind::Digits => 14_000,
        SetKind::Photos => 1_000,
        SetKind::Volumes | SetKind::Tokens => 8,
    });
    let mut set = DataSet::new(kind, count, args.seed.unwrap_or(0));
    set.scale = args.scale.unwrap_or(set.scale);
    set.shard_bytes = args.shard_size.map_or(set.shard_bytes, |size| size.0);
    set.validate()?;
    Ok(Source::Generated(set))
}

fn write_out(set: &DataSet, dir: &Path, json: bool) -> Outcome {
    let bar = Bar::new(Some(set.len()), "objects");
    let written = set.write_to(dir, |so_far| bar.at(so_far.objects, || ByteSize(so_far.bytes).to_string()));
    // A full disk is not the machine refusing a service, as the same error of a server would be.
    let written = written.map_err(|error| Failure::Error(Error::new(Kind::File, error.to_string())))?;
    drop(bar);
    let dir = dir.display().to_string();
    let (objects, bytes) = (written.objects, written.bytes);
    let document = json!({ "schema": 1, "dir": dir, "objects": objects, "bytes": bytes, "set": set });
    JsonTo::output(json).show(&document, || format!("{objects} {} written to {dir}, {}\n", set.kind, ByteSize(bytes)))
}

fn serve(args: &Serve, source: Source) -> Outcome {
    let duration = match args.duration_s.map(Duration::try_from_secs_f64).transpose() {
        Ok(duration) => duration,
        Err(error) => return Err(usage(format!("--for: {error}"), "give a number of seconds")),
    };
    let script: Script = args.script.as_deref().unwrap_or_default().parse()?;
    // Before the bucket starts, so that no signal finds the default action once the URL is out.
    let stop = stop_on_signals()?;
    let bucket = Bucket::start(BucketConfig {
        listen: SocketAddr::new(args.host, args.port),
        bucket: args.bucket.clone(),
        source: source.clone(),
        script: script.clone(),
        threads: args.threads,
        writable: args.writable,
        tls: tls(args),
        key: args.signed.then(access_key).transpose()?,
        ..BucketConfig::default()
    })?;
    let url = bucket.url("");
    let ca_file = bucket.authority().map(|pem| write_authority(args, pem)).transpose()?;
    if args.json {
        let mut started = json!({ "schema": 1, "url": url, "source": source, "script": script });
        if let Some(file) = &ca_file {
            started["ca_file"] = json!(file);
        }
        print_line(&started)?;
    } else {
        print(&format!("{url}\n"))?;
        note(&format!("serving {}; ends with Ctrl-C", described(&source)));
        if let Some(file) = &ca_file {
            note(&format!("clients need ca_file = {}", file.display()));
        }
    }
    let (begun, mut short_of_files) = (Instant::now(), false);
    while stop.check().is_ok() && duration.is_none_or(|duration| begun.elapsed() < duration) {
        std::thread::sleep(LOOK_EVERY);
        if !short_of_files && bucket.counters().accepts_failed > 0 {
            short_of_files = true;
            note(
                "no file descriptor is left: connections wait until others end; raise the limit of open files (ulimit -n)",
            );
        }
    }
    let counters = bucket.counters();
    bucket.stop();
    if args.json {
        print_line(&json!({ "schema": 1, "url": url, "counters": counters }))?;
    } else {
        print(&table(&counters))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// How the bucket speaks TLS, if it does.
fn tls(args: &Serve) -> Option<Tls> {
    let files = args.tls_cert.clone().zip(args.tls_key.clone());
    let own = files.map(|(certificate, key)| Tls::Files { certificate, key });
    args.tls.then(|| own.unwrap_or(Tls::SelfSigned))
}

/// The access key of the environment.
fn access_key() -> Outcome<AccessKey> {
    let of = |name: &str| {
        std::env::var(name).map_err(|_| usage(format!("--signed needs {name}"), "set it in the environment"))
    };
    Ok(AccessKey { id: of("AWS_ACCESS_KEY_ID")?, secret: of("AWS_SECRET_ACCESS_KEY")? })
}

/// Writes the certificate of the authority the bucket made; returns where.
fn write_authority(args: &Serve, pem: &str) -> Outcome<PathBuf> {
    let path = args.tls_ca.clone().unwrap_or_else(|| "fuelrail-ca.pem".into());
    std::fs::write(&path, pem)
        .map_err(|error| Error::from_io(Kind::File, format_args!("writing {}", path.display()), error))?;
    Ok(path)
}

fn print_line(document: &Value) -> Outcome<()> {
    print(&format!("{document}\n"))
}

fn described(source: &Source) -> String {
    match source {
        Source::Directory(dir) => format!("the files under {}", dir.display()),
        Source::Generated(set) => format!("{} {}, seed {}", set.len(), set.kind, set.seed),
    }
}

fn table(counters: &Counters) -> String {
    let mut table = Table::new(&[1]);
    for (name, count) in [
        ("requests", counters.requests()),
        ("  get", counters.get_requests),
        ("  head", counters.head_requests),
        ("  list", counters.list_requests),
        ("  put", counters.put_requests),
        ("  parts", counters.part_requests),
        ("  other", counters.other_requests),
        ("body bytes", counters.body_bytes),
        ("sent bytes", counters.sent_bytes),
        ("connections", counters.connections_opened),
        ("  most at once", counters.connections_open_max),
    ] {
        table.row([name.to_owned(), count.to_string()]);
    }
    if counters.tls_full + counters.tls_resumed > 0 {
        table.row(["TLS handshakes".to_owned(), (counters.tls_full + counters.tls_resumed).to_string()]);
        table.row(["  resumed".to_owned(), counters.tls_resumed.to_string()]);
    }
    table.row(["faults injected".to_owned(), counters.faults_total().to_string()]);
    for (kind, count) in &counters.faults {
        table.row([format!("  {kind}"), count.to_string()]);
    }
    table.text()
}
