//! One run: join the other ranks, build the model, feed it, report the outcome.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use fuelrail::{Config, Error, Fit, Kind, Loader, LoaderBuilder, Result, State, Stats};
use fuelrail_cuda::FeedConfig;
use fuelrail_tch::models::{Depth, TransformerConfig, lenet, resnet, transformer};
use fuelrail_tch::{
    ASK_EVERY, Backend, Classifier, End, Feed, GpuFeed, Group, HostFeed, LanguageModel, METADATA_ADDRESS, Notice,
    Outcome, Ranks, Score, Task, TrainConfig, Trainer, Vault, load_cuda, torch_version,
};
use serde::Serialize;
use serde_json::json;
use tch::Device;
use tch::nn::VarStore;

use crate::Arguments;
use crate::arguments::Screen;

/// The score after an epoch, and the counters of this rank's loader.
#[derive(Serialize)]
struct EpochReport {
    samples: u64,
    score: Score,
    loader: Option<Stats>,
}

/// Trains as the arguments say.
pub(crate) fn train(arguments: &Arguments) -> Result<End> {
    let begun = Instant::now();
    // First: torch probes for CUDA once and caches the result.
    let cuda = arguments.device != "cpu" && load_cuda();
    let ranks = Ranks::of(|name| std::env::var(name).ok())?;
    let device = device(arguments, cuda, ranks.local_rank)?;
    tch::set_num_threads(threads(arguments));
    let address = arguments.metadata_address.unwrap_or(METADATA_ADDRESS);
    let notice = Notice::listen(arguments.preemption.map(|service| (service, address, ASK_EVERY)))?;
    let config = arguments.loader(&arguments.uri, ranks.rank, ranks.world)?;
    let backend = backend(&arguments.backend, device)?;
    let group = Group::join(&ranks, backend, device, Duration::from_secs_f64(arguments.timeout_s.clamp(0.1, 1e6)))?;
    let listing = fuelrail::list_with(config.access(), &arguments.uri, |_| {})?;
    let epoch_samples = epoch_samples(&config, listing.len() as u64);
    let classes = classes(&config, &listing)?;
    let training = TrainConfig { epoch_samples, ..arguments.training.clone() };
    let screen = Rc::new(RefCell::new(Screen::new(
        ranks.rank,
        arguments.print_every,
        arguments.step_log.as_deref(),
        epoch_samples * training.epochs,
    )?));
    let say = |line: &str| screen.borrow().say(line);
    say(&format!(
        "torch {}, {device:?}, {} rank(s) over {}, {} samples of {classes} classes",
        torch_version(),
        ranks.world,
        backend.name(),
        listing.len()
    ));
    // The same seed on every rank and for any number of them: the same initial weights.
    tch::manual_seed(training.seed as i64);
    let variables = VarStore::new(device);
    let task = task(arguments, &config, classes, &variables)?;
    let hears = Rc::clone(&screen);
    let mut trainer = Trainer::new(&*task, &variables, group, training)?
        .vault(Vault::open(&arguments.checkpoint, arguments.keep)?.reached(config.access()))
        .notice(notice)
        .listener(move |event| hears.borrow_mut().hear(&event));
    if trainer.resume()? {
        let order = trainer.order().expect("what was resumed has an order");
        say(&format!("goes on from step {}, epoch {}, position {}", trainer.steps(), order.epoch, order.position));
    }
    let left = (trainer.order().cloned(), trainer.scores().map(<[u8]>::to_vec));
    let loader = loader(&config, listing, left, trainer.may_switch())?;
    for notice in loader.notices() {
        say(&format!("notice: {notice}"));
    }
    let mut feed = feed(loader, device)?;
    let (outcome, epochs) = run_and_judge(arguments, &ranks, device, &mut trainer, &mut *feed)?;
    drop(feed);
    let score = match (&arguments.eval_uri, &outcome.end) {
        (Some(uri), End::Done) => Some(score(arguments, uri, &ranks, device, &mut trainer)?),
        _ => None,
    };
    tell_end(&screen.borrow(), &outcome, score, begun.elapsed());
    if let (Some(path), 0) = (&arguments.json, ranks.rank) {
        let report = json!({
            "outcome": outcome,
            "score": score,
            "epochs": epochs,
            "wall_s": begun.elapsed().as_secs_f64(),
            "world": ranks.world,
            "device": format!("{device:?}"),
            "torch": torch_version(),
            "config": config,
        });
        std::fs::write(path, format!("{report:#}\n"))
            .map_err(|e| Error::from_io(Kind::File, format_args!("cannot write {}", path.display()), e))?;
    }
    Ok(outcome.end)
}

