//! What can be said on the command line.

use clap::Parser;
use fuelrail::{Config, Overrides, Result};
use fuelrail_tch::{Decay, Precision, Rate, Rule, SwitchConfig, TrainConfig};
use std::net::SocketAddr;
use std::path::PathBuf;

/// Trains a model from a bucket, on one rank or many.
///
/// Ranks find each other as everywhere: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT, set by hand or by torchrun.
#[derive(Parser, Debug)]
#[command(
    name = "fuelrail-train",
    version,
    after_help = "Examples:\n  fuelrail-train --model lenet http://127.0.0.1:9000/digits/training/ --decode 28x28x1 --epochs 3\n  \
                  torchrun --no-python --nproc-per-node 2 --max-restarts 3 fuelrail-train --model resnet18 http://HOST/photos/train/ \\\n    \
                  --decode 224x224x3 --set decode_fit=random-crop --checkpoint /data/run1 --checkpoint-every 500"
)]
pub(crate) struct Arguments {
    /// Where the samples are
    pub uri: String,
    /// What to train: lenet, resnet18, resnet50 or transformer
    #[arg(long, default_value = "lenet")]
    pub model: String,
    /// Samples to judge the model by, at the end
    #[arg(long)]
    pub eval_uri: Option<String>,
    /// Pictures: HEIGHTxWIDTHxCHANNELS
    #[arg(long)]
    pub decode: Option<String>,
    /// Tokens of one sample (transformer)
    #[arg(long, default_value_t = 129)]
    pub tokens: usize,
    /// Tokens the transformer knows; greater ones are folded into them
    #[arg(long, default_value_t = 50_257)]
    pub vocabulary: i64,
    /// Width, heads and layers of the transformer
    #[arg(long, default_value = "128,4,4", value_delimiter = ',')]
    pub transformer: Vec<i64>,
    /// Samples per batch and rank
    #[arg(long, default_value_t = 64)]
    pub batch_size: u32,
    /// Samples per step of all ranks together, instead: the same whatever the number of ranks
    #[arg(long, conflicts_with = "batch_size")]
    pub global_batch_size: Option<u32>,
    /// Batches that make up one step
    #[arg(long, default_value_t = 1)]
    pub accumulate: usize,
    /// Epochs
    #[arg(long, default_value_t = 1)]
    pub epochs: u64,
    /// Seed of the order, of weights and of dropout
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// sgd or adamw
    #[arg(long, default_value = "sgd", value_parser = |text: &str| text.parse::<Rule>())]
    pub optimiser: Rule,
    /// Greatest learning rate, for the batch of all ranks together
    #[arg(long, default_value_t = 0.05)]
    pub rate: f64,
    /// Share of the work over which the rate rises
    #[arg(long, default_value_t = 0.0)]
    pub warm_up: f64,
    /// What comes after: constant, cosine or steps
    #[arg(long, default_value = "constant", value_parser = |text: &str| text.parse::<Decay>())]
    pub decay: Decay,
    /// full, bf16 or half
    #[arg(long, default_value = "full", value_parser = |text: &str| text.parse::<Precision>())]
    pub precision: Precision,
    /// auto, cpu or cuda
    #[arg(long, default_value = "auto")]
    pub device: String,
    /// gloo, nccl, or auto: nccl between GPUs
    #[arg(long, default_value = "auto")]
    pub backend: String,
    /// A folder or a bucket's prefix for checkpoints; may be given twice. A run goes on from the newest one there
    #[arg(long)]
    pub checkpoint: Vec<String>,
    /// A checkpoint every so many steps; without, only at the end and on a notice
    #[arg(long, default_value_t = 0)]
    pub checkpoint_every: u64,
    /// And every so many seconds
    #[arg(long, default_value_t = 0.0)]
    pub checkpoint_every_s: f64,
    /// Checkpoints kept in a folder
    #[arg(long, default_value_t = 2)]
    pub keep: usize,
    /// Share of the work after which training goes asynchronous (Sync-Switch); 1 never
    #[arg(long, default_value_t = 1.0)]
    pub switch_after: f64,
    /// Also when a rank takes this many times the median's time, ten steps in a row; 0 never
    #[arg(long, default_value_t = 0.0)]
    pub straggler: f64,
    /// Asynchronous: throw gradients away whose parameters have had more updates since
    #[arg(long, default_value_t = 64)]
    pub staleness_max: u64,
    /// Bytes of gradients summed over the ranks at a time
    #[arg(long, default_value_t = 25 << 20)]
    pub bucket_bytes: usize,
    /// For trials: slow one rank down, RANK=FACTOR
    #[arg(long)]
    pub slow: Option<String>,
    /// Draw epochs by importance: on, uniform, shade or shade-corrected; off is every sample once. More with --set importance_…
    #[arg(long)]
    pub importance: Option<String>,
    /// Judge the model by --eval-uri behind every epoch, too
    #[arg(long)]
    pub eval_every_epoch: bool,
    /// Longest wait for another rank, seconds
    #[arg(long, default_value_t = 300.0)]
    pub timeout_s: f64,
    /// Threads of one operation on the CPU; without, the machine's cores shared out, or OMP_NUM_THREADS
    #[arg(long)]
    pub threads: Option<usize>,
    /// Ask this metadata service whether the machine is about to be taken away: gce or ec2
    #[arg(long)]
    pub preemption: Option<String>,
    /// Where that service is, if not where every instance has it
    #[arg(long)]
    pub metadata_address: Option<SocketAddr>,
    /// A setting of the loader, KEY=VALUE, as in its TOML file
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// The loader's TOML file
    #[arg(long)]
    pub config: Option<PathBuf>,
    /// Write one line of JSON per step here; `{rank}` stands for the rank
    #[arg(long)]
    pub step_log: Option<String>,
    /// Write the outcome as JSON here (rank 0)
    #[arg(long)]
    pub json: Option<PathBuf>,
    /// Print a line every so many steps; 0 about every two seconds
    #[arg(long, default_value_t = 0)]
    pub print_every: u64,
}

