//! Live progress of the demo: a bar per row where a terminal watches, lines otherwise.
//!
//! Owns the bars. Called from the trainers' threads, between their batches.

use std::collections::HashMap;
use std::io::{self, IsTerminal};
use std::sync::{Mutex, PoisonError};

use crate::deli::{Row, RowName, Watch};
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::screen::{micros, note};

/// Without a terminal, a row says how far it is this many times.
const LINES_PER_ROW: u64 = 4;

/// Shows the experiment as it goes.
#[derive(Debug)]
pub(super) struct Onlooker {
    bars: MultiProgress,
    watched: bool,
    rows: Mutex<HashMap<RowName, Progress>>,
}

#[derive(Debug)]
struct Progress {
    bar: ProgressBar,
    done: u64,
    batches: u64,
    /// Whether it speaks for the rows that run with it.
    speaks: bool,
}

impl Onlooker {
    /// Watches on standard error.
    pub(super) fn new() -> Onlooker {
        let watched = io::stderr().is_terminal();
        let target = if watched { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        Onlooker { bars: MultiProgress::with_draw_target(target), watched, rows: Mutex::default() }
    }

    fn say(&self, line: &str) {
        if self.watched {
            // Above the bars, which would otherwise be drawn over it. A closed standard error has nobody to tell.
            let _ = self.bars.println(line);
        } else {
            note(line);
        }
    }
}

impl Watch for Onlooker {
    fn begin(&self, rows: &[RowName], batches: u64) {
        if !self.watched {
            let names: Vec<&str> = rows.iter().map(|name| name.word()).collect();
            let beside = if rows.len() > 1 { ", side by side" } else { "" };
            note(&format!("begin {}{beside}", names.join(", ")));
        }
        let style = ProgressStyle::with_template("{prefix:>18} {bar:40} {percent:>3} %  {eta} left")
            .expect("the template is a constant that parses");
        let mut known = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        for (index, &name) in rows.iter().enumerate() {
            let bar = self.bars.add(ProgressBar::new(batches).with_style(style.clone()).with_prefix(name.word()));
            known.insert(name, Progress { bar, done: 0, batches, speaks: index == 0 });
        }
    }

    fn batch(&self, row: RowName) {
        let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(progress) = rows.get_mut(&row) else { return };
        progress.done += 1;
        progress.bar.set_position(progress.done);
        let part = progress.done * LINES_PER_ROW;
        let passes = part / progress.batches > (part - LINES_PER_ROW) / progress.batches;
        let line = (!self.watched && progress.speaks && passes && progress.done < progress.batches)
            .then(|| format!("{row} {} %", progress.done * 100 / progress.batches));
        drop(rows);
        if let Some(line) = line {
            note(&line);
        }
    }

    fn end(&self, row: &Row) {
        let ended = self.rows.lock().unwrap_or_else(PoisonError::into_inner).remove(&row.name);
        if let Some(progress) = ended {
            progress.bar.finish_and_clear();
        }
        let (wait, epoch) = (micros((row.data_wait_s * 1e6) as u64), micros((row.epoch_s * 1e6) as u64));
        let gone = if row.name == RowName::Bucket {
            String::new()
        } else {
            format!(" ({:+.1} %)", -row.wait_reduction * 100.0)
        };
        self.say(&format!("{:>18}  data wait {wait}{gone} in an epoch of {epoch}", row.name));
    }
}
