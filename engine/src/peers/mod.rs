//! Blocks kept for each other by the ranks of a job: who they are, how they trust each other, and what of memory they take.
//!
//! Every rank serves what its caches hold, at its own address of the setting `peers` ([`server`]); its shards ask the others as they ask the
//! bucket. Beyond this machine both sides show a certificate of the job's authority; a shared secret in the header goes with it or, on one
//! machine, without.

mod server;

use crate::config::Config;
use crate::names::addresses_of;
use crate::serve::HttpServer;
use fuelrail_base::limits::{SAMPLE_ALIGN, TLS_SCRATCH_BYTES_MIN};
use fuelrail_base::{Error, Kind, Result};
use fuelrail_flow::{Objects, PeerLink, PeerRoom, PeerRoute, PeerSetup, Server, peer_queue};
use fuelrail_plan::order::OrderName;
use fuelrail_plan::planner::Homes;
use fuelrail_plan::run::Run;
use fuelrail_wire::tls::{Client, Identity, Roots, Trust};
use fuelrail_wire::{Endpoint, Scheme, uri::expand};
use rustls::time_provider::DefaultTimeProvider;
use server::Listening;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

/// Connections of a shard to all other ranks, …
const CONNECTIONS: usize = 64;
/// … and to each of them.
const CONNECTIONS_EACH: core::ops::RangeInclusive<usize> = 2..=16;
/// Blocks that a shard serves at a time, where its part of the memory has room.
const SLOTS: core::ops::RangeInclusive<u64> = 2..=64;
/// Connections of another rank, over all its shards, that are served at most.
const CONNECTIONS_MAX: usize = 1024;
/// Of a shard's memory, slots for other ranks take one part in so many.
const SLOTS_SHARE: u64 = 16;

/// Serves other ranks, on a thread of its own.
pub(crate) type PeerServer = HttpServer;

/// Starts the server, once all shards have started.
pub(crate) type StartServer = Box<dyn FnOnce() -> Result<PeerServer>>;

/// What a rank knows of the others.
pub(crate) struct Peers {
    pub(crate) homes: Homes,
    pub(crate) room: PeerRoom,
    links: Vec<Option<PeerLink>>,
    listening: Listening,
}

impl Peers {
    /// The other ranks of this run, if blocks are kept for each other. Listens already: who asks early waits.
    ///
    /// # Errors
    /// `Usage` for settings that contradict each other or would serve blocks to anybody, `File` for files that cannot be read, `Network`
    /// for addresses that cannot be found, `Environment` for one that cannot be listened at.
    pub(crate) fn of(config: &Config, objects: &Objects, run: &Run, fingerprint: &str) -> Result<Option<Peers>> {
        let addresses = expanded(&config.peers.addresses)?;
        if addresses.is_empty() {
            return Ok(None);
        }
        let ranks = allowed(config, &addresses)?;
        let (rank, catalog) = (config.rank as u16, objects.catalog());
        let trust = Shown::read(config)?;
        // Another data set, or other blocks of it, are other paths.
        let prefix = format!("/v1/{fingerprint}-{:x}", catalog.block_bytes());
        let route = PeerRoute::new(prefix.clone(), trust.secret.clone());
        let link = |(at, address): (usize, &String)| {
            if at == usize::from(rank) {
                return Ok(None);
            }
            let endpoint: Endpoint = format!("{}://{address}/peer", trust.scheme().word()).parse()?;
            let tls = trust.client(&endpoint)?;
            let addresses = addresses_of(&endpoint, None)?;
            let found = addresses.addresses();
            if let Some(beyond) = found.iter().find(|address| tls.is_none() && !address.ip().is_loopback()) {
                return Err(unprotected(beyond));
            }
            Ok(Some(PeerLink { server: Server::new(endpoint, addresses, tls), route: route.clone() }))
        };
        let links = addresses.iter().enumerate().map(|(at, address)| {
            link((at, address)).map_err(|error: Error| error.within(format_args!("peers: {address}")))
        });
        let links = links.collect::<Result<Vec<_>>>()?;
        let own = config.peers.listen.as_deref().unwrap_or(&addresses[usize::from(rank)]);
        let listening = Listening::at(own, prefix, &trust)?;
        let room = room(config, objects, usize::from(ranks) - 1, trust.scheme());
        Ok(Some(Peers { homes: Homes::new((rank, ranks), run.order()), room, links, listening }))
    }

