//! The soak, `cargo x bench soak`: runs a loader at full speed for a long time while its bucket injects faults. It passes
//! when memory stays flat, descriptors, threads, slots and operations are returned, and every sample comes exactly once,
//! in order, with the right bytes, over every fault and every reopening.

mod bucket;
mod consumer;
mod gauge;
mod ledger;
mod phases;
mod report;

use std::time::{Duration, Instant};

use fuelrail::{Error, LoaderBuilder, Result, list_with};

pub use bucket::serve;
pub use consumer::{Canary, Soaking};
pub use report::{Moment, SoakReport};

use self::bucket::Server;
use self::consumer::Consumer;
use self::gauge::Gauge;
use self::ledger::Objects;
use self::report::Criterion;

pub fn soak(soaking: &Soaking, watch: &mut dyn FnMut(&Moment)) -> Result<SoakReport> {
    let mut objects = Objects::write(soaking.dir.as_deref(), soaking.scale, soaking.seed)?;
    if soaking.canary == Some(Canary::Bytes) {
        objects.all[0].hash ^= 1;
    }
    let start = || Server::start(&soaking.program, &objects.served(), soaking.is_tls());
    // Run one loader first, so that what a process opens only once is open before the first measurement.
    let server = start()?;
    drop(LoaderBuilder::new(soaking.config(&server, &objects)?).build()?);
    drop(server);
    let before = Gauge::here();
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

/// The criteria, each with its numbers.
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
