//! Blocks kept for each other by the ranks of a job: who they are, how they trust each other, and what of memory they take.
//!
//! Every rank serves what its caches hold, at its own address of the setting `peers` ([`server`]); its shards request blocks of the others as
//! they do of the bucket. Beyond this machine both sides show a certificate of the job's authority; a shared secret in the header goes with it or, on one
//! machine, without.

mod leaving;
mod server;
mod trust;

use crate::config::Config;
use crate::names::Names;
use crate::proxy::Route;
use crate::ranks::HandOver;
use crate::serve::HttpServer;
use fuelrail_base::limits::SAMPLE_ALIGN;
use fuelrail_base::prng::mix64;
use fuelrail_base::units::ByteSize;
use fuelrail_base::{Error, Kind, Result};
use fuelrail_flow::{Objects, PeerLink, PeerRoom, PeerRoute, PeerSetup, Server, peer_queue, scratch_bytes};
use fuelrail_plan::homes::Homes;
use fuelrail_plan::order::OrderName;
use fuelrail_plan::run::{Cursor, Run};
use fuelrail_wire::{Endpoint, Scheme, uri::expand};
use leaving::Successors;
use server::Listening;
use std::collections::HashMap;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};
use trust::{Shown, unprotected};

/// Connections of a shard to all other ranks, …
const CONNECTIONS: usize = 64;
/// … and to each of them.
const CONNECTIONS_EACH: core::ops::RangeInclusive<usize> = 2..=16;
/// Blocks that a shard serves at a time, where its part of the memory has room.
const SLOTS: core::ops::RangeInclusive<u64> = 2..=64;
/// How long ranks that do not listen yet are waited for.
const START_PATIENCE: Duration = Duration::from_secs(5);
/// Connections of another rank, over all its shards, that are served at most.
const CONNECTIONS_MAX: usize = 1024;
/// Of a shard's memory, slots for other ranks take one part in so many.
const SLOTS_SHARE: u64 = 16;

/// Serves other ranks, on a thread of its own, and hands over to them.
pub(crate) struct PeerServer {
    _server: HttpServer,
    successors: Successors,
}

impl PeerServer {
    /// Has the other ranks fetch what this one keeps and anybody uses from `from` on, for so long.
    pub(crate) fn hand_over(&self, from: Cursor, within: Duration) -> Result<HandOver> {
        self.successors.hand_over(from, within)
    }
}

/// Starts the server, once all shards have started.
pub(crate) type StartServer = Box<dyn FnOnce() -> Result<PeerServer>>;

/// What a rank knows of the others.
pub(crate) struct Peers {
    pub(crate) homes: Homes,
    pub(crate) room: PeerRoom,
    links: Vec<Option<(PeerLink, Route)>>,
    listening: Listening,
    /// How all of them are asked.
    asks: PeerRoute,
    /// What each of the others is sent at most, bytes a second.
    rate_limit: Option<ByteSize>,
}

