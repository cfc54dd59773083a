//! What a TLS peer, or an attacker on the network path, may do in the middle of a body: change keys, say goodbye, cut, forge.
//!
//! The server here is scripted record by record around a rustls server, so that the loader meets each event at a known place.

use crate::common::secure::{Authority, named};
use crate::common::{drain, listing, loader_at};
use fuelrail::{Error, Kind, LoaderBuilder, Stats};
use fuelrail_bucket::{DataSet, Tls};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// What happens in the middle of a body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Event {
    /// The server changes its key and wants ours changed.
    KeyUpdate,
    /// The server announces the end of the connection and closes.
    Goodbye,
    /// The stream ends at a record's boundary, without close_notify.
    Cut,
    /// The stream ends inside a record.
    CutInside,
    /// A bit of the next record flips.
    Flip,
    /// A record comes that is longer than allowed.
    Oversize,
    /// An unencrypted alert is injected.
    ForgedAlert,
    /// A record is left out.
    Dropped,
    /// A record comes twice.
    Replayed,
}

const EVENTS: [Event; 9] = [
    Event::KeyUpdate,
    Event::Goodbye,
    Event::Cut,
    Event::CutInside,
    Event::Flip,
    Event::Oversize,
    Event::ForgedAlert,
    Event::Dropped,
    Event::Replayed,
];

/// A server of one data set over TLS whose first bodies meet an event each.
struct Origin {
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    config: Arc<ServerConfig>,
    set: DataSet,
    event: Event,
    /// Bodies that will still meet the event.
    due: AtomicU64,
    /// Whether bodies end with their connection instead of at their length, and whether that end is announced.
    until_close: Option<bool>,
    stop: AtomicBool,
    connections: Mutex<Vec<(TcpStream, JoinHandle<()>)>>,
}

impl Origin {
    fn start(authority: &Authority, set: &DataSet, event: Event, due: u64, until_close: Option<bool>) -> Origin {
        let Tls::Files { certificate, key } = authority.sign_as(&format!("{event:?}"), &named(&["127.0.0.1"])) else {
            panic!("the authority writes files");
        };
        let chain = vec![CertificateDer::from_pem_file(certificate).unwrap()];
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let config = config.with_no_client_auth();
        let config = config.with_single_cert(chain, PrivateKeyDer::from_pem_file(key).unwrap()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            config: Arc::new(config),
            set: set.clone(),
            event,
            due: AtomicU64::new(due),
            until_close,
            stop: AtomicBool::new(false),
            connections: Mutex::default(),
        });
        let serving = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            for tcp in listener.incoming() {
                let Ok(tcp) = tcp else { continue };
                if serving.stop.load(Ordering::Acquire) {
                    return;
                }
                let (own, shared) = (tcp.try_clone().unwrap(), Arc::clone(&serving));
                // A loader that goes away in the middle of an answer ends it with an error that does not matter.
                let thread = std::thread::spawn(move || drop(shared.serve(tcp)));
                serving.connections.lock().unwrap().push((own, thread));
            }
        });
        Origin { address, shared, thread: Some(thread) }
    }

    fn loader(&self, authority: &Authority) -> LoaderBuilder {
        let builder = loader_at(&format!("https://{}/", self.address)).ca_file(authority.file());
        builder.listing(listing(&self.shared.set)).batch_size(1).shuffle(false).connections_max(1).attempts_max(3)
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        // Wakes the listener.
        drop(TcpStream::connect(self.address));
        self.thread.take().unwrap().join().unwrap();
        for (tcp, thread) in self.shared.connections.lock().unwrap().drain(..) {
            let _ = tcp.shutdown(std::net::Shutdown::Both);
            thread.join().unwrap();
        }
    }
}

