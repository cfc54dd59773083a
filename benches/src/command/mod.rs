//! The lab's command line, `cargo x bench`: each benchmark a function from its arguments to an exit code.

mod cluster;
mod plan;
mod results;
mod revoked;
mod scenario;

use std::io::{self, stdin, stdout};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{ArgAction, Args, Parser, Subcommand};
use fuelrail::ByteSize;
use fuelrail_cli::bench::{shard_text, this_program};
use fuelrail_cli::failure::{Outcome, usage};
use fuelrail_cli::screen::{Bar, JsonTo, Table, note};
use fuelrail_cli::signals::stop_on_signals;
use fuelrail_cli::train::folders;

use crate::cores::{CoresReport, Coring, cores};
use crate::floor::{self, Floor, Into, Loop};
use crate::harness::{Findings, Pass, Task, Turn};
use crate::line::{Line, LineArgs, Step, line};
use crate::own::{self, Own};
use crate::rivals::{Programs, Python, RIVALS, Rival};
use crate::soak::{Moment, SoakReport, Soaking, serve, soak};

/// Measures the loader beside floors and rivals, and in scenarios
#[derive(Parser, Debug)]
#[command(name = "fuelrail-bench", bin_name = "cargo x bench", version, max_term_width = 120)]
struct Cli {
    #[command(subcommand)]
    benchmark: Benchmark,
}

#[derive(Subcommand, Debug)]
enum Benchmark {
    Line(Box<crate::line::LineArgs>),
    Report(results::Report),
    Cores(Box<crate::cores::Coring>),
    Soak(Box<crate::soak::Soaking>),
    Scenario(scenario::ScenarioArgs),
    Plan(plan::PlanArgs),
    Cluster(cluster::ClusterArgs),
    Revoked(revoked::RevokedArgs),
    Decode(crate::decode::DecodeArgs),
    #[command(hide = true)]
    ScenarioReader(scenario::ReaderArgs),
    #[command(hide = true)]
    SoakBucket(SoakBucketArgs),
    #[command(hide = true)]
    Contestant(Contestant),
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    fuelrail_cli::run_command_line(|cli: Cli| run(cli.benchmark))
}

fn run(benchmark: Benchmark) -> Outcome {
    match benchmark {
        Benchmark::Line(args) => run_line(&args),
        Benchmark::Report(args) => results::draw(&args),
        Benchmark::Cores(args) => run_cores(&args),
        Benchmark::Soak(args) => run_soak(*args),
        Benchmark::Scenario(args) => scenario::run(&args),
        Benchmark::Plan(args) => plan::run(&args),
        Benchmark::Cluster(args) => cluster::run(&args),
        Benchmark::Revoked(args) => revoked::run(&args),
        Benchmark::Decode(args) => JsonTo::output(true).show(&crate::decode::decode(&args)?, String::new),
        Benchmark::ScenarioReader(args) => scenario::run_reader(&args),
        Benchmark::SoakBucket(args) => run_bucket(&args),
        Benchmark::Contestant(args) => contestant(&args),
    }
}

