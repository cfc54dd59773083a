//! One run: join the other ranks, build the model, feed it, report the outcome.

use std::cell::RefCell;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::checkpoint::{Checkpoint, Vault};
use crate::feed::{Feed, GpuFeed, HostFeed, ResidentFeed};
use crate::ffi::{Backend, Group, load_cuda, over_nccl, torch_version};
use crate::notice::{ASK_EVERY, METADATA_ADDRESS, Notice, Service};
use crate::ranks::Ranks;
use crate::switch::Switch;
use crate::task::Task;
use crate::trainer::{End, Outcome, Score, TrainConfig, Trainer};
use clap::ValueEnum;
use fuelrail::internal::listing_hash;
use fuelrail::{
    Access, ByteSize, Config, Error, Fit, KeptListing, Kind, Listed, Listing, Loader, LoaderBuilder, Result, State,
    Stats,
};
use fuelrail_cuda::FeedConfig;
use serde::Serialize;
use serde_json::json;
use tch::nn::VarStore;
use tch::{Device, no_grad};

use super::arguments::{Arguments, Facts, Screen};
use super::forecast::{Forecast, diagnosed};

/// The score after an epoch, and the counters of this rank's loader.
#[derive(Serialize)]
struct EpochReport {
    samples: u64,
    score: Score,
    loader: Option<Stats>,
}

