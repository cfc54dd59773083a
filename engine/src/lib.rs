//! Fuelrail: streams the objects of a bucket into pinned batches, in an order that is a function of a seed.
//!
//! ```no_run
//! # fn main() -> fuelrail::Result<()> {
//! let loader = fuelrail::Loader::builder("http://127.0.0.1:9000/bucket/training/").batch_size(64).epochs(2).build()?;
//! for batch in loader {
//!     let batch = batch?;
//!     for sample in batch.samples() {
//!         println!("{} {} {}", sample.id.0, sample.label, sample.bytes.len());
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Owns the loader's threads: one per shard, one that watches, and where samples are decoded those that do that. Never exits the process, never forks, runs no program but the one that a profile of AWS names, never falls back to
//! something slower without saying so in [`Loader::notices`].
//!
//! # Features
//!
//! On by default; what needs one that is off is an error that names it.
//! - `tls`: HTTPS. Without it, SHA and MD5 checksums that a server sends are not verified either; CRCs are.
//! - `clouds` (brings `tls`): `s3://`, `gs://` and `az://`, listing, credentials and signatures, redirects, `get`, `put`, `no_proxy`.
//! - `decode`: PNG and JPEG objects become pixels, FLAC and WAV numbers.
//! - `formats`: samples are records of shards: tar archives, MDS, `TFRecord`, tokens and others.
//! - `toml`: settings from files.
//!
//! Without any, folders are read, and plain HTTP by a manifest. `tokio-uring` and `glommio` are further rings, and
//! `parquet` unpacks Parquet files: off by default.
#![forbid(unsafe_code)]
// What only the fuzzer, the decoders and the control plane call.
#![cfg_attr(not(all(feature = "clouds", feature = "decode", feature = "toml")), allow(dead_code))]

mod access;
mod audit;
mod batch;
mod builder;
mod chunks;
#[cfg(feature = "clouds")]
mod client;
pub mod config;
#[cfg(feature = "clouds")]
mod connect;
#[cfg_attr(not(feature = "clouds"), path = "credentials/absent.rs")]
mod credentials;
mod decode;
mod environment;
mod folder;
#[cfg(all(feature = "clouds", feature = "decode", feature = "toml"))]
#[doc(hidden)]
pub mod fuzz;
#[cfg(feature = "clouds")]
mod get;
mod importance;
mod layout;
mod listing;
mod loader;
mod memory;
mod metrics;
mod mixture;
mod names;
mod other_fields;
mod outage;
#[cfg_attr(not(feature = "formats"), path = "packed/absent.rs")]
mod packed;
#[cfg_attr(not(feature = "clouds"), path = "peers/absent.rs")]
mod peers;
mod prepared;
mod proxy;
mod ranks;
#[cfg_attr(not(feature = "formats"), path = "records/absent.rs")]
mod records;
mod scanning;
#[cfg(feature = "clouds")]
mod serve;
#[cfg(feature = "clouds")]
mod service;
mod sharing;
mod spill;
mod starting;
mod state;
mod stats;
mod system;
mod tls;
mod unpack;
#[cfg(feature = "clouds")]
mod upload;
mod watch;

pub use access::Access;
pub use audit::{Audit, AuditVerdict, EpochVerdict};
pub use batch::{Batch, NO_LABEL, Sample, classes_of};
pub use builder::{LoaderBuilder, list_as};
pub use config::{Config, Overrides};
pub use credentials::{CredentialProvider, Credentials, SharedProvider};
pub use decode::{
    Decode, DecodeFunction, DecodeStats, Dtype, Fit, KeptBytes, PerChannel, PixelLayout, PixelShape, Shape, Undecoded,
};
pub use environment::{Environment, environment_variables};
pub use fuelrail_base::{ByteSize, Error, Kind, Result, SampleId, WallTime, read_duration};
pub use fuelrail_flow::{BadSamples, ByteRange, Listed, Listing};
pub use fuelrail_io::{Backend, RingChoice};
pub use fuelrail_plan::importance::Mode as ImportanceMode;
pub use fuelrail_plan::order::{MixtureEpoch, OrderName};
pub use fuelrail_plan::policy::PolicyName;
pub use fuelrail_plan::prefetch::Prefetch;
pub use fuelrail_plan::spill::SpillPolicy;
pub use fuelrail_wire::sign::Credential;
pub use fuelrail_wire::{Addressing, Cloud};
#[cfg(feature = "clouds")]
pub use get::{get, get_with};
pub use importance::Reporter;
pub use listing::{KeptListing, ListingDir, list, list_kept, list_packed, list_with, read_manifest, write_manifest};
pub use loader::{Loader, Taken};
pub use memory::{Memory, MemoryStats, Remains};
pub use mixture::Mixture;
pub use other_fields::OtherFields;
pub use ranks::{HandOver, PeerFacts};
pub use records::Format;
pub use sharing::{Sharing, SharingOptions};
pub use state::State;
pub use stats::{DiskFacts, GateStats, Quantiles, ShardStats, Stats};
pub use system::{on_warning, print_warnings};
pub use tls::Tls;
#[cfg(feature = "clouds")]
pub use upload::{
    PART_BYTES, PARTS_ABOVE_BYTES, PutOptions, PutOver, Stored, UPLOAD_BYTES_MAX, Upload, put, put_as, put_with,
};

/// What the commands, the benchmarks and the bindings need besides. It may change in any version.
#[doc(hidden)]
pub mod internal {
    #[cfg(feature = "decode")]
    pub use crate::decode::PictureDecoder;
    pub use crate::folder::{forget_unfinished, list_folder};
    #[cfg(feature = "clouds")]
    pub use crate::get::{GetConnection, Gets, object_bytes};
    pub use crate::listing::{listing_hash, no_objects};
    #[cfg(feature = "formats")]
    pub use crate::packed::PackedRecords;
    #[cfg(feature = "formats")]
    pub use crate::records::OPEN_END;
    #[cfg(feature = "clouds")]
    pub use crate::service::{IMDS_ADDRESS, ask_imds, ask_metadata};
    pub use crate::spill::{
        CacheDirectory, CacheSegment, CacheVerdict, RemovedCache, SegmentState, list_cache, remove_cache, verify_cache,
    };
    #[cfg(feature = "clouds")]
    pub use crate::upload::put_unless;
    pub use fuelrail_io::{
        Finding, ForkGuard, Grade, MemoryUse, Probe, ProbeConfig, Topology, give_back_freed, memory_use, probe,
        probe_under, process_cpu, thread_cpu,
    };
}

/// What programs hand from thread to thread stays so.
const _: () = {
    const fn send<T: Send>() {}
    const fn send_and_sync<T: Send + Sync>() {}
    send::<Loader>();
    send_and_sync::<Batch>();
    send_and_sync::<Config>();
    send_and_sync::<Error>();
    send_and_sync::<LoaderBuilder>();
    send_and_sync::<Reporter>();
    send_and_sync::<State>();
};

/// The examples of the README and of USAGE compile.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
#[doc = include_str!("../docs/USAGE.md")]
struct Documents;
