//! The exactly-once audit: writes a log of what was delivered, and checks one or many logs.
//!
//! A log is JSON lines: a header that names the run and its start, then one line per batch with the cursor after it. Logs
//! of runs that continue each other (after a crash, with any number of ranks) are joined: what a run delivered at or
//! after a later run's start was lost in the crash and delivered again, on the same rank, which may have gone on alone, or
//! on any where the number of ranks is another. Where epochs are drawn by importance, a line before an epoch's first batch
//! says how often each sample is due in it.

use crate::batch::Batch;
use crate::state::State;
use fuelrail_base::{Error, Kind, Result, SampleId};
use fuelrail_plan::run::{Cursor, Run};
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    fuelrail_audit: u32,
    rank: u32,
    world: u32,
    /// When the log was started, µs since 1970: where runs overlap, the later one counts.
    begun_us: u64,
    /// Where this run started.
    start: State,
    /// Samples in the data sets of a mixture, whose epochs have another number of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mixed: Option<u64>,
}

impl Header {
    /// Samples in the data set.
    fn samples(&self) -> u64 {
        self.mixed.unwrap_or(self.start.samples)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    epoch: u64,
    /// First position of the batch.
    from: u64,
    /// Cursor after the global step.
    next: (u64, u64),
    ids: Vec<u64>,
    /// Samples skipped under `skip` or `quarantine`.
    left_out: Vec<u64>,
}

/// What an epoch drawn by importance, or of a mixture, must deliver, written before its first batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DrawnLine {
    drawn: u64,
    /// Samples that are not due.
    absent: Vec<u64>,
    /// Samples that are due more than once, and how often.
    again: Vec<(u64, u64)>,
}

impl DrawnLine {
    fn new(epoch: u64, run: &Run, samples: u64) -> DrawnLine {
        let mut line = DrawnLine { drawn: epoch, absent: Vec::new(), again: Vec::new() };
        for sample in 0..samples {
            match run.times(epoch, SampleId(sample)) {
                0 => line.absent.push(sample),
                1 => {}
                times => line.again.push((sample, times as u64)),
            }
        }
        line
    }

    /// Returns how often each sample is due, for those not due exactly once.
    fn due(&self) -> BTreeMap<u64, usize> {
        let absent = self.absent.iter().map(|id| (*id, 0));
        absent.chain(self.again.iter().map(|(id, times)| (*id, *times as usize))).collect()
    }
}

/// An audit log, being written or read back.
#[derive(Debug)]
pub struct Audit {
    header: Header,
    lines: Vec<Line>,
    drawn: Vec<DrawnLine>,
    file: Option<File>,
    /// The epoch of the last batch observed.
    said: Option<u64>,
}

/// The result for one epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct EpochVerdict {
    /// The epoch's number.
    pub epoch: u64,
    /// Samples delivered exactly as often as they were due: once, or as often as drawn by importance.
    pub once: u64,
    /// Samples delivered more often than due.
    pub repeated: u64,
    /// Samples delivered less often than due, or never.
    pub missing: u64,
    /// Samples skipped by the policy for bad samples.
    pub left_out: u64,
}

/// The result of an audit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AuditVerdict {
    /// The result of each epoch.
    pub epochs: Vec<EpochVerdict>,
    /// Whether every sample of every epoch seen was delivered exactly once or skipped by policy.
    pub exactly_once: bool,
    /// Ranks that went on from a state by these logs while others of as many ranks did not: the logs of those are missing if all were started
    /// again.
    #[serde(default)]
    pub alone: Vec<u32>,
}

impl EpochVerdict {
    /// Judges an epoch from the samples delivered or skipped, in any order. Memory is in proportion to the log's entries,
    /// not to the number of samples that it claims.
    fn new(epoch: u64, mut ids: Vec<u64>, drawn: Option<&DrawnLine>, samples: u64) -> EpochVerdict {
        let mut verdict = EpochVerdict { epoch, once: 0, repeated: 0, missing: 0, left_out: 0 };
        let mut due = drawn.map(DrawnLine::due).unwrap_or_default();
        let mut untold = samples;
        let mut judge = |times: usize, due: usize| {
            untold -= 1;
            match times.cmp(&due) {
                Ordering::Less => verdict.missing += 1,
                Ordering::Equal => verdict.once += 1,
                Ordering::Greater => verdict.repeated += 1,
            }
        };
        ids.sort_unstable();
        ids.chunk_by(|a, b| a == b).for_each(|same| judge(same.len(), due.remove(&same[0]).unwrap_or(1)));
        due.into_values().for_each(|due| judge(0, due));
        verdict.missing += untold;
        verdict
    }
}

