//! The command line, what a program is told of it, and the output of a run: lines for people from rank 0, and a log for programs from every rank.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::forecast::{Forecast, Judgement, Limits};
use crate::meter::Meter;
use crate::notice::Service;
use crate::switch::Reason;
use crate::trainer::{Event, StepReport, TrainConfig};
use clap::Args;
use fuelrail::{Config, Decode, Error, Kind, Overrides, Result, read_duration};
use serde_json::json;
use tch::Device;

/// Trains a model from a bucket, on one rank or many.
///
/// Ranks find each other as everywhere: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT, set by hand or by torchrun. Those of a
/// machine share its memory and cores by LOCAL_WORLD_SIZE.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// Where the samples are
    pub uri: String,
    /// Samples to judge the model by, at the end
    #[arg(long)]
    pub eval_uri: Option<String>,
    /// Pictures: HEIGHTxWIDTHxCHANNELS
    #[arg(long)]
    pub decode: Option<String>,
    /// Samples per batch and rank
    #[arg(long, default_value_t = 64)]
    pub batch_size: u32,
    /// Samples per step of all ranks together, instead: the same whatever the number of ranks
    #[arg(long, conflicts_with = "batch_size")]
    pub global_batch_size: Option<u32>,
    #[command(flatten)]
    pub training: TrainConfig,
    #[command(flatten)]
    pub limits: Limits,
    /// auto, cpu or cuda
    #[arg(long, default_value = "auto")]
    pub device: String,
    /// gloo, nccl, or auto: nccl between GPUs
    #[arg(long, default_value = "auto")]
    pub backend: String,
    /// A folder or a bucket's prefix for checkpoints; may be given twice. A run goes on from the newest one there
    #[arg(long)]
    pub checkpoint: Vec<String>,
    /// Checkpoints kept in a folder
    #[arg(long, default_value_t = 2)]
    pub keep: usize,
    /// Draw epochs by importance: on, uniform, shade or shade-corrected; off is every sample once. More with --set importance_…
    #[arg(long)]
    pub importance: Option<String>,
    /// Judge the model by --eval-uri after every epoch, too; not with steps that may become asynchronous
    #[arg(long)]
    pub eval_every_epoch: bool,
    /// A folder or a bucket's prefix in which the model of the epoch with the best accuracy is kept
    #[arg(long, value_name = "PLACE", requires = "eval_uri", requires = "eval_every_epoch")]
    pub best: Option<String>,
    /// Longest wait for another rank, seconds; for its checkpoint ten times as long
    #[arg(long, default_value_t = 300.0)]
    pub timeout_s: f64,
    /// Threads of one operation on the CPU; without, the machine's cores shared out, or OMP_NUM_THREADS
    #[arg(long)]
    pub threads: Option<usize>,
    /// Ask this metadata service whether the machine is about to be taken away: gce or ec2
    #[arg(long, value_enum)]
    pub preemption: Option<Service>,
    /// Where that service is, if not where every instance has it
    #[arg(long)]
    pub metadata_address: Option<SocketAddr>,
    /// How long the machine stays after a notice (30s): training goes on as long as a checkpoint is still safe. Without, it is 25 s on gce
    /// and 115 s on ec2, and a signal saves at once
    #[arg(long, value_name = "TIME", value_parser = |text: &str| read_duration(text, "s"))]
    pub notice: Option<Duration>,
    /// Where a step's time was predicted to lie, LOW,HIGH in seconds (`fuelrail plan fit --predict`): a slower run names its cause
    #[arg(long, value_name = "LOW,HIGH", value_parser = interval)]
    pub predicted_step_s: Option<[f64; 2]>,
    /// A setting of the loader, KEY=VALUE, as in its TOML file, but for those that options give. In metrics_listen `{local_rank}` and `{rank}` stand for the rank's numbers
    #[arg(long, value_name = "KEY=VALUE", value_parser = setting)]
    pub set: Vec<(String, String)>,
    /// The loader's TOML file
    #[arg(long)]
    pub config: Option<PathBuf>,
    /// Write one line of JSON per step here; `{rank}` stands for the rank
    #[arg(long)]
    pub step_log: Option<String>,
    /// Write the outcome as JSON here (rank 0)
    #[arg(long)]
    pub json: Option<PathBuf>,
    /// For trials: train on the first N batches again and again, which stay where the model is
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with_all = ["checkpoint", "importance"])]
    pub resident: usize,
    /// Print a line every so many steps; 0 about every two seconds
    #[arg(long, default_value_t = 0)]
    pub print_every: u64,
}