impl Peers {
    /// The other ranks of this run, if blocks are kept for each other. Its socket listens from here on, so that early requests wait in the
    /// backlog; ranks that start a little later are waited for.
    ///
    /// # Errors
    /// `Usage` for settings that contradict each other or would serve blocks to anybody, `File` for files that cannot be read, `Network`
    /// for addresses that cannot be found, `Environment` for one that cannot be listened at.
    pub(crate) fn of(
        config: &Config,
        (objects, run, fingerprint): (&Objects, &Run, &str),
        notices: &mut Vec<String>,
    ) -> Result<Option<Peers>> {
        let (nodes, addresses) = expanded(&config.peers.addresses)?;
        if addresses.is_empty() {
            return Ok(None);
        }
        let ranks = allowed(config, &addresses)?;
        let (rank, catalog) = (config.rank as u16, objects.catalog());
        let trust = Shown::read(config)?;
        // Another data set, or other blocks of it, are other paths.
        let prefix = format!("/v1/{fingerprint}-{:x}", catalog.block_bytes());
        let route = PeerRoute::new(prefix.clone(), trust.secret.clone());
        let mut names = Names::default();
        let mut link = |(at, address): (usize, &String)| {
            if at == usize::from(rank) {
                return Ok(None);
            }
            let endpoint: Endpoint = format!("{}://{address}/peer", trust.scheme().word()).parse()?;
            let tls = trust.client(&endpoint)?;
            let addresses = names.addresses_of(&endpoint, None)?;
            let found = addresses.addresses();
            if let Some(beyond) = found.iter().find(|address| tls.is_none() && !address.ip().is_loopback()) {
                return Err(unprotected(beyond));
            }
            // As below: not by its name.
            let direct = if tls.is_some() { endpoint.clone() } else { format!("http://{}/peer", found[0]).parse()? };
            let control = Route { tls: tls.clone(), ..Route::new(direct) };
            let link = PeerLink { server: Server::new(endpoint, addresses, tls), route: route.clone() };
            Ok(Some(((link, control), (at, found))))
        };
        let links = addresses.iter().enumerate().map(|(at, address)| {
            link((at, address)).map_err(|error: Error| error.within(format_args!("peers: {address}")))
        });
        let links = links.collect::<Result<Vec<_>>>()?;
        // Without TLS only the addresses checked above are trusted: a name is not looked up again.
        if trust.scheme() == Scheme::Https {
            names.keep()?;
        }
        let (links, found): (Vec<_>, Vec<_>) = links.into_iter().map(Option::unzip).unzip();
        let own = config.peers.listen.as_deref().unwrap_or(&addresses[usize::from(rank)]);
        let listening = Listening::at(own, prefix, &trust)?;
        let room = room(config, objects, usize::from(ranks) - 1, trust.scheme());
        let late = |at: usize| {
            format!(
                "peers: rank {at} ({}) is not there yet: until it is, its blocks come from the bucket",
                addresses[at]
            )
        };
        notices.extend(absent(found.into_iter().flatten().collect()).into_iter().map(late));
        let rate_limit = config.peers.rate_limit;
        let homes = Homes::new(rank, &named(&nodes), run.order());
        Ok(Some(Peers { homes, room, links, listening, asks: route, rate_limit }))
    }

    /// What each of so many shards starts with, and the server, once all of them have started.
    pub(crate) fn share_out(self, shards: u16, objects: &Arc<Objects>, run: &Run) -> (Vec<PeerSetup>, StartServer) {
        let Peers { homes, room, links, listening, asks, rate_limit } = self;
        let moments = run.config().epochs.saturating_mul(run.config().samples);
        let (outboxes, inboxes): (Vec<_>, Vec<_>) = (0..shards).map(|_| peer_queue(room.slots)).unzip();
        let (links, routes): (Vec<_>, Vec<_>) = links.into_iter().map(Option::unzip).unzip();
        let setups = inboxes.into_iter().map(|inbox| PeerSetup { links: links.clone(), inbox }).collect();
        let (objects, limits) = (Arc::clone(objects), (links.len() * CONNECTIONS_MAX, rate_limit));
        let run = run.clone();
        let start = move || {
            let _server = listening.serve((Arc::clone(&objects), moments, homes.clone()), outboxes, limits)?;
            Ok(PeerServer { _server, successors: Successors { homes, routes, asks, objects, run } })
        };
        (setups, Box::new(start))
    }
}

/// The ranks that do not listen yet, after a while.
fn absent(mut ranks: Vec<(usize, Arc<[SocketAddr]>)>) -> Vec<usize> {
    let end = Instant::now() + START_PATIENCE;
    let listens =
        |address: &SocketAddr| Instant::now() < end && TcpStream::connect_timeout(address, START_PATIENCE / 10).is_ok();
    loop {
        ranks.retain(|(_, addresses)| !addresses.iter().any(listens));
        if ranks.is_empty() || Instant::now() >= end {
            return ranks.into_iter().map(|(at, _)| at).collect();
        }
        std::thread::sleep(START_PATIENCE / 100);
    }
}

