//! Credentials: found where the tools of each cloud look for them, and renewed before they end, off the hot path.
//!
//! One thread per process and chain of sources gets new ones; shards and the control plane sign with what it last got. The
//! chains are written here rather than taken from `reqsign` (111 crates) or the vendors' SDKs (more): what they do is a few
//! small requests and files, the requests go through the hyper and rustls that are here already, and what each source
//! had to say can be told.

mod aws;
mod azure;
mod chain;
mod container;
mod environment;
mod google;
mod http;
mod instance;
mod keep;
mod keys;
mod oauth;
mod process;
mod profile;
mod settings;
mod signing;
mod sts;
#[cfg(test)]
mod tests;
mod trial;

pub(crate) use aws::region;
pub use environment::{Environment, environment_variables};
pub(crate) use keep::authority_for;
pub use settings::Credentials;
pub(crate) use settings::{Origin, Provider};
pub(crate) use signing::authorise;
pub(crate) use trial::understood;