impl Arguments {
    /// Checks what no single option shows.
    ///
    /// # Errors
    /// `Usage` naming the option that would be ignored.
    pub(crate) fn check(&self) -> Result<()> {
        let TrainConfig { checkpoint_every_steps, checkpoint_every_s, .. } = self.training;
        if self.checkpoint.is_empty() && (checkpoint_every_steps > 0 || checkpoint_every_s > 0.0) {
            return Err(usage("checkpoints are to be saved every so often, and nothing says where".to_owned())
                .with_hint("name a folder or a bucket's prefix as --checkpoint, or leave --checkpoint-every out"));
        }
        Ok(())
    }

    /// The loader's configuration over `uri`, for this rank.
    pub(crate) fn loader(&self, uri: &str, rank: usize, world: usize) -> Result<Config> {
        let batch_size = match self.global_batch_size {
            None => self.batch_size,
            Some(all) if (all as usize).is_multiple_of(world) => all / world as u32,
            Some(all) => {
                return Err(usage(format!("a global batch of {all} cannot be shared out evenly over {world} ranks"))
                    .with_hint("choose a multiple of the number of ranks"));
            }
        };
        let own = [
            ("uri", Some(uri.to_owned())),
            ("batch_size", Some(batch_size.to_string())),
            ("epochs", Some(self.training.epochs.to_string())),
            ("seed", Some(self.training.seed.to_string())),
            ("rank", Some(rank.to_string())),
            ("world", Some(world.to_string())),
            ("decode", self.decode.clone()),
            ("importance", self.importance.clone()),
        ];
        let own: Overrides = own.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect();
        // Of two values in --set the later one counts: scripts append to what they are given.
        for setting in &self.set {
            Config::check_once(&[own.as_slice(), std::slice::from_ref(setting)].concat()).map_err(|error| {
                error.with_hint("leave it out of --set: an option, as --batch-size is, or the launcher says it")
            })?;
        }
        let overrides = [own, self.set.clone()].concat();
        Config::load(self.config.as_deref(), fuelrail::environment_variables()?, &overrides)
    }
}

/// What a model is made for.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Facts<'a> {
    /// Where it is trained, and its variables lie.
    pub device: Device,
    /// What pictures are decoded to; `None` where samples come as they are.
    pub decode: Option<Decode>,
    /// Names of the classes; labels number them.
    pub classes: &'a [String],
    /// All settings of the loader.
    pub config: &'a Config,
}

fn usage(cause: String) -> fuelrail::Error {
    fuelrail::Error::new(fuelrail::Kind::Usage, cause)
}

fn interval(text: &str) -> Result<[f64; 2]> {
    let ends = text.split_once(',').and_then(|(low, high)| Some([low.trim().parse().ok()?, high.trim().parse().ok()?]));
    let ends = ends.filter(|[low, high]| *low >= 0.0 && low <= high && *high > 0.0 && f64::is_finite(*high));
    ends.ok_or_else(|| usage(format!("'{text}' is not LOW,HIGH")).with_hint("write for example 0.198,0.240"))
}

fn setting(text: &str) -> Result<(String, String)> {
    let (key, value) = text.split_once('=').ok_or_else(|| usage("not KEY=VALUE".to_owned()))?;
    Ok((key.to_owned(), value.to_owned()))
}

/// A line at least this often while training goes on, unless `print_every` says otherwise.
const SPEAK_EVERY: Duration = Duration::from_secs(2);

/// Prints and logs the events of a run.
pub(crate) struct Screen {
    speaks: bool,
    every: u64,
    log: Option<BufWriter<File>>,
    window: Meter,
    spoken: Instant,
    forecast: Forecast,
}

