//! Every setting: its name in Rust, its key in files, variables and results, its type, its default, and what it does. The structures,
//! the builder's setters and the table in `engine/docs/SETTINGS.md` are made from this.

use super::text::{Given, Value};
use crate::credentials::SharedProvider;
use crate::decode::{DecodeFunction, Dtype, Fit, PerChannel, PixelLayout, PixelShape};
use crate::environment::Environment;
use crate::mixture::Mixture;
use crate::records::Format;
use fuelrail_base::limits::BLOCK_BYTES_DEFAULT;
use fuelrail_base::{ByteSize, Duration, Result};
use fuelrail_flow::BadSamples;
use fuelrail_io::RingChoice;
use fuelrail_plan::hedge::HedgeConfig;
use fuelrail_plan::importance::Mode;
use fuelrail_plan::order::{MixtureEpoch, OrderName};
use fuelrail_plan::policy::PolicyName;
use fuelrail_plan::prefetch::Prefetch;
use fuelrail_plan::spill::SpillPolicy;
use fuelrail_wire::Addressing;
use std::path::PathBuf;

/// A setting as files, variables and arguments know it.
#[derive(Clone, Copy, Debug)]
#[doc(hidden)]
pub struct Setting {
    /// The table that a file has it in; empty for what belongs to none.
    pub group: &'static str,
    /// Its name within the group.
    pub field: &'static str,
    /// Its name without a group, and that of the builder's setter.
    pub name: &'static str,
    /// Its name in variables, arguments and results. Plain numbers are in the unit that it ends in.
    pub key: &'static str,
    /// What it does.
    pub about: &'static str,
    pub(super) set: fn(&mut Config, &Given) -> Result<()>,
    pub(crate) get: fn(&Config) -> serde_json::Value,
}

macro_rules! first {
    ($first:expr $(, $others:expr)*) => {
        $first
    };
}