impl Audit {
    /// Creates a new log.
    pub(crate) fn create(path: &Path, (rank, world): (u32, u32), start: State, mixed: Option<u64>) -> Result<Audit> {
        let failed = |e: std::io::Error| match e.kind() {
            std::io::ErrorKind::AlreadyExists => {
                Error::new(Kind::Usage, format!("audit log {} exists already", path.display()))
                    .with_hint("use a new log for every run and rank: `fuelrail inspect` merges them")
            }
            _ => file_error(path, &e),
        };
        let mut file = File::create_new(path).map_err(failed)?;
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let begun_us = u64::try_from(since.as_micros()).unwrap_or(u64::MAX);
        let header = Header { fuelrail_audit: 1, rank, world, begun_us, start, mixed };
        let text = serde_json::to_string(&header).expect("plain fields serialise");
        writeln!(file, "{text}").map_err(|error| {
            // On a full disk: left there, it would be in the way of the next start.
            let _ = std::fs::remove_file(path);
            failed(error)
        })?;
        Ok(Audit { header, lines: Vec::new(), drawn: Vec::new(), file: Some(file), said: None })
    }

    /// Appends a delivered batch. One write per batch, so that a killed process leaves whole lines and at most one torn last line.
    pub(crate) fn observe(&mut self, batch: &Batch, next: Cursor, run: &Run) -> Result<()> {
        let is_drawn = run.mixture().is_some() || run.draw(batch.epoch()).is_some();
        if is_drawn && self.said != Some(batch.epoch()) {
            self.append(&DrawnLine::new(batch.epoch(), run, self.header.samples()))?;
        }
        self.said = Some(batch.epoch());
        let line = Line {
            epoch: batch.epoch(),
            from: batch.positions().start,
            next: (next.epoch, next.position),
            ids: batch.ids().iter().map(|id| id.0).collect(),
            left_out: batch.left_out().iter().map(|(id, _)| id.0).collect(),
        };
        self.append(&line)
    }

    fn append(&mut self, line: &impl Serialize) -> Result<()> {
        let mut text = serde_json::to_string(line).expect("plain fields serialise");
        text.push('\n');
        let file = self.file.as_mut().expect("a log that is written has its file");
        file.write_all(text.as_bytes()).map_err(|e| Error::from_io(Kind::File, "cannot append to the audit log", e))
    }

    /// Reads a log. A torn last line, as a crash leaves it, is dropped.
    ///
    /// # Errors
    /// `File` when it cannot be read, `Usage` when it is not an audit log.
    pub fn read(path: &Path) -> Result<Audit> {
        let text = std::fs::read_to_string(path).map_err(|e| file_error(path, &e))?;
        Audit::parse(&text).map_err(|e| e.within(path.display()))
    }

    /// Reads a log from its text.
    ///
    /// # Errors
    /// `Usage` when it is not an audit log.
    pub fn parse(text: &str) -> Result<Audit> {
        let bad = |what: String| Error::new(Kind::Usage, what);
        let torn = !text.ends_with('\n');
        let mut lines: Vec<&str> = text.lines().collect();
        if torn && lines.len() > 1 {
            lines.pop();
        }
        let (first, rest) = lines.split_first().ok_or_else(|| bad("an empty audit log".into()))?;
        let header: Header = serde_json::from_str(first).map_err(|e| bad(format!("not an audit log: {e}")))?;
        if header.fuelrail_audit != 1 {
            return Err(bad(format!("an audit log of version {}; this build reads 1", header.fuelrail_audit)));
        }
        let samples = header.samples();
        let (mut parsed, mut drawn) = (Vec::with_capacity(rest.len()), Vec::new());
        let is_beyond = |id: &u64| *id >= samples;
        for (n, text) in rest.iter().enumerate() {
            let beyond = if text.starts_with("{\"drawn\"") {
                let line: DrawnLine = serde_json::from_str(text).map_err(|e| bad(format!("line {}: {e}", n + 2)))?;
                let beyond = line.absent.iter().chain(line.again.iter().map(|(id, _)| id)).any(is_beyond);
                drawn.push(line);
                beyond
            } else {
                let line: Line = serde_json::from_str(text).map_err(|e| bad(format!("line {}: {e}", n + 2)))?;
                let beyond = line.ids.iter().chain(&line.left_out).any(is_beyond);
                parsed.push(line);
                beyond
            };
            if beyond {
                return Err(bad(format!("line {}: a sample beyond the data set's {samples}", n + 2)));
            }
        }
        Ok(Audit { header, lines: parsed, drawn, file: None, said: None })
    }

    /// The state in which this log's run started.
    #[must_use]
    pub fn start(&self) -> &State {
        &self.header.start
    }