/// Trains as the arguments say.
pub(super) fn train(
    arguments: &Arguments,
    make: impl FnOnce(&VarStore, &Facts<'_>) -> Result<Box<dyn Task>>,
) -> Result<End> {
    let begun = Instant::now();
    // First: torch probes for CUDA once and caches the result.
    let cuda = if arguments.device == "cpu" { Ok(()) } else { load_cuda() };
    let ranks = Ranks::of(|name| std::env::var(name).ok())?;
    let device = device(arguments, cuda, ranks.local_rank)?;
    tch::set_num_threads(threads(arguments));
    // Batches have the same size but for the last of an epoch: the search for the fastest convolution pays.
    tch::Cuda::cudnn_set_benchmark(device != Device::Cpu);
    let notice = notice(arguments, begun)?;
    let mut config = arguments.loader(&arguments.uri, ranks.rank, ranks.world)?;
    let limit = judging_limit(arguments, &mut config);
    let backend = backend(arguments, device, ranks.world)?;
    let group = Group::join(&ranks, backend, device, Duration::from_secs_f64(arguments.timeout_s.clamp(0.1, 1e6)))?;
    let kept = listed(&config, group.as_deref())?;
    let (objects, classes) = (kept.listing.len() as u64, classes(&config, &kept.listing)?);
    config.classes = if config.format.is_none() { classes.clone() } else { Vec::new() };
    // A placeholder until the loader tells the number of samples; 0 is refused.
    let training = TrainConfig { epoch_samples: objects, ..arguments.training.clone() };
    let forecast = Forecast::new(arguments.limits.clone(), begun, 0);
    let (every, log) = (arguments.print_every, arguments.step_log.as_deref());
    let screen = Rc::new(RefCell::new(Screen::new(ranks.rank, every, log, forecast)?));
    let say = |line: &str| screen.borrow().say(line);
    let (over, among) = (backend.name(), classes.len());
    let machine = format!("torch {}, {device:?}, {} rank(s) over {over}", torch_version(), ranks.world);
    say(&format!("{machine}, {objects} objects of {among} classes"));
    // The same seed on every rank, for any number of them and on any device: the same initial weights. So they are drawn on the CPU.
    tch::manual_seed(training.seed as i64);
    let mut variables = VarStore::new(Device::Cpu);
    let facts = Facts { device, decode: config.decoded(), classes: &classes, config: &config };
    let task = make(&variables, &facts)?;
    no_grad(|| variables.set_device(device));
    let by_folders = task.needs_labels() && config.format.is_none();
    let judging = Judging { arguments, ranks: &ranks, device, limit, classes: by_folders.then_some(&classes) };
    judging.check_classes(&config)?;
    let hears = Rc::clone(&screen);
    let vault = Vault::open(&arguments.checkpoint, arguments.keep)?.reached(config.access());
    let mut trainer = Trainer::new(&*task, &variables, group.clone(), training)?
        .vault(vault.clone())
        .notice(notice)
        .listener(move |event| hears.borrow_mut().hear(&event));
    let best = Best::new(arguments, &vault, config.access(), &mut trainer)?;
    if trainer.resume()? {
        let order = trainer.order().expect("what was resumed has an order");
        say(&format!("goes on from step {}, epoch {}, position {}", trainer.steps(), order.epoch, order.position));
    }
    let left = (trainer.order().cloned(), trainer.scores().map(<[u8]>::to_vec));
    let loader = loader(&config, (&ranks, group.as_deref()), kept, left, trainer.may_switch())?;
    trainer.set_epoch_samples(loader.epoch_samples())?;
    screen.borrow_mut().expect(loader.epoch_samples().saturating_mul(arguments.training.epochs));
    loader.notices().iter().for_each(|notice| say(&format!("notice: {notice}")));
    let mut feed = feed(loader, device, arguments.resident)?;
    let (outcome, epochs) = judging.run(&mut trainer, &mut *feed, best, &say)?;
    let judged = screen.borrow().judged();
    let slow = diagnosed(arguments.predicted_step_s, judged, &outcome.meter, feed.stats(), group.as_deref())?;
    drop(feed);
    let score = match (&arguments.eval_uri, &outcome.end) {
        (Some(uri), End::Done) => Some(judging.score(uri, &mut trainer)?),
        _ => None,
    };
    tell_end(arguments, &screen.borrow(), &outcome, score, begun.elapsed());
    if let Some(slow) = &slow {
        screen.borrow().say(&slow.to_string());
    }
    if let (Some(path), 0) = (&arguments.json, ranks.rank) {
        let (wall_s, device, torch) = (begun.elapsed().as_secs_f64(), format!("{device:?}"), torch_version());
        let report = json!({
            "outcome": outcome, "score": score, "epochs": epochs, "wall_s": wall_s, "world": ranks.world, "device": device,
            "torch": torch, "config": config, "forecast": screen.borrow().judged(), "diagnosis": slow,
        });
        let written = std::fs::write(path, format!("{report:#}\n"));
        written.map_err(|e| Error::from_io(Kind::File, format_args!("cannot write {}", path.display()), e))?;
    }
    Ok(outcome.end)
}

/// The last lines of a run.
fn tell_end(arguments: &Arguments, screen: &Screen, outcome: &Outcome, score: Option<Score>, took: Duration) {
    screen.say(&format!("{}", outcome.meter));
    if let Some(score) = score {
        screen.say(&format!(
            "test accuracy {:.4}{}, loss {:.4} over {} samples",
            score.accuracy,
            score.accuracy_of_five.map_or_else(String::new, |share| format!(" (among the five best {share:.4})")),
            score.loss,
            score.samples
        ));
    }
    screen.say(&match &outcome.end {
        End::Done => {
            let said = screen.judged().map_or_else(String::new, |judged| {
                format!(" ({:.1} s were predicted after a tenth)", judged.predicted_s)
            });
            format!("done: {} steps, {} samples, {:.1} s{said}", outcome.steps, outcome.samples, took.as_secs_f64())
        }
        End::Stopped(why) => {
            let saved = !arguments.checkpoint.is_empty();
            let next = if saved { "start again to go on" } else { "nothing is saved, for want of a --checkpoint" };
            format!("stopped after step {}: {why}; {next}", outcome.steps)
        }
    });
}

/// NCCL where it is requested, or between several GPUs. Refuses it for asynchronous steps, which it cannot do; and judging every epoch
/// then: epochs that end in asynchronous steps would not be judged.
fn backend(arguments: &Arguments, device: Device, world: usize) -> Result<Backend> {
    let backend = match arguments.backend.as_str() {
        "auto" if device == Device::Cpu || world == 1 => Backend::Gloo,
        "auto" => Backend::Nccl,
        name => Backend::from_str(name, false)
            .map_err(|_| Error::new(Kind::Usage, format!("unknown backend '{name}'")).with_hint("use gloo or nccl"))?,
    };
    let may_switch = Switch::new(arguments.training.switch, world).may_switch();
    if may_switch && backend == Backend::Nccl {
        return Err(over_nccl());
    }
    if may_switch && arguments.eval_every_epoch {
        return Err(Error::new(Kind::Usage, "--eval-every-epoch with steps that may become asynchronous")
            .with_hint("leave --switch-after at 1 and --straggler at 0, or judge the model at the end only"));
    }
    Ok(backend)
}

/// The CPU only where it is asked for, or there is no GPU: one that the driver has and torch does not find is an error.
fn device(arguments: &Arguments, cuda: Result<()>, local_rank: usize) -> Result<Device> {
    let devices = if cuda.is_ok() { tch::Cuda::device_count().max(0) as usize } else { 0 };
    let has_gpu = || fuelrail_cuda::Device::count().is_ok_and(|count| count > 0);
    match arguments.device.as_str() {
        "cpu" => Ok(Device::Cpu),
        "auto" | "cuda" if local_rank < devices => Ok(Device::Cuda(local_rank)),
        "auto" | "cuda" if devices > 0 => {
            let cause = format!("LOCAL_RANK is {local_rank}, and torch finds {devices} devices");
            Err(Error::new(Kind::Usage, cause).with_hint("start one rank per GPU, or look at CUDA_VISIBLE_DEVICES"))
        }
        "auto" if !has_gpu() => Ok(Device::Cpu),
        "auto" | "cuda" => {
            let why = cuda.err().map_or_else(String::new, |error| format!(": {}", error.cause()));
            Err(Error::new(Kind::Environment, format!("torch finds no CUDA device{why}")).with_hint(
                "let LD_LIBRARY_PATH name the lib folder of a torch with CUDA, and look at nvidia-smi; --device cpu trains on the CPU",
            ))
        }
        other => Err(Error::new(Kind::Usage, format!("unknown device '{other}'")).with_hint("use auto, cpu or cuda")),
    }
}

/// Torch's threads: by option, by the launcher, or the cores divided by this machine's ranks.
fn threads(arguments: &Arguments) -> i32 {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<usize>().ok());
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let threads = arguments
        .threads
        .or_else(|| number("OMP_NUM_THREADS"))
        .unwrap_or_else(|| cores / number("LOCAL_WORLD_SIZE").or_else(|| number("WORLD_SIZE")).unwrap_or(1).max(1));
    i32::try_from(threads.max(1)).unwrap_or(i32::MAX)
}