/// Trains to the end, and evaluates the model after every epoch where that was requested.
fn run_and_judge(
    arguments: &Arguments,
    ranks: &Ranks,
    device: Device,
    trainer: &mut Trainer<'_>,
    feed: &mut dyn Feed,
) -> Result<(Outcome, Vec<EpochReport>)> {
    let mut epochs = Vec::new();
    let outcome = trainer.run_with(feed, &mut |trainer, feed| {
        let Some(uri) = arguments.eval_uri.as_ref().filter(|_| arguments.eval_every_epoch) else { return Ok(()) };
        let (samples, loader) = (trainer.samples(), feed.stats());
        epochs.push(EpochReport { samples, score: score(arguments, uri, ranks, device, trainer)?, loader });
        Ok(())
    })?;
    Ok((outcome, epochs))
}

/// The last lines of a run.
fn tell_end(screen: &Screen, outcome: &Outcome, score: Option<Score>, took: Duration) {
    screen.say(&format!("{}", outcome.meter));
    if let Some(score) = score {
        screen.say(&format!(
            "test accuracy {:.4}, loss {:.4} over {} samples",
            score.accuracy, score.loss, score.samples
        ));
    }
    screen.say(&match &outcome.end {
        End::Done => format!("done: {} steps, {} samples, {:.1} s", outcome.steps, outcome.samples, took.as_secs_f64()),
        End::Stopped(why) => format!("stopped after step {}: {why}; start again to go on", outcome.steps),
    });
}

fn backend(name: &str, device: Device) -> Result<Backend> {
    match name {
        "auto" if device == Device::Cpu => Ok(Backend::Gloo),
        "auto" => Ok(Backend::Nccl),
        name => Backend::from_str(name, false)
            .map_err(|_| Error::new(Kind::Usage, format!("unknown backend '{name}'")).with_hint("use gloo or nccl")),
    }
}