    /// The state after the last batch of this log.
    #[must_use]
    pub fn last_state(&self) -> State {
        let mut state = self.header.start.clone();
        if let Some(line) = self.lines.last() {
            (state.epoch, state.position) = line.next;
        }
        state
    }

    /// Joins and checks the logs of all ranks of all runs that continued each other.
    ///
    /// # Errors
    /// `Usage` when there are no logs, or they belong to different data sets or orders.
    pub fn join(logs: &[Audit]) -> Result<AuditVerdict> {
        let first = logs.first().ok_or_else(|| Error::new(Kind::Usage, "no audit log is given"))?;
        let reference = &first.header.start;
        for log in logs {
            let start = &log.header.start;
            start.check(reference)?;
            if log.header.mixed != first.header.mixed {
                let cause = "logs of mixtures of other numbers of samples";
                return Err(Error::new(Kind::Usage, cause).with_hint("give the logs of one run"));
            }
        }
        let mut seen: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        let mut left_out: BTreeMap<u64, u64> = BTreeMap::new();
        for (at, log) in logs.iter().enumerate() {
            let end = log.replaced_from(at, logs);
            for line in log.lines.iter().filter(|line| end.is_none_or(|end| (line.epoch, line.from) < end)) {
                seen.entry(line.epoch).or_default().extend(line.ids.iter().chain(&line.left_out));
                *left_out.entry(line.epoch).or_default() += line.left_out.len() as u64;
            }
        }
        let mut drawn: BTreeMap<u64, &DrawnLine> = BTreeMap::new();
        for line in logs.iter().flat_map(|log| &log.drawn) {
            if *drawn.entry(line.drawn).or_insert(line) != line {
                let cause = format!("ranks or runs drew epoch {} differently", line.drawn);
                return Err(
                    Error::new(Kind::Usage, cause).with_hint("report the losses of all ranks' samples on every rank")
                );
            }
        }
        let judge = |(epoch, ids)| EpochVerdict {
            left_out: left_out.get(&epoch).copied().unwrap_or(0),
            ..EpochVerdict::new(epoch, ids, drawn.get(&epoch).copied(), first.header.samples())
        };
        let epochs: Vec<EpochVerdict> = seen.into_iter().map(judge).collect();
        let exactly_once = !epochs.is_empty() && epochs.iter().all(|e| e.repeated == 0 && e.missing == 0);
        Ok(AuditVerdict { epochs, exactly_once, alone: went_on_alone(logs) })
    }

    /// From where on later runs delivered what this one (number `at` of `logs`) did: the earliest start of those on the same
    /// rank, or on another number of ranks.
    fn replaced_from(&self, at: usize, logs: &[Audit]) -> Option<(u64, u64)> {
        let mine = &self.header;
        let later = logs.iter().enumerate().filter(|(other_at, other)| {
            let its = &other.header;
            (its.begun_us, *other_at) > (mine.begun_us, at) && (its.world != mine.world || its.rank == mine.rank)
        });
        later.map(|(_, other)| other.cursor()).min()
    }

    fn cursor(&self) -> (u64, u64) {
        (self.header.start.epoch, self.header.start.position)
    }
}

/// Ranks that went on from a state which is not the first of their number of ranks, where not all of those went on from it.
fn went_on_alone(logs: &[Audit]) -> Vec<u32> {
    let of_world = |world| logs.iter().filter(move |log| log.header.world == world);
    let is_alone = |log: &&Audit| {
        let (world, start) = (log.header.world, log.cursor());
        let together = of_world(world).filter(|other| other.cursor() == start).map(|other| other.header.rank);
        of_world(world).any(|other| other.cursor() < start) && together.collect::<BTreeSet<_>>().len() < world as usize
    };
    logs.iter().filter(is_alone).map(|log| log.header.rank).collect::<BTreeSet<_>>().into_iter().collect()
}

