//! The soak, `cargo x bench soak`: runs a loader at full speed for a long time while its bucket injects faults. It passes
//! when memory stays flat, descriptors, threads, slots and operations are returned, and every sample comes exactly once,
//! in order, with the right bytes, over every fault and every reopening.

mod bucket;
mod consumer;
mod ledger;
mod report;

use std::fs;
use std::ops::Range;
use std::time::{Duration, Instant};

use fuelrail::{Error, LoaderBuilder, Result, list_with};
use serde::{Deserialize, Serialize};

use self::bucket::Server;
pub use self::bucket::serve;
use self::consumer::Consumer;
pub use self::consumer::{Canary, Soaking};
use self::ledger::Objects;
use self::report::Criterion;
pub use self::report::{Moment, SoakReport};

pub fn soak(soaking: &Soaking, watch: &mut dyn FnMut(&Moment)) -> Result<SoakReport> {
    let alone = Gauge { descriptors: u64::MAX, ..Gauge::here() };
    let mut objects = Objects::write(soaking.dir.as_deref(), soaking.scale, soaking.seed)?;
    if soaking.canary == Some(Canary::Bytes) {
        objects.all[0].hash ^= 1;
    }
    let start = || Server::start(&soaking.program, &objects.served(), soaking.is_tls());
    // Run one loader first, so that what a process opens only once is open before the first measurement.
    let server = start()?;
    drop(LoaderBuilder::new(soaking.config(&server, &objects)?).build()?);
    drop(server);
    let before = settled(alone);
    let mut server = start()?;
    let config = soaking.config(&server, &objects)?;
    let listing = list_with(&server.tls, &server.url, |_| {})?;
    let mut consumer = Consumer::new(soaking, config, listing, &objects)?;
    let failure = consumer.read(&mut server, watch).err();
    consumer.close();
    let served = server.served();
    drop(server);
    let after = settled(before);
    let mut report = consumer.report(before, after);
    match served {
        Ok(served) => {
            report.totals.served_requests = served.requests;
            report.totals.absences = served.absences;
            report.totals.faults = served.faults;
        }
        Err(error) => report.notices.push(error.to_string()),
    }
    report.criteria = criteria(soaking, &report, failure.as_ref());
    Ok(report)
}

