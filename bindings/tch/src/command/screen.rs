//! The output of a run: lines for people from rank 0, and a log for programs from every rank.

use fuelrail::{Error, Kind, Result};
use fuelrail_tch::{Event, Meter, Reason, StepReport};
use serde_json::json;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::time::{Duration, Instant};

/// A line at least this often while training goes on, unless `print_every` says otherwise.
const SPEAK_EVERY: Duration = Duration::from_secs(2);

/// Prints and logs the events of a run.
pub(crate) struct Screen {
    speaks: bool,
    every: u64,
    log: Option<BufWriter<File>>,
    window: Meter,
    spoken: Instant,
    total: u64,
}

impl Screen {
    /// For this rank; `total` is the number of samples of the whole run.
    pub(crate) fn new(rank: usize, every: u64, log: Option<&str>, total: u64) -> Result<Screen> {
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
        Ok(Screen { speaks: rank == 0, every, log: log.transpose()?, window, spoken, total })
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
                let why = match reason {
                    Reason::Share => "the synchronous share of the work is done".to_owned(),
                    Reason::Straggler(rank) => format!("rank {rank} lags behind"),
                };
                self.say(&format!(
                    "asynchronous from here: {why} (the switch took {:.2} ms)",
                    took.as_secs_f64() * 1e3
                ));
            }
            Event::Notice(text) => eprintln!("notice: {text}"),
        }
    }

    fn step(&mut self, report: &StepReport) {
        self.window.count(&report.time);
        let time = &report.time;
        if let Some(log) = &mut self.log {
            let mut line = json!(report);
            line["ready"] = json!(time.ready);
            for (name, took) in [
                ("data_wait_ms", time.data_wait),
                ("copy_wait_ms", time.copy_wait),
                ("compute_ms", time.compute()),
                ("all_reduce_ms", time.all_reduce),
                ("wall_ms", time.wall),
            ] {
                line[name] = json!(took.as_secs_f64() * 1e3);
            }
            // Flushed line by line: whoever reads it after a crash wants the last one.
            let written = writeln!(log, "{line}").and_then(|()| log.flush());
            if let Err(error) = written {
                eprintln!("notice: the log ends here: {error}");
                self.log = None;
            }
        }
        let due =
            if self.every > 0 { report.step.is_multiple_of(self.every) } else { self.spoken.elapsed() >= SPEAK_EVERY };
        if due && self.window.steps > 0 {
            let done = 100.0 * report.samples as f64 / self.total.max(1) as f64;
            let (step, epoch, loss, accuracy) = (report.step, report.epoch, report.loss, report.accuracy);
            self.say(&format!(
                "step {step} epoch {epoch} ({done:.1} %) loss {loss:.4} accuracy {accuracy:.3} rate {:.4} | {}",
                report.rate, self.window
            ));
            (self.window, self.spoken) = (Meter::default(), Instant::now());
        }
    }
}