    /// What each of so many shards starts with, and the server, once all of them have started.
    pub(crate) fn share_out(self, shards: u16, objects: &Arc<Objects>, run: &Run) -> (Vec<PeerSetup>, StartServer) {
        let Peers { room, links, listening, .. } = self;
        let moments = run.config().epochs.saturating_mul(run.config().samples);
        let (outboxes, inboxes): (Vec<_>, Vec<_>) = (0..shards).map(|_| peer_queue(room.slots)).unzip();
        let setups = inboxes.into_iter().map(|inbox| PeerSetup { links: links.clone(), inbox }).collect();
        let (objects, connections) = (Arc::clone(objects), links.len() * CONNECTIONS_MAX);
        (setups, Box::new(move || listening.serve((objects, moments), outboxes, connections)))
    }
}

/// The addresses, with what their braces stand for.
fn expanded(addresses: &[String]) -> Result<Vec<String>> {
    let all = addresses.iter().map(|address| expand(address).map_err(|error| error.within("peers")));
    Ok(all.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
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
    let most = || Error::new(Kind::Usage, format!("{world} ranks keep blocks for each other, and 32 767 can"));
    u16::try_from(world).ok().filter(|ranks| *ranks < 1 << 15).ok_or_else(most)
}

fn unprotected(address: &SocketAddr) -> Error {
    Error::new(Kind::Usage, format!("{address} is beyond this machine, and peers use no TLS")).with_hint(
        "set peer_ca_file, peer_cert_file and peer_key_file, to certificates of an authority of the job's own",
    )
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
        scratch_bytes: match scheme {
            Scheme::Https => TLS_SCRATCH_BYTES_MIN,
            _ => *fuelrail_flow::scratch_bytes(scheme).start() as usize,
        },
        slots: (share / slot_bytes).clamp(*SLOTS.start(), *SLOTS.end()) as usize,
        slot_bytes: slot_bytes as usize,
    }
}

/// What a rank shows the others, and wants to be shown.
pub(crate) struct Shown {
    secret: Option<Arc<str>>,
    tls: Option<(Roots, Identity)>,
}

impl Shown {
    fn read(config: &Config) -> Result<Shown> {
        let peers = &config.peers;
        let secret = peers.secret_file.as_deref().map(|path| read("peer_secret_file", path)).transpose()?;
        let secret = secret.map(|bytes| secret_of(&bytes)).transpose()?;
        let tls = match (&peers.ca_file, &peers.cert_file, &peers.key_file) {
            (None, None, None) => None,
            (Some(ca), Some(cert), Some(key)) => {
                let roots = Roots::from_pem(&read("peer_ca_file", ca)?).map_err(|e| e.within("peer_ca_file"))?;
                let (cert, key) = (read("peer_cert_file", cert)?, read("peer_key_file", key)?);
                Some((
                    roots,
                    Identity::from_pem(&cert, &key).map_err(|e| e.within("peer_cert_file and peer_key_file"))?,
                ))
            }
            _ => {
                let cause = "peer_ca_file, peer_cert_file and peer_key_file are not all set";
                let hint =
                    "set all three: each rank shows a certificate of the job's authority, and wants to be shown one";
                return Err(Error::new(Kind::Usage, cause).with_hint(hint));
            }
        };
        if secret.is_none() && tls.is_none() {
            let hint = "set peer_secret_file, to a file with the same secret for all ranks; beyond one machine, set also peer_ca_file, peer_cert_file and peer_key_file";
            return Err(
                Error::new(Kind::Usage, "peers would serve blocks to everybody on this machine").with_hint(hint)
            );
        }
        Ok(Shown { secret, tls })
    }

    fn scheme(&self) -> Scheme {
        if self.tls.is_some() { Scheme::Https } else { Scheme::Http }
    }

    fn client(&self, endpoint: &Endpoint) -> Result<Option<Client>> {
        let Some((roots, identity)) = &self.tls else { return Ok(None) };
        let (trust, clock) = (Trust::Roots(roots.clone()), Arc::new(DefaultTimeProvider));
        Client::showing(&endpoint.host, trust, Some(identity), clock).map(Some)
    }
}

fn read(setting: &str, path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|e| Error::from_io(Kind::File, format_args!("{setting}: {}", path.display()), &e))
}

/// The secret of a file: its text, without the end of the line.
fn secret_of(bytes: &[u8]) -> Result<Arc<str>> {
    let text = core::str::from_utf8(bytes).map_or("", str::trim_end);
    if text.len() < SECRET_BYTES_MIN || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        let cause =
            format!("peer_secret_file: a secret is a line of at least {SECRET_BYTES_MIN} visible ASCII characters");
        return Err(Error::new(Kind::Usage, cause).with_hint("write one: openssl rand -hex 32 > FILE; chmod 600 FILE"));
    }
    Ok(text.into())
}

const SECRET_BYTES_MIN: usize = 16;