/// Returns the gauge once descriptors and threads are back, or after 5 s: the kernel closes those of a ring or a thread with a delay.
fn settled(before: Gauge) -> Gauge {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        let now = Gauge::here();
        let rests = now.descriptors <= before.descriptors && now.threads <= before.threads;
        if rests || Instant::now() >= deadline {
            return now;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn criteria(soaking: &Soaking, report: &SoakReport, failure: Option<&Error>) -> Vec<Criterion> {
    let totals = &report.totals;
    let faults = totals.faults.values().sum::<u64>() + totals.absences;
    let ended = match failure {
        None => format!("{:.0} s of {:.0} s", report.wall_s, report.asked_s),
        Some(error) => format!("ended after {:.1} s of {:.0} s: {error}", report.wall_s, report.asked_s),
    };
    let (before, after) = (report.before, report.after);
    let at_end = format!("after the last loader {} MiB", after.rss_bytes() >> 20);
    let closed = format!("over {} closings", totals.reopened + 1);
    let given_back = |before: u64, after: u64| {
        (Some(after <= before), format!("{before} before the first loader, {after} after the last"))
    };
    let none = |count: u64, text: String| (Some(count == 0), text);
    let too_short = || (None, "not judged: too short".to_owned());
    let delivered = format!("{} delivered of {} due, {} whole epochs", totals.samples, totals.expected, totals.epochs);
    let memory = report.memory.map(|memory| (Some(memory.holds()), format!("{}; {at_end}", memory.text())));
    [
        ("time", (Some(failure.is_none() && report.wall_s >= soaking.time().as_secs_f64()), ended)),
        ("faults", (Some(faults > 0), format!("{faults} injected, {} retries", totals.retries))),
        ("memory", memory.unwrap_or_else(too_short)),
        ("slope", report.slope.map_or_else(too_short, |slope| (slope.holds(), slope.text()))),
        ("descriptors", given_back(before.descriptors, after.descriptors)),
        ("threads", given_back(before.threads, after.threads)),
        ("operations", none(totals.operations_left, format!("{} left in the rings {closed}", totals.operations_left))),
        ("slots", none(totals.slots_left, format!("{} not given back {closed}", totals.slots_left))),
        ("samples", (Some(totals.samples == totals.expected && totals.samples > 0), delivered)),
        ("wrong", none(totals.wrong, format!("{} came wrong", totals.wrong))),
        ("stalls", none(totals.stalls, format!("{} times nothing moved", totals.stalls))),
    ]
    .map(|(name, (holds, text))| Criterion { name: name.to_owned(), holds, text })
    .to_vec()
}

/// Memory, descriptors and threads of this process at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Gauge {
    /// Resident anonymous memory: heap, stacks, the arena.
    pub rss_anon_bytes: u64,
    /// Resident pages of files: the program itself and its libraries.
    pub rss_file_bytes: u64,
    /// Resident shared memory: rings.
    pub rss_shmem_bytes: u64,
    /// Resident anonymous memory outside the arena: heap and stacks, where a leak would be.
    #[serde(default)]
    pub rss_heap_bytes: u64,
    pub descriptors: u64,
    pub threads: u64,
}

impl Gauge {
    /// Reads this process's values. Zeroes where `/proc` is not mounted.
    pub fn here() -> Gauge {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        // Reading the folder opens one descriptor itself, the same at every measurement.
        let descriptors = fs::read_dir("/proc/self/fd").map_or(0, |open| open.count() as u64);
        Gauge { descriptors, ..parse(&status) }
    }

    /// As [`Gauge::here`], with the anonymous memory outside these parts of the address space, each given by start and length.
    pub fn beside(arena: impl Iterator<Item = (*const u8, usize)>) -> Gauge {
        let arena: Vec<_> = arena.map(|(start, len)| start.addr()..start.addr() + len).collect();
        let maps = fs::read_to_string("/proc/self/smaps").unwrap_or_default();
        Gauge { rss_heap_bytes: anonymous_outside(&maps, &arena), ..Gauge::here() }
    }

    pub fn rss_bytes(&self) -> u64 {
        self.rss_anon_bytes + self.rss_file_bytes + self.rss_shmem_bytes
    }
}

/// Returns the anonymous bytes of all mappings that start outside these ranges, as `smaps` counts them.
fn anonymous_outside(maps: &str, arena: &[Range<usize>]) -> u64 {
    let (mut kilobytes, mut counts) = (0, false);
    for line in maps.lines() {
        // A mapping starts with a line `START-END …`; the lines about it start with `Name:`.
        let word = line.split_whitespace().next().unwrap_or_default();
        if let Some((start, _)) = word.split_once('-').filter(|_| !word.ends_with(':')) {
            let start = usize::from_str_radix(start, 16).unwrap_or(0);
            counts = !arena.iter().any(|piece| piece.contains(&start));
        } else if counts && word == "Anonymous:" {
            kilobytes += line.split_whitespace().nth(1).and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
        }
    }
    kilobytes << 10
}

fn parse(status: &str) -> Gauge {
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    let bytes = |name: &str| field(name).unwrap_or(0) << 10;
    Gauge {
        rss_anon_bytes: bytes("RssAnon:"),
        rss_file_bytes: bytes("RssFile:"),
        rss_shmem_bytes: bytes("RssShmem:"),
        threads: field("Threads:").unwrap_or(0),
        ..Gauge::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_the_arena_is_left_out() {
        let maps = "1000-3000 rw-p 00000000 00:00 0 \nSize: 8 kB\nAnonymous: 8 kB\nVmFlags: rd-wr\n\
                    3000-9000 rw-p 00000000 00:00 0 [heap]\nAnonymous: 16 kB\n";
        assert_eq!(anonymous_outside(maps, std::slice::from_ref(&(0x1000..0x3000))), 16 << 10);
        assert_eq!(anonymous_outside(maps, &[]), 24 << 10);
        let piece = vec![1u8; 32 << 20];
        let with = Gauge::beside(std::iter::empty()).rss_heap_bytes;
        let without =
            Gauge::beside(std::iter::once((piece.as_ptr().wrapping_sub(4096), piece.len() + 4096))).rss_heap_bytes;
        assert!(without + (24 << 20) < with, "{without} of {with}");
    }
}
