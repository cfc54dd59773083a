//! The Kubernetes operator of Fuelrail: data sets are loaded onto the disks of nodes before jobs need them, and jobs are sent to the
//! nodes that have their data.
//!
//! `place`, `plan` and `gates` decide and are pure: cluster state in, actions and status out, no clock and no I/O. `observe` converts
//! Kubernetes' types to theirs, `objects` builds what is sent, `operator` talks to the API server, `load` runs on the nodes.
#![forbid(unsafe_code)]

pub mod dataset;
pub mod gates;
pub mod load;
pub mod metrics;
pub mod objects;
pub mod observe;
pub mod operator;
pub mod place;
pub mod plan;