impl Screen {
    pub(crate) fn new(rank: usize, every: u64, log: Option<&str>, forecast: Forecast) -> Result<Screen> {
        let log = log.map(|path| path.replace("{rank}", &rank.to_string()));
        let log = log.map(|path| {
            // A run that goes on adds to its log.
            let file = File::options().create(true).append(true).open(&path);
            file.map(BufWriter::new).map_err(|e| {
                Error::from_io(Kind::File, format_args!("cannot write the log {path}"), e)
                    .with_hint("name a file that can be written")
            })
        });
        let (window, spoken) = (Meter::default(), Instant::now());
        Ok(Screen { speaks: rank == 0, every, log: log.transpose()?, window, spoken, forecast })
    }

    /// Prints one line, on rank 0 only.
    pub(crate) fn say(&self, line: &str) {
        if self.speaks {
            let mut out = std::io::stdout().lock();
            // A closed standard output is no reason to stop training.
            let _ = writeln!(out, "{line}").and_then(|()| out.flush());
        }
    }

    /// Handles an event of the trainer.
    pub(crate) fn hear(&mut self, event: &Event<'_>) {
        match event {
            Event::Step(report) => self.step(report),
            Event::Saved(places, took) => {
                self.say(&format!("checkpoint {} ({:.0} ms)", places.join(", "), took.as_secs_f64() * 1e3));
            }
            Event::Switched(reason, took) => {
                let what = match reason {
                    Reason::Share => "asynchronous from here: the synchronous share of the work is done".to_owned(),
                    Reason::Straggler(rank) => format!("asynchronous from here: rank {rank} lags behind"),
                    Reason::LeftOut(rank) => format!("without rank {rank} from here: it lags behind"),
                    Reason::Recovered => "synchronous again: no rank lags behind any more".to_owned(),
                };
                self.say(&format!("{what} (the switch took {:.2} ms)", took.as_secs_f64() * 1e3));
            }
            Event::Notice(text) => eprintln!("notice: {text}"),
        }
    }

    /// So many samples are the whole run.
    pub(crate) fn expect(&mut self, samples: u64) {
        self.forecast.total = samples;
    }

    /// How right the forecast was.
    pub(crate) fn judged(&self) -> Option<Judgement> {
        self.forecast.judged(Instant::now())
    }

    fn step(&mut self, report: &StepReport) {
        let now = Instant::now();
        if let Some(late) = self.forecast.step(report.samples, now).filter(|_| self.speaks) {
            eprintln!("notice: {late}");
        }
        self.window.count(&report.time);
        let time = &report.time;
        if let Some(log) = &mut self.log {
            let mut line = json!(report);
            line["ready"] = json!(time.ready);
            for (name, took) in [
                ("data_wait_ms", time.data_wait),
                ("compute_ms", time.compute()),
                ("all_reduce_ms", time.all_reduce),
                ("wall_ms", time.wall),
            ] {
                line[name] = json!(took.as_secs_f64() * 1e3);
            }
            // Flushed line by line, so that the last line is there after a crash.
            let written = writeln!(log, "{line}").and_then(|()| log.flush());
            if let Err(error) = written {
                eprintln!("notice: the log ends here: {error}");
                self.log = None;
            }
        }
        let due =
            if self.every > 0 { report.step.is_multiple_of(self.every) } else { self.spoken.elapsed() >= SPEAK_EVERY };
        if due && self.window.steps > 0 {
            let done = 100.0 * report.samples as f64 / self.forecast.total.max(1) as f64;
            let (step, epoch, loss, accuracy) = (report.step, report.epoch, report.loss, report.accuracy);
            let left = self.forecast.line(report.samples, now).map_or_else(String::new, |line| format!(" | {line}"));
            self.say(&format!(
                "step {step} epoch {epoch} ({done:.1} %) loss {loss:.4} accuracy {accuracy:.3} rate {:.4} | {}{left}",
                report.rate, self.window
            ));
            (self.window, self.spoken) = (Meter::default(), Instant::now());
        }
    }
}