fn file_error(path: &Path, e: &std::io::Error) -> Error {
    Error::from_io(Kind::File, format_args!("audit log {}", path.display()), e)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(rank: u32, world: u32, position: u64, lines: &[(u64, u64, &[u64])]) -> Audit {
        let (order, listing) = ("global".into(), "x".into());
        let start = State {
            version: 1,
            seed: 1,
            shuffle: true,
            order,
            samples: 6,
            listing,
            epoch: 0,
            position,
            importance: None,
        };
        let header = Header { fuelrail_audit: 1, rank, world, begun_us: 0, start, mixed: None };
        let lines = lines
            .iter()
            .map(|&(from, next, ids)| Line { epoch: 0, from, next: (0, next), ids: ids.to_vec(), left_out: vec![] })
            .collect();
        Audit { header, lines, drawn: Vec::new(), file: None, said: None }
    }

    #[test]
    fn a_run_that_saved_nothing_is_replaced_by_the_next_one_from_the_same_point() {
        let begun = |begun_us: u64, mut log: Audit| {
            log.header.begun_us = begun_us;
            log
        };
        let mut logs = vec![
            begun(10, log(0, 1, 0, &[(0, 3, &[0, 1, 2])])),
            begun(20, log(0, 2, 0, &[(0, 4, &[0, 1])])),
            begun(21, log(1, 2, 0, &[(2, 4, &[2, 3])])),
            begun(30, log(0, 1, 0, &[(0, 3, &[0, 1, 2]), (3, 6, &[3, 4, 5])])),
        ];
        for _ in 0..logs.len() {
            // The order of the files does not matter.
            logs.rotate_left(1);
            assert!(Audit::join(&logs).unwrap().exactly_once);
        }
        logs.retain(|log| log.header.begun_us < 30);
        assert_eq!(Audit::join(&logs).unwrap().epochs[0].once, 4, "two ranks of one run stand beside each other");
    }

    #[test]
    fn a_run_that_went_back_to_an_earlier_state_replaces_what_came_after_it() {
        let mut logs = vec![
            log(0, 1, 0, &[(0, 2, &[0, 1]), (2, 4, &[2, 3])]),
            log(0, 1, 4, &[(4, 5, &[4])]),
            log(0, 1, 2, &[(2, 4, &[2, 3]), (4, 6, &[4, 5])]),
        ];
        (10..).zip(&mut logs).for_each(|(begun_us, log)| log.header.begun_us = begun_us);
        assert!(Audit::join(&logs).unwrap().exactly_once);
    }

    #[test]
    fn finds_what_is_missing_and_what_is_twice() {
        let verdict = Audit::join(&[log(0, 1, 0, &[(0, 3, &[0, 1, 1]), (3, 6, &[2, 3])])]).unwrap();
        let epoch = &verdict.epochs[0];
        assert_eq!((verdict.exactly_once, epoch.repeated, epoch.missing), (false, 1, 2));
    }

    /// The number of samples that a log claims allocates nothing by itself.
    #[test]
    fn a_data_set_as_long_as_a_log_claims_is_not_believed() {
        let mut hostile = log(0, 1, 0, &[(0, 2, &[0, u64::MAX]), (2, 3, &[0])]);
        hostile.header.start.samples = 1 << 60;
        hostile.drawn.push(DrawnLine { drawn: 0, absent: vec![7], again: vec![(0, 2), (9, 3)] });
        let epoch = &Audit::join(&[hostile]).unwrap().epochs[0];
        assert_eq!((epoch.once, epoch.repeated, epoch.missing), (3, 0, (1 << 60) - 3));
    }

    #[test]
    fn a_mixture_has_other_samples_than_an_epoch_has() {
        let mut mixed = log(0, 1, 0, &[(0, 6, &[0, 9, 9, 5, 1, 0])]);
        mixed.header.mixed = Some(10);
        let absent = vec![2, 3, 4, 6, 7, 8];
        mixed.drawn.push(DrawnLine { drawn: 0, absent, again: vec![(0, 2), (9, 2)] });
        let text = serde_json::to_string(&mixed.header).unwrap();
        let lines =
            [serde_json::to_string(&mixed.drawn[0]), serde_json::to_string(&mixed.lines[0])].map(Result::unwrap);
        let text = format!("{text}\n{}\n{}\n", lines[0], lines[1]);
        let verdict = Audit::join(&[Audit::parse(&text).unwrap()]).unwrap();
        assert!(verdict.exactly_once && verdict.epochs[0].once == 10, "{verdict:?}");
        for beyond in ["\"mixed\":9", "\"mixed\":1"] {
            assert!(Audit::parse(&text.replace("\"mixed\":10", beyond)).is_err());
        }
        let plain = log(0, 1, 0, &[(0, 6, &[0, 1, 2, 3, 4, 5])]);
        assert_eq!(Audit::join(&[plain, mixed]).unwrap_err().kind(), Kind::Usage);
    }

    #[test]
    fn a_torn_last_line_is_dropped_and_garbage_is_not() {
        let whole = serde_json::to_string(&log(0, 1, 0, &[]).header).unwrap()
            + "\n{\"epoch\":0,\"from\":0,\"next\":[0,2],\"ids\":[0,1],\"left_out\":[]}\n";
        assert_eq!(Audit::parse(&whole).unwrap().last_state().position, 2);
        assert_eq!(Audit::parse(&(whole.clone() + "{\"epo")).unwrap().last_state().position, 2);
        assert!(Audit::parse(&(whole.clone() + "{\"epo\n")).is_err());
        assert!(Audit::parse(&whole.replace("[0,1]", "[0,99]")).is_err());
    }
}