impl Shared {
    fn serve(&self, mut tcp: TcpStream) -> std::io::Result<()> {
        let mut tls = ServerConnection::new(Arc::clone(&self.config)).unwrap();
        let mut asked = Vec::new();
        loop {
            let Some(at) = asked.windows(4).position(|four| four == b"\r\n\r\n") else {
                tls.complete_io(&mut tcp)?;
                let mut text = [0; 4096];
                match tls.reader().read(&mut text) {
                    Ok(0) => return Ok(()),
                    Ok(bytes) => asked.extend_from_slice(&text[..bytes]),
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error),
                }
                continue;
            };
            let request = String::from_utf8(asked.drain(..at + 4).collect()).unwrap();
            if !self.answer(&request, &mut tls, &mut tcp)? {
                return Ok(());
            }
        }
    }

    /// False when the connection is over.
    fn answer(&self, request: &str, tls: &mut ServerConnection, tcp: &mut TcpStream) -> std::io::Result<bool> {
        let key = request.split(' ').nth(1).unwrap().trim_start_matches('/').to_owned();
        let index = (0..self.set.len()).find(|&i| self.set.key(i) == key).expect("only listed keys are asked for");
        let content = self.set.content(index);
        let range = request.lines().find_map(|line| line.strip_prefix("Range: bytes=")).map(|range| {
            let (first, last) = range.split_once('-').unwrap();
            (first.parse::<usize>().unwrap(), last.parse::<usize>().unwrap())
        });
        let body = range.map_or(&content[..], |(first, last)| &content[first..=last]);
        let mut head = match range {
            None => "HTTP/1.1 200 OK\r\n".to_owned(),
            Some((first, last)) => {
                format!("HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {first}-{last}/{}\r\n", content.len())
            }
        };
        head += &match self.until_close {
            Some(_) => "Connection: close\r\n\r\n".to_owned(),
            None => format!("Content-Length: {}\r\n\r\n", body.len()),
        };
        tls.writer().write_all(head.as_bytes())?;
        let (before, after) = body.split_at(body.len() / 2);
        write(tls, tcp, before)?;
        let meets = self.due.fetch_update(Ordering::AcqRel, Ordering::Acquire, |due| due.checked_sub(1)).is_ok();
        if meets && !self.happen(after, tls, tcp)? {
            tcp.shutdown(std::net::Shutdown::Write)?;
            return Ok(false);
        }
        if !meets {
            write(tls, tcp, after)?;
        }
        match self.until_close {
            None => Ok(true),
            Some(announced) => {
                if announced {
                    tls.send_close_notify();
                    write(tls, tcp, &[])?;
                }
                tcp.shutdown(std::net::Shutdown::Write)?;
                Ok(false)
            }
        }
    }

    /// Sends the rest of a body with the event in front of it; false when the connection is over then.
    fn happen(&self, rest: &[u8], tls: &mut ServerConnection, tcp: &mut TcpStream) -> std::io::Result<bool> {
        if self.event == Event::KeyUpdate {
            tls.refresh_traffic_keys().unwrap();
            write(tls, tcp, rest)?;
            return Ok(true);
        }
        if self.event == Event::Goodbye {
            tls.send_close_notify();
            write(tls, tcp, &[])?;
            return Ok(false);
        }
        let mut records = sealed(tls, rest);
        let first = 5 + usize::from(u16::from_be_bytes([records[3], records[4]]));
        match self.event {
            Event::Cut => records.clear(),
            Event::CutInside => records.truncate(first - 1),
            Event::Flip => records[first / 2] ^= 4,
            Event::Oversize => records = [23, 3, 3, 0x41, 1].into_iter().chain(records).collect(),
            Event::ForgedAlert => records = [21, 3, 3, 0, 2, 1, 0].into_iter().chain(records).collect(),
            Event::Dropped => drop(records.drain(..first)),
            Event::Replayed => records = [&records[..first], &records].concat(),
            Event::KeyUpdate | Event::Goodbye => unreachable!("done above"),
        }
        tcp.write_all(&records)?;
        Ok(!matches!(self.event, Event::Cut | Event::CutInside))
    }
}

/// Seals `bytes` and sends everything that is due.
fn write(tls: &mut ServerConnection, tcp: &mut TcpStream, bytes: &[u8]) -> std::io::Result<()> {
    tcp.write_all(&sealed(tls, bytes))
}

fn sealed(tls: &mut ServerConnection, bytes: &[u8]) -> Vec<u8> {
    let mut records = Vec::new();
    let flush = |tls: &mut ServerConnection, records: &mut Vec<u8>| {
        while tls.wants_write() {
            tls.write_tls(records).expect("memory takes everything");
        }
    };
    for piece in bytes.chunks(16 << 10) {
        tls.writer().write_all(piece).expect("its buffer was emptied");
        flush(tls, &mut records);
    }
    flush(tls, &mut records);
    records
}

/// A set of objects of many records each.
fn set() -> DataSet {
    DataSet::volumes(2, 4, 0.01)
}