fn run_line(args: &LineArgs) -> Outcome {
    if args.rounds == 0 || args.repeats == Some(0) {
        return Err(usage("nothing is measured in 0 rounds or 0 repeats", "give at least 1; 5 rounds are the default"));
    }
    let program = this_program()?;
    let all = |asked: Vec<&'static Rival>| if asked.is_empty() { RIVALS.iter().collect() } else { asked };
    let benchmark = Line {
        args,
        rivals: args.rivals.clone().map_or_else(Vec::new, all),
        programs: Programs {
            natives: args.rival_program.clone().unwrap_or_else(|| program.with_file_name("fuelrail-rival")),
            python: Python { folder: python_folder(args)? },
            path: folders(&std::env::var_os("PATH").unwrap_or_default()),
        },
        program,
        stop: stop_on_signals()?,
    };
    if args.python {
        benchmark.programs.python.install(&mut |step| note(step))?;
    }
    let bar = Bar::new(Some(0), "");
    let findings = line(&benchmark, &mut |step| show(&bar, step))?;
    drop(bar);
    findings.notices.iter().for_each(|notice| note(notice));
    JsonTo::asked(args.json.as_deref()).show(&findings, || results::text(&findings))?;
    Ok(if holds(&findings) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whether every bar holds and every floor and the loader came through. A rival need not be there.
fn holds(findings: &Findings) -> bool {
    let is_rival = |name: &String| RIVALS.iter().any(|rival| rival.name == name);
    findings.contests.iter().all(|contest| {
        let through = contest.contestants.iter().all(|scored| scored.failure.is_none() || is_rival(&scored.name));
        let absent = |holds: Option<bool>, to: &[String]| holds.is_none() && to.iter().any(is_rival);
        through && contest.bars.iter().all(|bar| bar.holds == Some(true) || absent(bar.holds, &bar.bar.to))
    })
}

fn python_folder(args: &LineArgs) -> Outcome<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = || set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")));
    match args.python_dir.clone().or_else(|| Some(cache()?.join("fuelrail/rivals"))) {
        None if args.rivals.is_some() => {
            let cause = "there is no cache folder: neither XDG_CACHE_HOME nor HOME is set";
            Err(usage(cause, "give --python-dir"))
        }
        folder => Ok(folder.unwrap_or_default()),
    }
}

/// Shows a step on a progress bar over turns, with the contest's and the contestant's name beside it; where no terminal watches, a line
/// for everything that is done.
fn show(bar: &Bar, step: Step<'_>) {
    match step {
        Step::Laying(shape, done, total) => {
            let shape = shape.word();
            bar.total(total >> 20);
            bar.at(done >> 20, || format!("MiB of {shape} written"));
            if bar.is_hidden() && done == total {
                note(&format!("{shape}: {} written", ByteSize(total)));
            }
        }
        Step::Turn(contest, Turn { name, stage, done, total, ended }) => {
            bar.total(total.into());
            bar.at(done.into(), || format!("{contest}: {name}"));
            if let (true, Some(ended)) = (bar.is_hidden(), ended) {
                note(&format!("{contest}, {stage}, {name} ({} of {total}): {}", done + 1, came_to(ended)));
            }
        }
    }
}

/// What a pass came to, in a few words.
fn came_to(ended: Result<&Pass, &str>) -> String {
    match ended {
        Ok(pass) => {
            let cost = pass.cpu_s_per_gb().map_or_else(String::new, |cost| format!(", {cost:.3} CPU-s/GB"));
            format!("{:.2} s{cost}", pass.wall_s)
        }
        Err(why) => format!("failed, {why}"),
    }
}

fn run_cores(coring: &Coring) -> Outcome {
    let bar = Bar::new(Some(coring.counts().len() as u64 * u64::from(coring.rounds)), "runs");
    let mut done = 0;
    let report = cores(coring, &mut |run| {
        done += 1;
        bar.at(done, || format!("{} shard(s): {:.2} GB/s", run.shards, run.gb_per_s));
    })?;
    drop(bar);
    JsonTo::asked(coring.json.as_deref()).show(&report, || cores_text(&report))
}

fn cores_text(report: &CoresReport) -> String {
    let mut table = Table::new(&[0, 1, 2, 3, 4, 5, 6]);
    table.row(["shards", "GB/s", "GB/s per core", "scaling", "work per core", "of work", "server CPU-s/GB"]);
    for row in &report.rows {
        let server = row.server_cpu_s_per_gb.map_or_else(|| "-".to_owned(), |cost| format!("{cost:.3}"));
        table.row([
            row.shards.to_string(),
            format!("{:.3} ({:.3} to {:.3})", row.gb_per_s.median, row.gb_per_s.min, row.gb_per_s.max),
            format!("{:.3}", row.gb_per_core_s.median),
            format!("{:.2} ({:.2} to {:.2})", row.scaling.median, row.scaling.min, row.scaling.max),
            format!("{:.3} ({:.3} to {:.3})", row.work_per_core.median, row.work_per_core.min, row.work_per_core.max),
            format!("{:.2}", row.scaling_of_work),
            server,
        ]);
    }
    let mut text = table.text();
    for row in &report.rows {
        let last = report.runs.iter().rev().find(|run| run.shards == row.shards);
        for (number, shard) in last.into_iter().flat_map(|run| &run.per_shard).enumerate() {
            text.push_str(&format!("\n{} shard(s), shard {number}: {}", row.shards, shard_text(shard)));
        }
    }
    let size = ByteSize(report.object_bytes_mean);
    text.push_str(&format!("\n\nobjects of {size}, server {}; {}\n", report.origin, report.machine.line()));
    text
}

fn run_soak(args: Soaking) -> Outcome {
    let soaking = Soaking { program: this_program()?, stop: stop_on_signals()?, ..args };
    let (bar, mut said) = (Bar::new(Some(soaking.time().as_secs().max(1)), "s"), Instant::now());
    let report = soak(&soaking, &mut |moment| {
        bar.at(moment.at_s as u64, || moment_line(moment));
        if bar.is_hidden() && said.elapsed() >= SAY_EVERY {
            said = Instant::now();
            note(&format!("{:.0} s: {}", moment.at_s, moment_line(moment)));
        }
    })?;
    drop(bar);
    report.notices.iter().for_each(|notice| note(notice));
    JsonTo::asked(soaking.json.as_deref()).show(&report, || soak_text(&report))?;
    Ok(if report.holds() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// How often a line is said where no terminal watches.
const SAY_EVERY: Duration = Duration::from_secs(30);

fn moment_line(moment: &Moment) -> String {
    let gauge = moment.gauge;
    format!(
        "{}, {} fds, {} threads, {} slots, {} ops, {} samples, {:.1} GB, {} retries, {} faults, {}",
        ByteSize(gauge.rss_bytes()),
        gauge.descriptors,
        gauge.threads,
        moment.slots,
        moment.operations,
        moment.samples,
        moment.gb,
        moment.retries,
        moment.faults.values().sum::<u64>(),
        moment.phase
    )
}

fn soak_text(report: &SoakReport) -> String {
    let mut table = Table::new(&[]);
    for criterion in &report.criteria {
        let mark = match criterion.holds {
            Some(true) => "holds",
            Some(false) => "DOES NOT HOLD",
            None => "-",
        };
        table.row([criterion.name.as_str(), mark, criterion.text.as_str()]);
    }
    let totals = &report.totals;
    let faults: Vec<String> = totals.faults.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
    format!(
        "{}\n{:.2} GB in {} epochs of {} objects ({}); {} requests, {} connections ({} broken), of {} blocks {} from the cache and {} \
         from disk; opened anew {} times\nfaults: {}, away {}\n{}; {}; seed {}\n",
        table.text(),
        totals.bytes as f64 / 1e9,
        totals.epochs,
        report.objects,
        ByteSize(report.object_bytes),
        totals.requests,
        totals.connections,
        totals.connections_failed,
        totals.asks,
        totals.hits,
        totals.disk_hits,
        totals.reopened,
        faults.join(", "),
        totals.absences,
        report.machine.line(),
        report.ring,
        report.seed
    )
}

/// Serve a folder to a soak (started by it)
#[derive(Args, Debug)]
pub(crate) struct SoakBucketArgs {
    #[arg(long)]
    folder: PathBuf,
    #[arg(long)]
    tls: bool,
}

fn run_bucket(args: &SoakBucketArgs) -> Outcome {
    serve(&args.folder, args.tls, stdin().lock(), stdout())?;
    Ok(ExitCode::SUCCESS)
}

const CONTESTANT_EXAMPLES: &str = "Examples:
  cargo x bench contestant floor-recv --uri http://127.0.0.1:8080/set/ --manifest set.tsv --batch-size 8 --arena 536870912 --seed 0
  echo go | cargo x bench contestant fuelrail --set shards=1 --uri http://127.0.0.1:8080/set/ --manifest set.tsv --batch-size 8 \\
      --arena 536870912 --seed 0

It says `ready`, does a pass over the set for every line `go` on its input, and prints one line of JSON after each.";

/// Take part in a comparison (started by the harness; by hand, to see why a contestant fails)
#[derive(Args, Debug)]
#[command(after_help = CONTESTANT_EXAMPLES)]
pub(crate) struct Contestant {
    #[command(subcommand)]
    who: Who,
}

#[derive(Subcommand, Debug)]
enum Who {
    /// A blocking recv loop on one connection
    FloorRecv(FloorArgs),
    /// An epoll loop over several connections
    FloorEpoll(FloorArgs),
    /// An epoll loop whose kernel drops the payload
    FloorDrop(FloorArgs),
    /// A blocking loop over TLS with rustls and aws-lc on one connection
    FloorRustls {
        /// The authority to trust, as PEM
        #[arg(long, value_name = "FILE")]
        ca: PathBuf,
        /// Hash what comes
        #[arg(long)]
        hash: bool,
        #[command(flatten)]
        task: Task,
    },
    /// The loader itself
    Fuelrail {
        #[command(flatten)]
        own: Own,
        #[command(flatten)]
        task: Task,
    },
}

#[derive(Args, Debug)]
#[command(after_help = CONTESTANT_EXAMPLES)]
struct FloorArgs {
    /// Connections of epoll; without it 1, 8 and 32 are tried
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    connections: Option<u16>,
    /// Touch the arena's pages before the first pass
    #[arg(long, value_name = "true|false", action = ArgAction::Set, default_value_t = true)]
    touch: bool,
    /// Hash what comes
    #[arg(long)]
    hash: bool,
    #[command(flatten)]
    task: Task,
}

fn contestant(args: &Contestant) -> Outcome {
    let (input, output) = (io::stdin().lock(), io::stdout().lock());
    let (looping, into, args) = match &args.who {
        Who::Fuelrail { own, task } => {
            own::run(own, task, input, output)?;
            return Ok(ExitCode::SUCCESS);
        }
        Who::FloorRustls { ca, hash, task } => {
            floor::run_tls(ca, *hash, task, input, output)?;
            return Ok(ExitCode::SUCCESS);
        }
        Who::FloorRecv(args) => (Loop::Recv, Into::Arena, args),
        Who::FloorEpoll(args) => (Loop::Epoll(args.connections), Into::Arena, args),
        Who::FloorDrop(args) => (Loop::Epoll(args.connections), Into::Nowhere, args),
    };
    floor::run(&Floor { looping, into, touch: args.touch, hash: args.hash }, &args.task, input, output)?;
    Ok(ExitCode::SUCCESS)
}
