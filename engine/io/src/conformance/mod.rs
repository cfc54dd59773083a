//! One suite for every back-end of [`Ring`](crate::Ring): what any ring must do, checked against peers that follow a script.
//!
//! A [`Venue`] is a place where rings of one kind meet such peers: real sockets on the loopback interface
//! ([`TcpPeers`]), or a simulated host ([`ScriptedHost`]). Each check gets a fresh venue and returns what it found
//! wrong; a check never blocks without a limit, so that a broken ring fails instead of hanging.

mod bytes;
mod files;
mod fork;
mod life;
mod loans;
mod opening;
mod peers;
mod scratch;
mod stage;
mod venue;
mod waking;

pub use fork::in_fork;
pub use peers::{ScriptedHost, TcpPeers};
pub use scratch::ScratchFiles;
pub use venue::{Check, Script, Venue, Verdict, recital};

/// All checks, by name.
#[must_use]
pub fn suite<V: Venue>() -> Vec<Check<V>> {
    let mut checks: Vec<Check<V>> = Vec::new();
    checks.extend(bytes::checks::<V>());
    checks.extend(files::checks::<V>());
    checks.extend(life::checks::<V>());
    checks.extend(loans::checks::<V>());
    checks.extend(opening::checks::<V>());
    checks.extend(waking::checks::<V>());
    checks
}
