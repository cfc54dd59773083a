//! Blocks kept for each other by the ranks of a job: who they are, how they trust each other, and what of memory they take.
//!
//! Every rank serves what its caches hold, at its own address of the setting `peers` ([`server`]); its shards request blocks of the others as
//! they do of the bucket. Beyond this machine both sides show a certificate of the job's authority; a shared secret in the header goes with it or, on one
//! machine, without.

mod former;
mod leaving;
mod server;
mod trust;
mod watching;

use crate::client::Ask;
use crate::config::Config;
use crate::names::Names;
use crate::proxy::Route;
use crate::ranks::HandOver;
use crate::serve::HttpServer;
use crate::spill::Directory;
use crate::system::no_thread;
use crate::watch::Report;
use core::fmt::Display;
use former::Lists;
use fuelrail_base::limits::SAMPLE_ALIGN;
use fuelrail_base::prng::mix64;
use fuelrail_base::units::ByteSize;
use fuelrail_base::{Error, Kind, Result, SampleId};
use fuelrail_flow::{Objects, PeerLink, PeerRoom, PeerRoute, PeerSetup, Server, peer_queue, scratch_bytes};
use fuelrail_io::open_files_max;
use fuelrail_plan::homes::Homes;
use fuelrail_plan::order::OrderName;
use fuelrail_plan::run::{Cursor, Run};
use fuelrail_plan::schedule::UseTime;
use fuelrail_wire::{Endpoint, Scheme, uri::expand};
use hyper::Method;
use server::Listening;
use std::collections::HashMap;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Builder;
use std::time::{Duration, Instant};
use trust::{NAMED_MAX, Shown, unprotected};

/// Connections of a shard to all other ranks, about, …
const CONNECTIONS: usize = 128;
/// … and to each of them at most: among a thousand, few blocks at a time have the same home.
const CONNECTIONS_EACH_MAX: usize = 16;
/// Blocks that a shard serves at a time, where its part of the memory has room. One place is for blocks that are held.
const SLOTS: core::ops::RangeInclusive<u64> = 3..=64;
/// Lookups of ranks' names at a time.
const LOOKUPS: usize = 16;
const LOOKUP: &str = "fuelrail-lookup";
/// How long ranks that do not listen yet are waited for.
const START_PATIENCE: Duration = Duration::from_secs(5);
/// Connections of another rank, over all its shards, that are served at most.
const CONNECTIONS_MAX: usize = 1024;
/// Of the files and sockets that this process may have open, those of other ranks are at most one in so many: the program wants some, too.
const FILES_SHARE: u64 = 4;
/// Of a shard's memory, slots for other ranks take one part in so many.
const SLOTS_SHARE: u64 = 16;

/// Serves other ranks, on a thread of its own, looks after those that are down, and hands over to them.
pub(crate) struct PeerServer {
    _server: HttpServer,
    others: Arc<Others>,
}

/// The other ranks, as the control plane asks them.
struct Others {
    homes: Homes,
    /// By rank; this one's own place is empty.
    routes: Vec<Option<Route>>,
    asks: PeerRoute,
    objects: Arc<Objects>,
    run: Run,
    /// Whether others of its node are ranks, too, and leave with it.
    shares_node: bool,
    /// This rank serves nothing any more.
    closed: AtomicBool,
}

impl Others {
    /// A request about a sample that is used at a moment.
    fn ask(&self, method: Method, sample: SampleId, at: UseTime, more: impl Display) -> Ask {
        let mut path = String::new();
        self.asks.push_path(&mut path, sample, at);
        self.authorised(Ask::new(method, format!("{path}{more}")))
    }

    fn authorised(&self, ask: Ask) -> Ask {
        match self.asks.bearer() {
            Some(bearer) => ask.header("authorization", format!("Bearer {bearer}")),
            None => ask,
        }
    }
}

impl PeerServer {
    /// Has the other ranks fetch what this one keeps and anybody uses from `from` on, for so long.
    pub(crate) fn handing_over(&self, from: Cursor) -> impl FnOnce(Duration) -> Result<HandOver> + Send + use<> {
        let others = Arc::clone(&self.others);
        move |within| others.hand_over(from, within)
    }
}