fn device(arguments: &Arguments, cuda: bool, local_rank: usize) -> Result<Device> {
    let there = cuda && tch::Cuda::is_available();
    match arguments.device.as_str() {
        "cpu" => Ok(Device::Cpu),
        "auto" if !there => Ok(Device::Cpu),
        "auto" | "cuda" if there => Ok(Device::Cuda(local_rank)),
        "cuda" => Err(Error::new(Kind::Environment, "torch finds no CUDA device")
            .with_hint("let LD_LIBRARY_PATH name the lib folder of a torch with CUDA, and look at nvidia-smi")),
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

/// Samples of an epoch: all, or under `drop_last` those of full steps.
fn epoch_samples(config: &Config, samples: u64) -> u64 {
    let step = u64::from(config.batch_size) * u64::from(config.world);
    if config.order.drop_last { samples / step * step } else { samples }
}

/// Number of classes of the whole data set.
fn classes(config: &Config, listing: &[fuelrail::Listed]) -> Result<usize> {
    fuelrail::classes_of(&config.uri, listing.iter().map(|object| object.key.as_str())).map(|classes| classes.len())
}

fn feed(loader: Loader, device: Device) -> Result<Box<dyn Feed>> {
    Ok(match device {
        Device::Cuda(device) => {
            let config = FeedConfig { device: device as u32, ..FeedConfig::default() };
            Box::new(GpuFeed::start(loader, config)?)
        }
        _ => Box::new(HostFeed::new(loader)),
    })
}

/// The loader of the samples to train with, from where a checkpoint left off.
fn loader(
    config: &Config,
    listing: Vec<fuelrail::Listed>,
    (order, scores): (Option<State>, Option<Vec<u8>>),
    goes_on: bool,
) -> Result<Loader> {
    let mut config = config.clone();
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
    let mut builder = LoaderBuilder::new(config).listing(listing);
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

/// Judges the model by samples it has not seen.
fn score(arguments: &Arguments, uri: &str, ranks: &Ranks, device: Device, trainer: &mut Trainer<'_>) -> Result<Score> {
    let mut config = arguments.loader(uri, ranks.rank, ranks.world)?;
    (config.epochs, config.audit) = (1, None);
    (config.order.shuffle, config.order.drop_last, config.order.importance) = (false, false, None);
    if config.decode.fit == Fit::RandomCrop {
        (config.decode.fit, config.decode.flip) = (Fit::CenterCrop, false);
    }
    let loader: Loader = LoaderBuilder::new(config).build()?;
    trainer.evaluate(&mut *feed(loader, device)?)
}

/// The usual means and deviations of ImageNet's pictures.
const PHOTO_MEAN: [f64; 3] = [0.485, 0.456, 0.406];
const PHOTO_SPREAD: [f64; 3] = [0.229, 0.224, 0.225];

/// Makes the model's variables in `variables`. `classes`: how many the data set has.
pub(crate) fn task(
    arguments: &Arguments,
    config: &Config,
    classes: usize,
    variables: &VarStore,
) -> Result<Box<dyn Task>> {
    let (root, device) = (variables.root(), variables.device());
    if arguments.model == "transformer" {
        return language(arguments, variables, device);
    }
    let decode = config.decoded().ok_or_else(|| {
        Error::new(Kind::Usage, format!("{} needs pictures", arguments.model))
            .with_hint("add --decode HEIGHTxWIDTHxCHANNELS")
    })?;
    if (decode.dtype, decode.layout) != Default::default() {
        let cause = "decode_dtype or decode_layout is set, and the models here take bytes of rows";
        return Err(Error::new(Kind::Usage, cause).with_hint("leave them out: the training normalises by itself"));
    }
    let channels = i64::from(decode.channels);
    let classes = i64::try_from(classes).unwrap_or(i64::MAX);
    if classes < 2 {
        return Err(Error::new(Kind::Usage, format!("the samples are of {classes} classes"))
            .with_hint("give a prefix whose folders are the classes"));
    }
    let model = match arguments.model.as_str() {
        "lenet" => lenet(&root, channels, classes),
        name => resnet(&root, Depth::from_str(name, false).map_err(|_| unknown(name))?, classes),
    };
    let (mean, spread) = if channels == 3 { (&PHOTO_MEAN[..], &PHOTO_SPREAD[..]) } else { (&[0.5][..], &[0.5][..]) };
    Ok(Box::new(Classifier::new(model, mean, spread, device)))
}

fn language(arguments: &Arguments, variables: &VarStore, device: Device) -> Result<Box<dyn Task>> {
    let [width, heads, layers] = arguments.transformer[..] else {
        return Err(Error::new(Kind::Usage, "--transformer takes three numbers").with_hint("write WIDTH,HEADS,LAYERS"));
    };
    if arguments.tokens < 2 || heads < 1 || width % heads != 0 || arguments.vocabulary < 2 {
        return Err(Error::new(
            Kind::Usage,
            "a transformer needs at least two tokens, and heads that divide its width",
        )
        .with_hint("look at --tokens, --vocabulary and --transformer"));
    }
    let (tokens, vocabulary) = (arguments.tokens as i64, arguments.vocabulary);
    let config = TransformerConfig { vocabulary, tokens, width, heads, layers: layers.max(1) as usize };
    let model = transformer(&variables.root(), config);
    Ok(Box::new(LanguageModel::new(model, arguments.tokens, vocabulary, device)))
}

fn unknown(name: &str) -> Error {
    Error::new(Kind::Usage, format!("unknown model '{name}'")).with_hint("use lenet, resnet18, resnet50 or transformer")
}
