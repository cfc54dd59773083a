//! The operator's tests: the decisions in simulated clusters, the client against a stand-in of the API server, the manifests, the
//! program that runs on nodes.
#![forbid(unsafe_code)]

mod api;
mod manifests;
mod node;
mod observe;
mod operator;
mod plan;
mod simulated;

#[path = "../../../engine/tests/common/skip.rs"]
mod skip;