/// The classes of the whole data set.
fn classes(config: &Config, listing: &Listing) -> Result<Vec<String>> {
    if config.classes.is_empty() {
        return fuelrail::classes_of(&config.uri, (0..listing.len()).map(|at| listing.key(at)));
    }
    Ok(config.classes.clone())
}

/// With `peers = auto`, an address of each rank that the others can reach, on a port that is free now: ranks tell each other.
fn settle_peers(config: &mut Config, ranks: &Ranks, group: Option<&Group>) -> Result<()> {
    if config.peers.addresses != ["auto"] {
        return Ok(());
    }
    let own = || {
        // Nothing is sent: it tells which of this machine's addresses leads to the others.
        let way = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        way.connect((ranks.host.as_str(), ranks.port))?;
        TcpListener::bind((way.local_addr()?.ip(), 0))?.local_addr()
    };
    let own = own().map_err(|e| {
        Error::from_io(Kind::Network, format_args!("finding an address that leads to {}", ranks.host), e)
            .with_hint("list the addresses of all ranks in peers")
    })?;
    let node = config.peers.node.as_ref().map_or(String::new(), |node| format!("{node}="));
    let all = group.map(|group| group.gather_bytes(format!("{node}{own}").as_bytes())).transpose()?;
    let all = all.unwrap_or_default().into_iter().map(|address| String::from_utf8_lossy(&address).into_owned());
    config.peers.addresses = all.collect();
    Ok(())
}

/// The objects, which must be the same on every rank.
fn listed(config: &Config, group: Option<&Group>) -> Result<KeptListing> {
    let kept = fuelrail::list_as(config)?;
    let Some(group) = group else { return Ok(kept) };
    let objects: Vec<Listed> = kept.listing.iter().collect();
    let hash = listing_hash(objects.iter().map(|object| (object.key.as_str(), object)));
    let agreed = group.agree("what the bucket lists", &format!("{} objects of hash {hash}", objects.len()));
    agreed.map_err(|error| match &config.network.listing_dir {
        Some(dir) if error.kind() == Kind::Usage => error.and_hint(format!(
            "a rank may have kept an older listing: empty listing_dir, {}, on every rank",
            dir.display()
        )),
        _ => error,
    })?;
    Ok(kept)
}