/// A setter of the builder, by the type of its setting.
macro_rules! setter {
    (@ [$($about:literal)*] [$($at:ident)*] $name:ident, $kind:ty, $value:expr) => {
        $(#[doc = $about])*
        #[must_use]
        pub fn $name(mut self, $name: $kind) -> LoaderBuilder {
            self.config$(.$at)* = $value;
            self
        }
    };
    ($about:tt $at:tt [$field:ident $setter:ident] $($kind:tt)*) => {
        $crate::config::setter!($about $at [$setter] $($kind)*);
    };
    // The builder has its own: it takes all that is decoded to.
    ($about:tt $at:tt [$name:ident] Option<PixelShape>) => {};
    ($about:tt $at:tt [$name:ident] String) => {
        $crate::config::setter!(@ $about $at $name, impl Into<String>, $name.into());
    };
    ($about:tt $at:tt [$name:ident] Option<String>) => {
        $crate::config::setter!(@ $about $at $name, impl Into<String>, Some($name.into()));
    };
    ($about:tt $at:tt [$name:ident] Option<PathBuf>) => {
        $crate::config::setter!(@ $about $at $name, impl Into<PathBuf>, Some($name.into()));
    };
    ($about:tt $at:tt [$name:ident] Vec<PathBuf>) => {
        $crate::config::setter!(@ $about $at $name, impl IntoIterator<Item = impl Into<PathBuf>>, $name.into_iter().map(Into::into).collect());
    };
    ($about:tt $at:tt [$name:ident] Vec<String>) => {
        $crate::config::setter!(@ $about $at $name, impl IntoIterator<Item = impl Into<String>>, $name.into_iter().map(Into::into).collect());
    };
    ($about:tt $at:tt [$name:ident] RingChoice) => {
        $crate::config::setter!(@ $about $at $name, impl Into<RingChoice>, $name.into());
    };
    // Plain, so that `"1GiB".parse()?` knows what to read.
    ($about:tt $at:tt [$name:ident] Option<ByteSize>) => {
        $crate::config::setter!(@ $about $at $name, ByteSize, Some($name));
    };
    ($about:tt $at:tt [$name:ident] Option<$inner:ident>) => {
        $crate::config::setter!(@ $about $at $name, impl Into<Option<$inner>>, $name.into());
    };
    ($about:tt $at:tt [$name:ident] $kind:ident) => {
        $crate::config::setter!(@ $about $at $name, $kind, $name);
    };
}

pub(crate) use setter;

/// `FIELD: TYPE = DEFAULT`, with `as NAME` where it is called otherwise outside its group, and `("KEY")` where its key is not its name.
/// After a semicolon is what only programs set.
macro_rules! settings {
    (
        {$(
            $(#[doc = $about:literal])*
            $field:ident $(as $name:ident)? $(($key:literal))?: $kind:ident$(<$inner:ident>)? = $default:expr,
        )*}
        $(
            $(#[doc = $group_about:literal])*
            $group:ident: $Group:ident {
                $(
                    $(#[doc = $g_about:literal])*
                    $g_field:ident $(as $g_name:ident)? $(($g_key:literal))?: $g_kind:ident$(<$g_inner:ident>)? = $g_default:expr,
                )*
                $(;
                    $(#[doc = $c_about:literal])*
                    $c_field:ident: $c_kind:ty = $c_default:expr
                )*
            }
        )*
    ) => {
        /// Every setting of a loader. The effective one is printed into every result.
        #[derive(Clone, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Config {
            $($(#[doc = $about])* pub $field: $kind$(<$inner>)?,)*
            $($(#[doc = $group_about])* pub $group: $Group,)*
        }

        impl Default for Config {
            fn default() -> Config {
                Config { $($field: $default,)* $($group: $Group::default(),)* }
            }
        }

        $(
            $(#[doc = $group_about])*
            #[derive(Clone, Debug, PartialEq, Eq)]
            #[non_exhaustive]
            pub struct $Group {
                $($(#[doc = $g_about])* pub $g_field: $g_kind$(<$g_inner>)?,)*
                $($(#[doc = $c_about])* pub $c_field: $c_kind,)*
            }

            impl Default for $Group {
                fn default() -> $Group {
                    $Group { $($g_field: $g_default,)* $($c_field: $c_default,)* }
                }
            }
        )*

        impl Config {
            /// All settings that files, variables and arguments know.
            #[doc(hidden)]
            pub const SETTINGS: &[Setting] = &[
                $(Setting {
                    group: "",
                    field: stringify!($field),
                    name: first!($(stringify!($name),)? stringify!($field)),
                    key: first!($($key,)? $(stringify!($name),)? stringify!($field)),
                    about: concat!($($about, "\n",)*),
                    set: |config, given| {
                        config.$field = Value::read(given, first!($($key,)? stringify!($field)))?;
                        Ok(())
                    },
                    get: |config| config.$field.show(first!($($key,)? stringify!($field))),
                },)*
                $($(Setting {
                    group: stringify!($group),
                    field: stringify!($g_field),
                    name: first!($(stringify!($g_name),)? stringify!($g_field)),
                    key: first!($($g_key,)? $(stringify!($g_name),)? stringify!($g_field)),
                    about: concat!($($g_about, "\n",)*),
                    set: |config, given| {
                        config.$group.$g_field = Value::read(given, first!($($g_key,)? stringify!($g_field)))?;
                        Ok(())
                    },
                    get: |config| config.$group.$g_field.show(first!($($g_key,)? stringify!($g_field))),
                },)*)*
            ];
        }

        /// A setter for each setting, for the builder.
        macro_rules! setters {
            () => {
                $($crate::config::setter!([$($about)*] [$field] [$field $($name)?] $kind$(<$inner>)?);)*
                $($($crate::config::setter!(
                    [$($g_about)*] [$group $g_field] [$g_field $($g_name)?] $g_kind$(<$g_inner>)?
                );)*)*
            };
        }
        pub(crate) use setters;
    };
}

settings! {
    {
        /// `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX`, `az://ACCOUNT/CONTAINER/PREFIX`, `abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PREFIX`,
        /// `http://HOST:PORT/BUCKET/PREFIX`, or `https`, or a folder, `/data/photos/`.
        /// Braces, `{train,val}` and `{000..127}`, stand for several prefixes.
        uri: String = String::new(),
        /// A manifest that names the objects, for servers that cannot list.
        manifest: Option<PathBuf> = None,
        /// How objects hold samples: `webdataset` (tar archives, whose members of one name but for the extension are the fields of a
        /// sample), `mds`, `tfrecord`, `parquet`, `tokens` (arrays of numbers without a header, of which a window is a sample), `manifest` (as
        /// `record_file` says), or `objects` (each a record of one field, named by its extension); without one every object is a sample as
        /// it is.
        format: Option<Format> = None,
        /// Under `manifest`, a local CSV or JSONL file of records: `key` of an object, and of a part of it `offset` and `length`, bytes; its
        /// bytes are the field `data`, and all other columns are fields, too.
        record_file: Option<PathBuf> = None,
        /// Under `objects`, the extensions of side-cars, such as `json` and `cls`: small objects that belong to the one whose key differs in the
        /// extension only, and are fields of its record. They are read at start, one request each.
        side_cars: Vec<String> = Vec::new(),
        /// With `decode`, the other fields of a record that come with its pixels, such as `txt`; without any none. Under `parquet` also the
        /// columns that are read, and those below them, that of the pictures among them; without any all.
        fields: Vec<String> = Vec::new(),
        /// The field of a record that is its label, a whole number up to 2147483647; without one records have no label.
        label_field: Option<String> = None,
        /// Without a format, the names of the classes in the order in which labels number them; without any, all folders below the prefix,
        /// sorted. A validation set needs those of the training set: a class that it lacks would shift all after it.
        classes: Vec<String> = Vec::new(),
        /// Under `tokens`, how many make a sample: for a model that predicts the next one, one more than its context has; without a number
        /// all of an object.
        token_window: Option<u64> = None,
        /// Under `tokens`, how many there are from the begin of a sample to that of the next; without a number a window.
        token_stride: Option<u64> = None,
        /// Under `tokens`, bytes of one: 2 for `uint16`, 4 for `uint32` or `int32`.
        token_bytes: u32 = 2,
        /// Under `tokens`, the token that ends each document and belongs to it: samples then lie within documents, the last of each is as long as
        /// what is left, and without `token_window` each document is a sample. All files are read once for that.
        token_document_end: Option<u64> = None,
        /// Samples per batch and rank.
        batch_size: u32 = 64,
        /// Epochs of the whole run, counted from epoch 0 also when resuming.
        epochs: u64 = 1,
        /// This rank.
        rank: u32 = 0,
        /// How many ranks share each epoch.
        world: u32 = 1,
        /// How many ranks are on this machine: where memory, shards and decoding threads are not set, they are the machine's divided by this.
        /// Without a number what `LOCAL_WORLD_SIZE` says, which torchrun sets, else 1.
        local_world: Option<u32> = None,
        /// Shards (threads); without a number one per core that cpuset and quota allow, as far as memory feeds them; where samples are
        /// decoded, one for eight cores.
        shards: Option<u16> = None,
        /// Bind each shard to a core and its memory to that core's NUMA node: one of every physical core first, nodes in turn. Not where parts are unpacked (Parquet, compressed MDS).
        pin: bool = true,
        /// The NUMA node, such as a GPU's, on whose cores shards are seated first; the nodes take turns without it.
        near: Option<u16> = None,
        /// The interface to the kernel: `auto` (`uring`, or `poll` where that is refused), `uring`, `poll`, and where the build
        /// has them `tokio-uring` and `glommio`.
        ring: RingChoice = RingChoice::default(),
        /// Register the arena with the ring: cheaper receives, but all of it becomes resident at start.
        register: bool = false,
        /// What happens when a sample cannot be had: `raise`, `skip` or `quarantine`.
        bad_samples: BadSamples = BadSamples::default(),
        /// When the program waits for a batch and nothing comes for so long, the state of every stage is reported.
        watchdog_after ("watchdog_after_ms"): Option<Duration> = Some(Duration::from_secs(30)),
        /// Answer SIGUSR1 with the same report. The signal is the program's own otherwise: schedulers use it for pre-emption.
        report_on_sigusr1: bool = false,
        /// An address, HOST:PORT, at which the counters are shown for Prometheus, under `/metrics`. No name of an object is among them.
        metrics_listen: Option<String> = None,
        /// Where to log what was delivered, for the exactly-once proof.
        audit: Option<PathBuf> = None,
    }
    /// In which order samples come, and how often.
    order: Order {
        /// Shuffled epochs, or key order.
        shuffle: bool = true,
        /// Which shuffle: `global`; `sticky`: samples stay on the same rank across epochs, whose cache may hold them; or `chunks`: records
        /// that are neighbours in a shard are read by one request, and mixed with those of `chunk_window` chunks.
        name as order: OrderName = OrderName::default(),
        /// Under `chunks`, what one request reads, on average.
        chunk_size ("chunk_bytes"): ByteSize = ByteSize(2 << 20),
        /// Under `chunks`, how many are mixed at a time, over all ranks; each rank holds its share of them in memory.
        chunk_window: u32 = 128,
        /// Data sets and how much of the run each is, by the beginnings of their keys: `en/=7, code/=3`, and what that changes to after a
        /// number of samples: `; from 1000000: en/=1, code/=1`. A data set that is used up begins anew, in another order.
        mixture: Option<Mixture> = None,
        /// Of a mixture, how long an epoch is: `total` (as many samples as the data sets have), `first-used-up` (until one of them has come
        /// whole) or `all-used-up` (until all have).
        mixture_epoch: MixtureEpoch = MixtureEpoch::default(),
        /// Of a mixture, samples of which each data set has its share, to within two: what is in a window comes in a random order.
        mixture_window: u32 = 1024,
        /// Seed of the order.
        seed: u64 = 0,
        /// Drop the last step of an epoch when it is not full.
        drop_last: bool = false,
        /// Which samples an epoch takes more than once, and which not at all: `off` and `uniform` take every sample once, `on` draws
        /// by the losses the trainer reports, `shade` and `shade-corrected` as SHADE does, to compare with.
        importance: Option<Mode> = None,
        /// Under `on`: the least rate of a sample, per cent of once an epoch; at least that share of all samples is in every epoch.
        coverage_percent as importance_coverage_percent: u32 = 50,
        /// Under `on`, the most often a sample comes in an epoch; under SHADE's modes, how often what is cached is replayed.
        replay as importance_replay: u32 = 3,
        /// Under `on`: deliver weights that make the mean over an epoch unbiased.
        weights as importance_weights: bool = true,
    }
    /// Memory, what is cached in it, and how far to look ahead.
    memory: Memory {
        /// All buffers together; without one half of the cgroup's limit or of the machine.
        limit as memory_limit ("memory_limit_bytes"): Option<ByteSize> = None,
        /// RAM cache of blocks inside that, payload bytes.
        cache_limit ("cache_limit_bytes"): ByteSize = ByteSize(0),
        /// What the cache keeps: `next-use`, what the order needs soonest; `pinned`, what came first; `lru`, `fifo`; `dlcache`, as DLCache
        /// does, to compare with; `importance`, what is drawn most often.
        cache_policy: PolicyName = PolicyName::default(),
        /// Longest span fetched and cached as one.
        block_size ("block_bytes"): ByteSize = ByteSize(BLOCK_BYTES_DEFAULT),
        /// How far to look ahead: `lookahead`, or DELI's `full-fetch` and `50/50` over `prefetch_samples`.
        prefetch: Prefetch = Prefetch::default(),
        /// For DELI's strategies: their cache size, samples.
        prefetch_samples: u64 = 2048,
    }
    /// What is kept on local disks.
    disk: Disk {
        /// Directories on local disks that blocks go to which RAM has no room for; none keeps nothing on disk. Each belongs to root
        /// or to this user, and gets a directory `fuelrail-UID` that is this user's alone. Give each to one bucket or many, one
        /// loader or many of this machine: what is in them is found again by any later run.
        dirs as spill_dirs: Vec<PathBuf> = Vec::new(),
        /// Disk for blocks in all directories together, whichever loader and process of this machine wrote them; without one what
        /// `spill_floor` leaves.
        limit as spill_limit ("spill_limit_bytes"): Option<ByteSize> = None,
        /// Room to leave free on every directory's file system, 0 for none; without a number a twentieth of it.
        floor as spill_floor ("spill_floor_bytes"): Option<ByteSize> = None,
        /// What the disk keeps: `next-use`, `lru` or `fifo`.
        policy as spill_policy: SpillPolicy = SpillPolicy::default(),
    }
    /// Which server is asked, and how long for.
    network: Network {
        /// The region of an `s3://` bucket, and the one that requests are signed for, if they are; without one it is `AWS_REGION`, `AWS_DEFAULT_REGION` or
        /// that of the profile, else `us-east-1`.
        region: Option<String> = None,
        /// The server that `s3://`, `gs://` and `az://` mean, `http[s]://HOST[:PORT]`; without one it is `AWS_ENDPOINT_URL_S3`,
        /// `AWS_ENDPOINT_URL` or `STORAGE_EMULATOR_HOST`, else the cloud's own.
        endpoint: Option<String> = None,
        /// Where requests name the bucket of an `s3://` or `gs://` URI: `path`, or `virtual`, in front of the host; without it as the cloud does.
        addressing: Option<Addressing> = None,
        /// A local directory in which the bucket's listing is kept: it is used again by later runs while the bucket seems to be as it
        /// was, and one that is interrupted goes on. Without one the bucket is listed at every start.
        listing_dir: Option<PathBuf> = None,
        /// A listing older than this is not used again.
        listing_max_age ("listing_max_age_s"): Duration = Duration::from_secs(86_400),
        /// Most connections per shard.
        connections_max: usize = 256,
        /// Most attempts per block without progress; one that brings 1 KiB of it is progress, and `request_limit` ends those.
        attempts_max: u32 = 10,
        /// Silence on a busy connection after which it is given up; and an answer of which less than 1 KiB a second comes for as long.
        /// What has come is kept, and the rest asked for elsewhere. Under `shared_read` a process that reads is given up when it has not
        /// answered for four times as long.
        stall_after ("stall_after_ms"): Duration = Duration::from_secs(10),
        /// How long one block may fail in all its attempts, those with progress too, while others are served; without a limit it is left to
        /// the attempts.
        request_limit ("request_limit_s"): Option<Duration> = Some(Duration::from_secs(600)),
        /// How long a bucket that serves nothing at all is waited for: where a loader starts, and once it has served; without a limit it is
        /// left to the attempts.
        outage_limit ("outage_limit_s"): Option<Duration> = Some(Duration::from_secs(300)),
        /// Requests sent a second time over another connection because the first takes far longer than usual, in per cent of all requests
        /// at most; 0 sends none. The first answer that is whole is taken.
        hedge_percent: u32 = HedgeConfig::default().percent,
        /// A local directory in which the loaders of this machine write down the rate of requests that a server asks for, so that they
        /// share it evenly; without one each finds a rate of its own.
        share_dir: Option<PathBuf> = None,
        /// Take the batches from the process `fuelrail share` that serves this URI in `share_dir`, which reads them once for all jobs of the
        /// machine. What decides the batches must be set as it is there. Where there is no such process, or it goes, does not
        /// answer, or leaves a slow job behind, the job reads alone, from where it is to the end of its run.
        shared_read: bool = false,
    }
    /// Blocks that the ranks of a job keep for each other.
    peers: Peers {
        /// The addresses of all ranks, HOST:PORT, in the order of ranks; braces such as `node-{0..3}:7070` stand for several. Each rank serves
        /// at its own what its caches hold, and what another one keeps is had from there and not from the bucket: together they cache what
        /// fits into all of them.
        addresses as peers: Vec<String> = Vec::new(),
        /// What this rank's node is called, where ranks tell each other their addresses (`peers=True` in Python, `peers = auto` of `fuelrail-train`) and
        /// those may be others after a restart, as in Kubernetes: what lies on the node's disk is found by this name. In `peers` itself: `NAME=HOST:PORT`.
        node as peer_node: Option<String> = None,
        /// Where this rank listens, where that is not its own address in `peers`, such as `0.0.0.0:7070`.
        listen as peer_listen: Option<String> = None,
        /// A file with a secret that all ranks share. Needed where they use no TLS, which they may only on one machine.
        secret_file as peer_secret_file: Option<PathBuf> = None,
        /// The authority of the job, in PEM: who has no certificate from it is refused, both ways.
        ca_file as peer_ca_file: Option<PathBuf> = None,
        /// This rank's certificate, issued for the host of its address, in PEM.
        cert_file as peer_cert_file: Option<PathBuf> = None,
        /// … and its key.
        key_file as peer_key_file: Option<PathBuf> = None,
        /// What this rank sends to each address of the others at most, a second, such as `1GB`. A rank that waits too long asks the
        /// bucket.
        rate_limit as peer_rate_limit: Option<ByteSize> = None,
    }
    /// What samples are decoded to.
    decode: Decoding {
        /// What PNG and JPEG objects are decoded to, `HEIGHTxWIDTHxCHANNELS`, such as `224x224x3`, and FLAC and WAV, `1xFRAMESxCHANNELS`;
        /// without it their bytes are delivered.
        shape as decode: Option<PixelShape> = None,
        /// The field of a record that is decoded; without one the first of `jpg`, `jpeg`, `png`, `img`, `image`, `image/encoded`, `flac`,
        /// `wav` and `audio` that the records have.
        field as decode_field: Option<String> = None,
        /// How a picture of another size comes to that: `exact` (it is a bad sample), `center-crop` or `random-crop`.
        fit as decode_fit: Fit = Fit::default(),
        /// Mirror every other decoded sample left to right, by seed, epoch and sample.
        flip as decode_flip: bool = false,
        /// What the numbers of decoded samples are: `u8`, or `f16` and `f32`, 0 to 1 unless normalised; of sound `f16` or `f32`, -1 to 1.
        dtype as decode_dtype: Dtype = Dtype::default(),
        /// How decoded samples lie in memory: `nhwc`, rows of pixels, or `nchw`, a plane for each channel.
        layout as decode_layout: PixelLayout = PixelLayout::default(),
        /// Subtracted from decoded pixels of 0 to 1, for each channel, such as `0.485,0.456,0.406`; `f16` and `f32` only.
        mean as decode_mean: Option<PerChannel> = None,
        /// What decoded pixels less their mean are divided by, for each channel, such as `0.229,0.224,0.225`.
        std as decode_std: Option<PerChannel> = None,
        /// Threads that decode; without a number the cores that the shards leave, at least one.
        threads as decode_threads: Option<usize> = None,
        /// Batches decoded ahead, as far as memory has room for them.
        depth as decode_depth: usize = 4,
        ;
        /// The program's own function, in the place of the decoders of pictures and sound.
        function: Option<DecodeFunction> = None
    }
    /// Whose certificates are accepted, and what requests are signed with.
    trust: Trust {
        /// Under https, the certificate authorities to trust instead of the system's, in PEM.
        ca_file: Option<PathBuf> = None,
        /// Under https, disable certificate verification (insecure; every use is a warning).
        tls_insecure: bool = false,
        /// The profile of the AWS files (`~/.aws`) whose keys are used, before those of the environment.
        profile: Option<String> = None,
        /// `true` signs nothing; `false` signs also what goes to a plain `http://` or `https://` URI, which by itself is signed
        /// only with `profile` set, or where `AWS_ENDPOINT_URL` names the server.
        anonymous: Option<bool> = None,
        /// Pay for the requests and the bytes, where the bucket's owner wants that of those who send them.
        requester_pays: bool = false,
        ;
        /// Where the variables of the clouds' tools are read.
        environment: Environment = Environment::default()
        ;
        /// What hands out credentials in the place of what the clouds' tools would use.
        credentials: Option<SharedProvider> = None
    }
}