fn run(authority: &Authority, event: Event) -> (Stats, u64) {
    let origin = Origin::start(authority, &set(), event, 1, None);
    let mut loader = origin.loader(authority).build().unwrap();
    let delivered = drain(&mut loader, &set()).unwrap_or_else(|e| panic!("{event:?}: {e}"));
    assert_eq!(delivered.order, [(0, 0), (0, 1)], "{event:?}");
    (loader.stats(), origin.shared.due.load(Ordering::Acquire))
}

#[test]
fn events_in_the_middle_of_a_body_cost_an_attempt_at_most_and_never_a_byte() {
    let authority = Authority::new("edges");
    for event in EVENTS {
        let (stats, due) = run(&authority, event);
        assert_eq!(due, 0, "{event:?} did not happen");
        let failures = u64::from(event != Event::KeyUpdate);
        assert_eq!((stats.retries, stats.connections_failed), (failures, failures), "{event:?}: {stats:?}");
        let total = set().total_bytes();
        match event {
            // What came before was genuine, and is kept.
            Event::KeyUpdate | Event::Goodbye | Event::Cut | Event::CutInside => {
                assert_eq!(stats.landed_bytes, total, "{event:?}: {stats:?}");
            }
            // Earlier bytes of a tampered connection are not trusted either.
            _ => assert!(stats.landed_bytes >= total, "{event:?}: {stats:?}"),
        }
    }
}

/// The error of a run whose every body meets the event.
fn failed(event: Event, until_close: Option<bool>) -> Error {
    let authority = Authority::new("edges");
    let origin = Origin::start(&authority, &set(), event, u64::MAX, until_close);
    let mut loader = origin.loader(&authority).build().unwrap();
    drain(&mut loader, &set()).expect_err("no body comes whole")
}

#[test]
fn events_without_end_are_named() {
    for (event, kind, says) in [
        (Event::Flip, Kind::Protocol, "failed authentication"),
        (Event::Dropped, Kind::Protocol, "failed authentication"),
        (Event::Replayed, Kind::Protocol, "failed authentication"),
        (Event::Oversize, Kind::Protocol, "longer than allowed"),
        (Event::ForgedAlert, Kind::Protocol, "where a TLS record was expected"),
    ] {
        let error = failed(event, None);
        assert!(error.kind() == kind && error.to_string().contains(says), "{event:?}: {error}");
        assert!(error.to_string().contains("after 3 attempts"), "{error}");
    }
}

/// A ServerHello in records of one byte each: what rustls wants to see whole outgrows the connection's memory.
#[test]
fn a_handshake_in_crumbs_is_an_error() {
    let set = set();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let message = [2, 0, 0xff, 0xff].into_iter().chain(std::iter::repeat_n(0, 0xffff));
        let crumbs: Vec<u8> = message.flat_map(|byte| [22, 3, 3, 0, 1, byte]).collect();
        let (mut tcp, _) = listener.accept().unwrap();
        // The loader hangs up in the middle.
        let _ = tcp.write_all(&crumbs);
        let _ = std::io::copy(&mut tcp, &mut std::io::sink());
    });
    let authority = Authority::new("edges");
    let builder = loader_at(&format!("https://{address}/")).ca_file(authority.file()).listing(listing(&set));
    let error = builder.attempts_max(1).connections_max(1).build().unwrap().next_batch().unwrap().unwrap_err();
    assert!(error.kind() == Kind::Protocol && error.to_string().contains("TLS handshake message is larger"), "{error}");
    server.join().unwrap();
}

/// Without a length only TLS tells an end from a cut; the listing's length is what a body is held to in the end.
#[test]
fn a_body_that_ends_with_its_connection_is_resumed_when_it_was_cut() {
    let set = set();
    for (event, due, announced) in [(Event::KeyUpdate, 0, true), (Event::KeyUpdate, 0, false), (Event::Cut, 1, true)] {
        let own = Authority::new("edges");
        let origin = Origin::start(&own, &set, event, due, Some(announced));
        let mut loader = origin.loader(&own).build().unwrap();
        assert_eq!(drain(&mut loader, &set).unwrap().order.len(), 2);
        assert_eq!(loader.stats().retries, due, "{event:?} {announced}");
    }
    let error = failed(Event::Cut, Some(false));
    assert!(error.kind() == Kind::Truncated && error.to_string().contains("was cut"), "{error}");
}
