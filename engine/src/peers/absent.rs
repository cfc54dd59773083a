//! Stands in for `peers` in a build without clouds: settings, and an error where they are used.

use crate::config::Config;
use crate::ranks::HandOver;
use crate::spill::Directory;
use crate::watch::Report;
use fuelrail_base::{Error, Kind, Result};
use fuelrail_flow::{Objects, PeerRoom, PeerSetup};
use fuelrail_plan::homes::Homes;
use fuelrail_plan::run::{Cursor, Run};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

/// Would start the server.
pub(crate) type StartServer = Box<dyn FnOnce() -> Result<PeerServer>>;

/// There are none.
pub(crate) struct Peers {
    pub(crate) homes: Homes,
    pub(crate) room: PeerRoom,
    never: Infallible,
}

/// There is none.
pub(crate) enum PeerServer {}

impl PeerServer {
    pub(crate) fn handing_over(&self, _: Cursor) -> fn(Duration) -> Result<HandOver> {
        match *self {}
    }
}

/// The real one has one, too, and is forgotten without it in a forked child.
impl Drop for PeerServer {
    fn drop(&mut self) {
        match *self {}
    }
}

impl Peers {
    pub(crate) fn of(
        config: &Config,
        _: (&Objects, &Run, &str),
        _: Option<&Directory>,
        _: (&mut Vec<String>, &Arc<Report>),
    ) -> Result<Option<Peers>> {
        if config.peers.addresses.is_empty() {
            return Ok(None);
        }
        Err(Error::new(Kind::Usage, "this build does not ask other ranks")
            .with_hint("build it with the feature `clouds`"))
    }

    pub(crate) fn share_out(self, _: u16, _: &Arc<Objects>, _: &Run) -> (Vec<PeerSetup>, StartServer) {
        match self.never {}
    }
}
