//! Live progress of the demo: a bar per row where a terminal watches, lines otherwise.
//!
//! Owns the bars. Called from the trainers' threads, between their batches.

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
    /// The first speaks for the rows that run with it.
    running: Mutex<Vec<(RowName, ProgressBar)>>,
}

impl Onlooker {
    /// Watches on standard error.
    pub(super) fn new() -> Onlooker {
        let watched = io::stderr().is_terminal();
        let target = if watched { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        Onlooker { bars: MultiProgress::with_draw_target(target), watched, running: Mutex::default() }
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
        let bar = |name: RowName| ProgressBar::new(batches).with_style(style.clone()).with_prefix(name.word());
        let running = rows.iter().map(|&name| (name, self.bars.add(bar(name)))).collect();
        *self.running.lock().unwrap_or_else(PoisonError::into_inner) = running;
    }

    fn batch(&self, row: RowName) {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(place) = running.iter().position(|(name, _)| *name == row) else { return };
        let bar = &running[place].1;
        bar.inc(1);
        let (done, batches) = (bar.position(), bar.length().unwrap_or(1));
        let part = done * LINES_PER_ROW;
        let passes = part / batches > (part - LINES_PER_ROW) / batches;
        if !self.watched && place == 0 && passes && done < batches {
            note(&format!("{row} {} %", done * 100 / batches));
        }
    }

    fn end(&self, row: &Row) {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.iter().filter(|(name, _)| *name == row.name).for_each(|(_, bar)| bar.finish_and_clear());
        drop(running);
        let [wait, epoch] = [row.data_wait_s, row.epoch_s].map(|s| micros((s * 1e6) as u64));
        let gone = match row.name {
            RowName::Bucket => String::new(),
            _ => format!(" ({:+.1} %)", -row.wait_reduction * 100.0),
        };
        let line = format!("{:>18}  data wait {wait}{gone} in an epoch of {epoch}", row.name);
        if self.watched {
            // Above the bars, which would otherwise be drawn over it. Errors are ignored: standard error may be closed.
            let _ = self.bars.println(line);
        } else {
            note(&line);
        }
    }
}