/// Takes a quarter of the memory away from the training, for what it is judged by, where both go on at a time.
fn judging_limit(arguments: &Arguments, config: &mut Config) -> Option<ByteSize> {
    (arguments.eval_uri.is_some() && arguments.eval_every_epoch).then(|| {
        let (all, _) = config.memory_limit();
        config.memory.limit = Some(ByteSize(all.0 - all.0 / 4));
        ByteSize(all.0 / 4)
    })
}

/// What stops the run: signals, the machine's end, a limit of its own.
fn notice(arguments: &Arguments, begun: Instant) -> Result<Notice> {
    let address = arguments.metadata_address.unwrap_or(METADATA_ADDRESS);
    let notice = Notice::listen(arguments.preemption.map(|service| (service, address, ASK_EVERY)))?;
    let lead = arguments.notice.or(arguments.preemption.map(Service::lead));
    arguments.limits.bound(notice.leads(lead), begun)
}

/// The model of the best epoch so far; rank 0 keeps it.
struct Best {
    vault: Vault,
    accuracy: f64,
}

impl Best {
    /// That of an earlier part of the run counts. `saved` is where the run's checkpoints are. All ranks take part.
    fn new(arguments: &Arguments, saved: &Vault, access: Access, trainer: &mut Trainer<'_>) -> Result<Best> {
        let vault = Vault::open(arguments.best.as_slice(), 0)?.reached(access);
        if vault.shares(saved) {
            let error = Error::new(Kind::Usage, "--best and --checkpoint name the same place");
            return Err(error.with_hint("give the best model a place of its own: older checkpoints are removed there"));
        }
        let kept = trainer.newest(&vault)?.bytes.map(|bytes| Checkpoint::about(&bytes)).transpose()?;
        let accuracy = kept.and_then(|about| about.accuracy).unwrap_or(f64::NEG_INFINITY);
        Ok(Best { vault, accuracy })
    }

    /// Keeps the model of now where it is better; all ranks take part. One that cannot be written does not end the run; a lost rank does.
    fn compare(&mut self, accuracy: f64, trainer: &mut Trainer<'_>, feed: &dyn Feed, say: &dyn Fn(&str)) -> Result<()> {
        let is_better = self.vault.is_somewhere() && accuracy > self.accuracy;
        self.accuracy = self.accuracy.max(accuracy);
        match trainer.save_best(is_better.then_some(&self.vault), feed.order(), accuracy)? {
            Ok(places) if places.is_empty() => {}
            Ok(places) => say(&format!("best so far: accuracy {accuracy:.4}, {}", places.join(", "))),
            Err(error) => eprintln!("notice: the best model could not be written: {error}"),
        }
        Ok(())
    }
}

/// How the model is judged while it is trained, and afterwards.
struct Judging<'a> {
    arguments: &'a Arguments,
    ranks: &'a Ranks,
    device: Device,
    /// Its memory, where the training has the rest.
    limit: Option<ByteSize>,
    /// The training's, where labels number folders and not a field of records gives them: a class that is missing in what it is judged by shifts none.
    classes: Option<&'a Vec<String>>,
}