/// What is being handed over cannot be had any more.
impl Drop for PeerServer {
    fn drop(&mut self) {
        self.others.closed.store(true, Ordering::Relaxed);
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
    /// Which ranks earlier runs had, where homes follow from that and this rank has a disk.
    lists: Option<Lists>,
    shares_node: bool,
    /// What each of the others is sent at most, bytes a second.
    rate_limit: Option<ByteSize>,
    /// Takes notices while the run goes on.
    report: Arc<Report>,
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
        disk: Option<&Directory>,
        (notices, report): (&mut Vec<String>, &Arc<Report>),
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
        let (links, names) = resolve(&addresses, usize::from(rank), &trust, &route)?;
        // Without TLS only the addresses checked above are trusted: a name is not looked up again.
        if trust.scheme() == Scheme::Https {
            names.keep()?;
        }
        let (links, found): (Vec<_>, Vec<_>) = links.into_iter().map(Option::unzip).unzip();
        let own = config.peers.listen.as_deref().unwrap_or(&addresses[usize::from(rank)]);
        let listening = Listening::at(own, prefix, &trust)?;
        let room = room(config, objects, usize::from(ranks) - 1, trust.scheme());
        notices.extend(late(&absent(found.into_iter().flatten().collect()), &addresses));
        notices.extend(too_many(open_files_max(), usize::from(ranks) - 1, connections_each_min(config)));
        let rate_limit = config.peers.rate_limit;
        let names = named(&nodes);
        let homes = Homes::new(rank, &names, run.order());
        let disk = disk.filter(|_| run.order().home(SampleId(0), ranks).is_some());
        let lists = disk.map(|disk| Lists::read(disk, fingerprint, (run.config().seed, names), notices));
        lists.iter().for_each(|lists| homes.remember(lists.former()));
        let shares_node = nodes.iter().filter(|node| **node == nodes[usize::from(rank)]).count() > 1;
        let report = Arc::clone(report);
        Ok(Some(Peers { homes, room, links, listening, asks: route, lists, shares_node, rate_limit, report }))
    }

    /// What each of so many shards starts with, and the server, once all of them have started.
    pub(crate) fn share_out(self, shards: u16, objects: &Arc<Objects>, run: &Run) -> (Vec<PeerSetup>, StartServer) {
        let Peers { homes, room, links, listening, asks, lists, shares_node, rate_limit, report } = self;
        let moments = run.config().epochs.saturating_mul(run.config().samples);
        let (outboxes, inboxes): (Vec<_>, Vec<_>) = (0..shards).map(|_| peer_queue(room.slots)).unzip();
        let (links, routes): (Vec<_>, Vec<_>) = links.into_iter().map(Option::unzip).unzip();
        let setups = inboxes.into_iter().map(|inbox| PeerSetup { links: links.clone(), inbox }).collect();
        let connections = (links.len() * CONNECTIONS_MAX).min(served_max(open_files_max()));
        let (objects, limits) = (Arc::clone(objects), (connections, rate_limit));
        let run = run.clone();
        let start = move || {
            let served = (Arc::clone(&objects), moments, homes.clone());
            let closed = AtomicBool::new(false);
            let others = Arc::new(Others { homes, routes, asks, objects, run, shares_node, closed });
            let (watching, tell) = (Arc::clone(&others), Arc::clone(&report));
            lists.iter().filter_map(Lists::keep).for_each(|line| report(&line));
            let told = lists.as_ref().map(Lists::told);
            let watch = async move || _ = tokio::join!(watching.watch(&*tell), watching.learn(lists.as_ref()));
            let _server = listening.serve(served, (outboxes, report, told), limits, watch)?;
            Ok(PeerServer { _server, others })
        };
        (setups, Box::new(start))
    }
}

/// Another rank: how shards and the control plane send it requests, its number and its addresses.
type Linked = ((PeerLink, Route), (usize, Arc<[SocketAddr]>));

/// Resolves one rank, whose number is `at`, and adds its name to `names`.
fn link(names: &mut Names, at: usize, address: &str, trust: &Shown, route: &PeerRoute) -> Result<Linked> {
    let endpoint: Endpoint = format!("{}://{address}/peer", trust.scheme().word()).parse()?;
    let tls = trust.client(&endpoint)?;
    let addresses = names.addresses_of(&endpoint, None)?;
    let found = addresses.addresses();
    if let Some(beyond) = found.iter().find(|address| tls.is_none() && !address.ip().is_loopback()) {
        return Err(unprotected(beyond));
    }
    // The address that was checked, not its name.
    let direct = if tls.is_some() { endpoint.clone() } else { format!("http://{}/peer", found[0]).parse()? };
    let control = Route { tls: tls.clone(), ..Route::new(direct) };
    let link = PeerLink { server: Server::new(endpoint, addresses, tls), route: route.clone() };
    Ok(((link, control), (at, found)))
}