impl Arguments {
    /// The trainer's configuration for a data set of this many samples an epoch.
    pub(crate) fn training(&self, epoch_samples: u64) -> Result<TrainConfig> {
        let slow = self.slow.as_deref().map(slow).transpose()?;
        Ok(TrainConfig {
            seed: self.seed,
            epoch_samples,
            epochs: self.epochs,
            accumulate: self.accumulate,
            rule: self.optimiser,
            rate: Rate { peak: self.rate, warm_up: self.warm_up, decay: self.decay },
            precision: self.precision,
            bucket_bytes: self.bucket_bytes,
            checkpoint_every_steps: self.checkpoint_every,
            checkpoint_every_s: self.checkpoint_every_s,
            switch: SwitchConfig { after: self.switch_after, straggler: self.straggler, ..SwitchConfig::default() },
            staleness_max: self.staleness_max,
            slow_rank: slow.map(|(rank, _)| rank),
            slow_factor: slow.map_or(1.0, |(_, factor)| factor),
        })
    }

    /// The loader's configuration over `uri`, for this rank.
    pub(crate) fn loader(&self, uri: &str, rank: usize, world: usize) -> Result<Config> {
        let batch_size = match self.global_batch_size {
            None => self.batch_size,
            Some(all) if (all as usize).is_multiple_of(world) => all / world as u32,
            Some(all) => {
                return Err(usage(format!("a global batch of {all} cannot be shared out evenly over {world} ranks"))
                    .cure("choose a multiple of the number of ranks"));
            }
        };
        let mut overrides: Overrides = Vec::new();
        let mut put = |key: &str, value: String| overrides.push((key.to_owned(), value));
        put("uri", uri.to_owned());
        put("batch_size", batch_size.to_string());
        put("epochs", self.epochs.to_string());
        put("seed", self.seed.to_string());
        put("rank", rank.to_string());
        put("world", world.to_string());
        if let Some(decode) = &self.decode {
            put("decode", decode.clone());
        }
        if let Some(importance) = &self.importance {
            put("importance", importance.clone());
        }
        for setting in &self.set {
            let (key, value) =
                setting.split_once('=').ok_or_else(|| usage(format!("--set {setting} is not KEY=VALUE")))?;
            put(key, value.to_owned());
        }
        Config::load(self.config.as_deref(), fuelrail::environment_variables()?, &overrides)
    }
}

fn usage(cause: String) -> fuelrail::Error {
    fuelrail::Error::new(fuelrail::Kind::Usage, cause)
}

fn slow(text: &str) -> Result<(usize, f64)> {
    let parts = text.split_once('=').and_then(|(rank, factor)| Some((rank.parse().ok()?, factor.parse().ok()?)));
    parts.ok_or_else(|| usage(format!("--slow {text} is not RANK=FACTOR")).cure("write for example --slow 1=3"))
}
