//! All integration tests of this crate, in one program: one link instead of one a file.

mod canary;
mod conformance;
mod fork;
mod glommio;
mod heap;
mod ledger;
mod local;
mod loopback;
mod probe;
mod read_pins;
mod sim;
mod sim_disk;
#[path = "../../tests/common/skip.rs"]
mod skip;
mod slots;
mod steps;
mod tokio_uring;
mod uring;