/// A name of each rank, as a hash: its node, and which of the ranks there it is. Ports may be others in the next run, and so may the order of
/// nodes; what lies on a node's disk is found again.
fn named(nodes: &[String]) -> Vec<u64> {
    let mut ranks_of = HashMap::new();
    let mut name = |node: &String| {
        let ranks = ranks_of.entry(node.clone()).or_insert(0);
        *ranks += 1;
        node.bytes().fold(*ranks, |hash, byte| mix64(hash ^ u64::from(byte)))
    };
    nodes.iter().map(&mut name).collect()
}

/// The node of each rank, which is its host unless it is named, and its address: with what braces stand for.
fn expanded(addresses: &[String]) -> Result<(Vec<String>, Vec<String>)> {
    let all = addresses.iter().map(|address| expand(address).map_err(|error| error.within("peers")));
    let node_and_address = |text: String| match text.split_once('=') {
        Some((node, address)) => (node.to_owned(), address.to_owned()),
        None => (text.rsplit_once(':').map_or(&*text, |(host, _)| host).to_owned(), text),
    };
    Ok(all.collect::<Result<Vec<_>>>()?.into_iter().flatten().map(node_and_address).unzip())
}

/// How many ranks there are, if the settings allow that they keep blocks for each other.
fn allowed(config: &Config, addresses: &[String]) -> Result<u16> {
    let usage = |cause: String, hint: &str| Err(Error::new(Kind::Usage, cause).with_hint(hint));
    let (world, count) = (config.world, addresses.len());
    if count != world as usize {
        let cause = format!("peers has {count} addresses, and there are {world} ranks");
        return usage(
            cause,
            "give one address for each rank, in the order of ranks; braces such as node-{0..3}:7070 stand for several",
        );
    }
    if config.order.name == OrderName::Chunks || config.order.mixture.is_some() || config.order.importance.is_some() {
        let cause = "peers with order = chunks, a mixture or importance".to_owned();
        return usage(cause, "ranks keep blocks for each other under the orders global and sticky");
    }
    if config.memory.cache_limit.0 == 0 && config.disk.dirs.is_empty() {
        let cause = "peers without a cache: ranks would have nothing for each other".to_owned();
        return usage(cause, "set cache_limit or spill_dirs");
    }
    if config.peers.rate_limit == Some(ByteSize(0)) {
        return usage(
            "peer_rate_limit is 0".to_owned(),
            "give bytes a second, such as 1GB, or leave it out for no limit",
        );
    }
    let most = || Error::new(Kind::Usage, format!("{world} ranks keep blocks for each other, and 32 767 can"));
    u16::try_from(world).ok().filter(|ranks| *ranks < 1 << 15).ok_or_else(most)
}

fn room(config: &Config, objects: &Objects, others: usize, scheme: Scheme) -> PeerRoom {
    let (catalog, shards) =
        (objects.catalog(), config.shards.map_or_else(|| config.topology().shards() as u64, u64::from));
    let (longest, ..) = catalog.block_lengths();
    let slot_bytes =
        (longest + 2 * catalog.batch_slack()).next_multiple_of(SAMPLE_ALIGN as u64).max(SAMPLE_ALIGN as u64);
    let share = config.memory_limit().0.0 / shards.max(1) / SLOTS_SHARE;
    let each = (CONNECTIONS / others.max(1)).clamp(*CONNECTIONS_EACH.start(), *CONNECTIONS_EACH.end());
    PeerRoom {
        connections: each * others,
        scratch_bytes: *scratch_bytes(scheme).start() as usize,
        slots: (share / slot_bytes).clamp(*SLOTS.start(), *SLOTS.end()) as usize,
        slot_bytes: slot_bytes as usize,
    }
}
