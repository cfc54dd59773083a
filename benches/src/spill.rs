//! The question behind `cargo x bench spill`: what a disk gives to the ring's file operations and what a byte of it costs,
//! beside fio in the same rounds.
//!
//! Owns which contestants take part and the ratios between them. It asks nothing of a cache.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use fuelrail::{ByteSize, DiskWay, Error, Kind, Result};

use crate::disk::{Blocks, JOB_CPU, fio_contestant, ring_contestant, word};
use crate::harness::result::SCHEMA;
use crate::harness::{
    Contest, Contestant, Contested, Entry, Findings, Metric, Pass, Place, Scored, SetFacts, Spread, Stop, Transport,
    Turn, VenueFacts, VenueKind, hold,
};
use fuelrail_cli::machine::Machine;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Spill {
    /// A folder on the disk. The files in it are ours and removed at the end.
    pub folder: PathBuf,
    /// What is moved.
    pub blocks: Blocks,
    /// Rings by name.
    pub rings: Vec<String>,
    /// Whether fio takes part, if it is installed.
    pub fio: bool,
    /// Measured rounds.
    pub rounds: u32,
    /// This program, which holds the contestants.
    pub program: PathBuf,
    /// Who may interrupt it.
    pub stop: Stop,
}

/// Asks the question.
///
/// # Errors
/// `File` when there can be no files in the folder, `Environment` when there is not enough room, `Cancelled` when asked to
/// stop. A contestant that fails is in the result with its reason.
pub fn spill(spill: &Spill, watch: &mut dyn FnMut(&str, Turn<'_>)) -> Result<Findings> {
    let start = Instant::now();
    let mut notices = Vec::new();
    let fio = spill.fio && installed(&mut notices);
    let contests = contests(spill, fio, &Place::default(), watch)?;
    if fio {
        notices.push("fio is started for every pass: the table has its start, the ratios have its job alone".into());
    }
    for contested in &contests {
        notices.extend(ratios(contested, fio));
    }
    let machine = Machine::here();
    if !machine.optimised {
        notices.push("an unoptimised build: its figures mean nothing".into());
    }
    let config = [
        ("block_bytes", spill.blocks.block_bytes.to_string()),
        ("depth", spill.blocks.depth.to_string()),
        ("bytes", spill.blocks.bytes.to_string()),
        ("direct", spill.blocks.direct.to_string()),
        ("rounds", spill.rounds.to_string()),
    ];
    Ok(Findings {
        schema: SCHEMA,
        question: "spill".to_owned(),
        machine,
        venue: VenueFacts {
            kind: VenueKind::External,
            server: "one file on a disk".to_owned(),
            mtu: None,
            link_bits_per_s: None,
            server_core: None,
            client_cores: Vec::new(),
        },
        config: config.map(|(name, value)| (name.to_owned(), value)).into_iter().collect::<BTreeMap<_, _>>(),
        contests,
        latencies: Vec::new(),
        notices,
        wall_s: start.elapsed().as_secs_f64(),
    })
}

/// The two contests, writing and then reading, each contestant on a file of its own.
///
/// # Errors
/// As [`spill`].
pub(crate) fn contests(
    spill: &Spill,
    fio: bool,
    place: &Place,
    watch: &mut dyn FnMut(&str, Turn<'_>),
) -> Result<Vec<Contested>> {
    let folder = Files::below(&spill.folder)?;
    let who = |way| cast(spill, fio, way);
    folder.room(spill.blocks.bytes * who(DiskWay::Write).len() as u64)?;
    let contest =
        Contest { rounds: spill.rounds, place: place.clone(), stop: spill.stop.clone(), ..Contest::default() };
    let mut contests = Vec::new();
    for way in [DiskWay::Write, DiskWay::Read] {
        let entries: Vec<Entry> = who(way)
            .into_iter()
            .map(|contestant| {
                let task = spill.blocks.task(&folder.path.join(&contestant.name));
                Entry::new(contestant, task)
            })
            .collect();
        let scores = hold(&contest, &entries, &mut |turn| watch(word(way), turn))?;
        let blocks = &spill.blocks;
        let set = SetFacts {
            name: format!("disk-{}", word(way)),
            scale: None,
            objects: blocks.bytes / blocks.block_bytes,
            bytes: blocks.bytes,
            batch_size: blocks.depth,
            arena_bytes: blocks.block_bytes * u64::from(blocks.depth),
            hash: None,
        };
        contests.push(Contested::new(set, Transport::Plain, scores, &[]));
    }
    Ok(contests)
}

fn cast(spill: &Spill, fio: bool, way: DiskWay) -> Vec<Contestant> {
    let rings = spill.rings.iter().map(|ring| ring_contestant(&spill.program, ring, way, &spill.blocks));
    rings.chain(fio.then(|| fio_contestant(&spill.program, way, &spill.blocks))).collect()
}

fn installed(notices: &mut Vec<String>) -> bool {
    let found = std::process::Command::new("fio").arg("--version").output().is_ok_and(|run| run.status.success());
    if !found {
        notices.push("fio takes no part: it is not installed (apt-get install fio)".into());
    }
    found
}

/// What each ring costs and gives over fio, round by round, in words.
fn ratios(contested: &Contested, fio: bool) -> Vec<String> {
    let Some(theirs) = contested.contestant("fio").filter(|_| fio) else { return Vec::new() };
    let values = |scored: &Scored, metric: Metric| -> Vec<f64> {
        let of = |pass: &Pass| match pass.facts.get(JOB_CPU) {
            Some(job) if metric == Metric::CpuSPerGb => Some(*job),
            _ => metric.of(pass),
        };
        scored.passes.iter().filter_map(of).collect()
    };
    let one = |ours: &Scored| {
        let ratio = |metric| {
            let spread = Spread::of_ratios(&values(ours, metric), &values(theirs, metric))?;
            Some(format!("{:.2} ({:.2}–{:.2}) × fio's {}", spread.median, spread.min, spread.max, metric.title()))
        };
        let both = format!("{}, {}", ratio(Metric::CpuSPerGb)?, ratio(Metric::GbPerS)?);
        Some(format!("{}, {}: {both}", contested.title(), ours.name))
    };
    contested.contestants.iter().filter(|scored| scored.name != "fio").filter_map(one).collect()
}

/// A folder of our own for the contestants' files. Removed at the end.
struct Files {
    path: PathBuf,
}

impl Files {
    fn below(folder: &Path) -> Result<Files> {
        let path = folder.join(format!("fuelrail-spill-{}", std::process::id()));
        let made = std::fs::create_dir_all(folder).and_then(|()| std::fs::create_dir(&path));
        match made {
            Ok(()) => Ok(Files { path }),
            Err(error) => {
                let errno = error.raw_os_error().unwrap_or(0);
                let doing = format!("making a folder in {}", folder.display());
                Err(Error::from_errno(Kind::File, &doing, errno).cure("give a folder this user may write to"))
            }
        }
    }

    fn room(&self, need: u64) -> Result<()> {
        let Ok(facts) = rustix::fs::statvfs(&self.path) else { return Ok(()) };
        let free = facts.f_bavail * facts.f_frsize;
        if free >= need {
            return Ok(());
        }
        let cause = format!("the disk has {} free, and the contestants' files need {}", ByteSize(free), ByteSize(need));
        Err(Error::new(Kind::Environment, cause).cure("give fewer --bytes or fewer rings"))
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        // Refused only where somebody else removed it.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}
