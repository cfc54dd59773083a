//! The operator's tests: the decisions in simulated clusters, the program against a fake API server, the manifests, the commands that run
//! on nodes.
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