impl Judging<'_> {
    /// Trains to the end, and evaluates the model after every epoch where that was requested; keeps the best one.
    fn run(
        &self,
        trainer: &mut Trainer<'_>,
        feed: &mut dyn Feed,
        mut best: Best,
        say: &dyn Fn(&str),
    ) -> Result<(Outcome, Vec<EpochReport>)> {
        let mut epochs = Vec::new();
        let outcome = trainer.run_with(feed, &mut |trainer, feed| {
            let uri = self.arguments.eval_uri.as_ref().filter(|_| self.arguments.eval_every_epoch);
            let Some(uri) = uri else { return Ok(()) };
            let (samples, loader) = (trainer.samples(), feed.stats());
            let score = self.score(uri, trainer)?;
            best.compare(score.accuracy, trainer, feed, say)?;
            epochs.push(EpochReport { samples, score, loader });
            Ok(())
        })?;
        Ok((outcome, epochs))
    }

    /// Checks before the training that what it is judged by has no class of its own.
    fn check_classes(&self, config: &Config) -> Result<()> {
        let (Some(uri), Some(known)) = (&self.arguments.eval_uri, self.classes) else { return Ok(()) };
        let listing = fuelrail::list_with(config.access(), uri, |_| {})?;
        let of_it = fuelrail::classes_of(uri, listing.iter().map(|object| object.key.as_str()))?;
        let Some(class) = of_it.iter().find(|class| !known.contains(class)) else { return Ok(()) };
        let cause = format!("{uri} has the class '{}', which the training set lacks", class.escape_debug());
        Err(Error::new(Kind::Usage, cause)
            .with_hint("judge by the classes of the training set, or train with all of them"))
    }

    /// Judges the model by samples it has not seen.
    fn score(&self, uri: &str, trainer: &mut Trainer<'_>) -> Result<Score> {
        let mut config = self.arguments.loader(uri, self.ranks.rank, self.ranks.world)?;
        (config.epochs, config.audit) = (1, None);
        // Of the training's loader, which goes on beside it.
        config.peers.addresses.clear();
        config.metrics_listen = None;
        // Of the training's data set.
        (config.manifest, config.order.mixture) = (None, None);
        config.classes = self.classes.cloned().unwrap_or_default();
        (config.order.shuffle, config.order.drop_last, config.order.importance) = (false, false, None);
        config.memory.limit = self.limit.or(config.memory.limit);
        if config.decode.fit == Fit::RandomCrop {
            (config.decode.fit, config.decode.flip) = (Fit::CenterCrop, false);
        }
        let loader: Loader = LoaderBuilder::new(config).build()?;
        trainer.evaluate(&mut *feed(loader, self.device, 0)?)
    }
}

fn feed(loader: Loader, device: Device, resident: usize) -> Result<Box<dyn Feed>> {
    let feed: Box<dyn Feed> = match device {
        Device::Cuda(device) => {
            let config = FeedConfig { device: device as u32, ..FeedConfig::default() };
            Box::new(GpuFeed::start(loader, config)?)
        }
        _ => Box::new(HostFeed::new(loader)),
    };
    Ok(if resident > 0 { Box::new(ResidentFeed::start(feed, resident)?) } else { feed })
}

/// The loader of the samples to train with, from where a checkpoint left off.
fn loader(
    config: &Config,
    (ranks, group): (&Ranks, Option<&Group>),
    listing: KeptListing,
    (order, scores): (Option<State>, Option<Vec<u8>>),
    goes_on: bool,
) -> Result<Loader> {
    let mut config = config.clone();
    settle_peers(&mut config, ranks, group)?;
    if goes_on && config.order.importance.is_some() {
        return Err(Error::new(Kind::Usage, "importance with steps that may become asynchronous").with_hint(
            "leave --switch-after at 1 and --straggler at 0: draws need every step's losses from all ranks",
        ));
    }
    if goes_on {
        // Asynchronously a fast rank does the work of a slow one: its own share is not its limit.
        config.epochs = config.epochs.saturating_mul(u64::from(config.world)).saturating_add(1);
    }
    config.audit = config.audit.map(|log| own_log(&log, config.rank));
    if ranks.rank == 0 && ranks.world > 1 && config.local_world.is_none() && config.memory.limit.is_none() {
        eprintln!(
            "notice: LOCAL_WORLD_SIZE is not set: each rank takes the memory of one that is alone on its machine; set it to the number of ranks \
             there, or memory_limit"
        );
    }
    // A launcher gives all ranks of a machine the same arguments.
    let own = |address: String| {
        let address = address.replace("{local_rank}", &ranks.local_rank.to_string());
        address.replace("{rank}", &ranks.rank.to_string())
    };
    config.metrics_listen = config.metrics_listen.map(own);
    let mut builder = LoaderBuilder::new(config).kept_listing(listing);
    if let Some(order) = order {
        builder = builder.resume(order);
    }
    if let Some(scores) = scores {
        builder = builder.scores(scores);
    }
    builder.build()
}

/// A log of this rank's own that is not there yet, `LOG.rankN` or `LOG.rankN.M`: a run that goes on must not write over the log
/// of the one before. `fuelrail inspect` joins them.
fn own_log(log: &Path, rank: u32) -> PathBuf {
    let first = format!("{}.rank{rank}", log.display());
    let later = (1..10_000).map(|run| format!("{first}.{run}"));
    let free = core::iter::once(first.clone()).chain(later).find(|name| !Path::new(name).exists());
    free.unwrap_or(first).into()
}
