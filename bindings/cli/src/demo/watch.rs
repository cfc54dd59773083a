//! Live progress of the demo: a bar for the rows that run side by side where a terminal watches, lines otherwise.
//!
//! Owns the bar. Called from the trainers' threads, between their batches.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::deli::{Row, RowName, Watch};
use crate::screen::{Bar, micros, note};

/// Without a terminal, rows say how far they are this many times.
const LINES: u64 = 4;

/// Shows the experiment as it goes.
#[derive(Debug, Default)]
pub(super) struct Onlooker(Mutex<Option<Running>>);

/// Rows that run side by side, and how many of their batches are done.
#[derive(Debug)]
struct Running {
    names: String,
    bar: Bar,
    done: u64,
    batches: u64,
}

impl Onlooker {
    fn running(&self) -> MutexGuard<'_, Option<Running>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watch for Onlooker {
    fn begin(&self, rows: &[RowName], batches: u64) {
        let names = rows.iter().map(|name| name.word()).collect::<Vec<_>>().join(", ");
        let batches = batches * rows.len() as u64;
        let bar = Bar::new(Some(batches), "batches");
        if bar.is_hidden() {
            note(&format!("begin {names}"));
        }
        *self.running() = Some(Running { names, bar, done: 0, batches });
    }

    fn batch(&self, row: RowName) {
        let mut running = self.running();
        let Some(Running { names, bar, done, batches }) = running.as_mut() else { return };
        *done += 1;
        bar.at(*done, || row.word().to_owned());
        let part = *done * LINES;
        if bar.is_hidden() && part / *batches > (part - LINES) / *batches && *done < *batches {
            note(&format!("{names} {} %", *done * 100 / *batches));
        }
    }

    fn end(&self, row: &Row) {
        // Rows that ran side by side end together: the bar makes room for their lines.
        drop(self.running().take());
        let [wait, epoch] = [row.data_wait_s, row.epoch_s].map(|s| micros((s * 1e6) as u64));
        let gone = match row.name {
            RowName::Bucket => String::new(),
            _ => format!(" ({:+.1} %)", -row.wait_reduction * 100.0),
        };
        note(&format!("{:>18}  data wait {wait}{gone} in an epoch of {epoch}", row.name));
    }
}