/// Resolves all ranks but `own`, on several threads: a lookup takes milliseconds, and there may be a thousand.
fn resolve(addresses: &[String], own: usize, trust: &Shown, route: &PeerRoute) -> Result<(Vec<Option<Linked>>, Names)> {
    let all: Vec<(usize, &String)> = addresses.iter().enumerate().collect();
    let some = |part: &[(usize, &String)]| -> Result<(Vec<Option<Linked>>, Names)> {
        let (mut names, mut links) = (Names::default(), Vec::with_capacity(part.len()));
        for &(at, address) in part {
            let linked = (at != own).then(|| link(&mut names, at, address, trust, route)).transpose();
            links.push(linked.map_err(|error| error.within(format_args!("peers: {address}")))?);
        }
        Ok((links, names))
    };
    std::thread::scope(|scope| {
        let start = |part| {
            let spawned = Builder::new().name(LOOKUP.into()).spawn_scoped(scope, move || some(part));
            spawned.map_err(|e| no_thread(LOOKUP, &e))
        };
        let parts = all.chunks(all.len().div_ceil(LOOKUPS)).map(start).collect::<Result<Vec<_>>>()?;
        let (mut links, mut names) = (Vec::with_capacity(all.len()), Names::default());
        for part in parts {
            let (more, found) = part.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            links.extend(more);
            names.join(found);
        }
        Ok((links, names))
    })
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

/// What is said of ranks that do not listen yet.
fn late(ranks: &[usize], addresses: &[String]) -> Vec<String> {
    let line =
        |who: &dyn Display| format!("peers: {who} not there yet: until then blocks come from the bucket instead");
    let one = |at: &usize| format!("rank {at} ({}) is", addresses[*at]);
    match ranks {
        [first, .., last] if ranks.len() > NAMED_MAX => {
            let (count, all) = (ranks.len(), addresses.len());
            let between = format_args!("between rank {first} ({}) and rank {last}", addresses[*first]);
            vec![line(&format_args!("{count} of {all} ranks, {between}, are"))]
        }
        _ => ranks.iter().map(|at| line(&one(at))).collect(),
    }
}

/// Connections of other ranks that are served at most, where so many files may be open.
fn served_max(open_files: Option<u64>) -> usize {
    open_files.map_or(usize::MAX, |files| usize::try_from(files / FILES_SHARE).unwrap_or(usize::MAX))
}

/// Connections of a shard to each of the others at least. With disks one of them is left for blocks that are held (`Peers::former`).
fn connections_each_min(config: &Config) -> usize {
    if config.disk.dirs.is_empty() { 1 } else { 2 }
}

/// A line where not even the fewest connections of each of the others can be served.
fn too_many(open_files: Option<u64>, others: usize, each: usize) -> Option<String> {
    let (served, wanted) = (served_max(open_files), others * each);
    (served < wanted).then(|| {
        format!(
            "peers: {others} other ranks open {wanted} connections to here, and {served} can be served, a quarter of the files that this \
             process may have open: raise that limit (ulimit -n) to {} for each shard of a rank",
            wanted as u64 * FILES_SHARE
        )
    })
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
    let mut of = HashMap::with_capacity(count);
    let twice = (0u32..).zip(addresses).find_map(|(rank, address)| Some((of.insert(address, rank)?, rank, address)));
    if let Some((first, second, address)) = twice {
        return usage(
            format!("peers: ranks {first} and {second} have the same address, {address}"),
            "give each rank an address of its own; several on a host have a port each",
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
    let each = (CONNECTIONS / others.max(1)).clamp(connections_each_min(config), CONNECTIONS_EACH_MAX);
    PeerRoom {
        connections: each * others,
        scratch_bytes: *scratch_bytes(scheme).start() as usize,
        slots: (share / slot_bytes).clamp(*SLOTS.start(), *SLOTS.end()) as usize,
        slot_bytes: slot_bytes as usize,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_ranks_that_are_not_there_are_named_and_many_are_counted() {
        let addresses: Vec<String> = (0..1_000).map(|rank| format!("node-{rank}:7070")).collect();
        let few = late(&[3, 7], &addresses);
        assert!(few.len() == 2 && few[1].contains("rank 7 (node-7:7070) is not there yet"), "{few:?}");
        let many = late(&(1..1_000).collect::<Vec<_>>(), &addresses);
        assert!(many.len() == 1 && many[0].contains("999 of 1000 ranks, between rank 1 (node-1:7070)"), "{many:?}");
        assert!(late(&[], &addresses).is_empty());
    }

    #[test]
    fn other_ranks_leave_descriptors_to_the_program() {
        assert_eq!((served_max(Some(1024)), served_max(None)), (256, usize::MAX));
        assert_eq!((too_many(Some(1024), 256, 1), too_many(None, 1_023, 2)), (None, None));
        let line = too_many(Some(1024), 255, 2).unwrap();
        assert!(line.contains("255 other ranks") && line.contains("and 256 can") && line.contains("to 2040"), "{line}");
    }
}
