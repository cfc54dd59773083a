//! `fuelrail bench`: measurements that anyone can repeat, with the machine and the configuration in the result. One question,
//! one file.

mod canned;
mod compare;
mod contestant;
mod cores;
mod findings;
mod given;
mod importance;
mod latency;
mod line;
mod mlperf;
mod read;
mod report;
mod rings;
mod rivals;
mod soak;
mod spill;
mod switch;
mod tail;
mod throttle;
mod tiers;
mod venue;

use clap::{Args, Subcommand};

pub(crate) use line::this_program;
pub(crate) use read::text as read_text;

use crate::failure::Outcome;

const EXAMPLES: &str = "Examples:
  fuelrail bench read http://127.0.0.1:9000/bucket/training/ --batch-size 512 --epochs 2
  fuelrail bench read http://127.0.0.1:8080/set/ --manifest set.tsv --shards 1 --memory-limit 512MiB --hash false --json run.json";

/// Measure what reading costs
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Bench {
    #[command(subcommand)]
    question: Question,
}

#[derive(Subcommand, Debug)]
enum Question {
    Read(Box<read::Read>),
    Latency(Box<latency::Latency>),
    Line(line::LineArgs),
    Floor(line::FloorArgs),
    Rivals(rivals::Rivals),
    Compare(compare::Compare),
    Report(report::Report),
    Rings(rings::RingsArgs),
    Spill(spill::SpillArgs),
    Cores(Box<cores::Cores>),
    Mlperf(Box<mlperf::Mlperf>),
    Soak(soak::SoakArgs),
    Switch(Box<switch::SwitchArgs>),
    Importance(Box<importance::ImportanceArgs>),
    Tiers(tiers::TiersArgs),
    Tail(tail::TailArgs),
    Throttle(throttle::ThrottleArgs),
    #[command(hide = true)]
    Canned(canned::CannedArgs),
    #[command(hide = true)]
    ThrottleReader(throttle::ThrottleReaderArgs),
    #[command(hide = true)]
    SoakBucket(soak::SoakBucketArgs),
    #[command(hide = true)]
    Contestant(contestant::Contestant),
}

pub(crate) fn run(bench: Bench) -> Outcome {
    match bench.question {
        Question::Read(args) => read::run(&args),
        Question::Latency(args) => latency::run(&args),
        Question::Line(args) => line::run(&args),
        Question::Floor(args) => line::run_floor(&args),
        Question::Rivals(args) => rivals::run(&args),
        Question::Compare(args) => compare::run(&args),
        Question::Report(args) => report::run(&args),
        Question::Rings(args) => rings::run(&args),
        Question::Spill(args) => spill::run(&args),
        Question::Cores(args) => cores::run(&args),
        Question::Mlperf(args) => mlperf::run(&args),
        Question::Soak(args) => soak::run(&args),
        Question::Switch(args) => switch::run(&args),
        Question::Importance(args) => importance::run(&args),
        Question::Tiers(args) => tiers::run(&args),
        Question::Tail(args) => tail::run(&args),
        Question::Throttle(args) => throttle::run(&args),
        Question::ThrottleReader(args) => throttle::run_reader(&args),
        Question::Canned(args) => canned::run(&args),
        Question::SoakBucket(args) => soak::run_bucket(&args),
        Question::Contestant(args) => contestant::run(&args),
    }
}
