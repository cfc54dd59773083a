//! What a job and the process that reads say to each other: messages over a local socket, and what both must have set alike.
//!
//! A message is its length and that of its head (u32 each, little-endian), the head as JSON, and after it the table of a batch: four u64 for
//! each sample. It travels in packets, because a socket bounds those and not the samples of a batch.

use crate::config::Config;
use crate::loader::Parts;
use crate::state::state_at;
use crate::system::EMFILE;
use fuelrail_base::{Error, Kind, Result, SampleId};
use fuelrail_flow::{Assembled, SampleSpan};
use fuelrail_io::{LocalSocket, Received};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

/// The version spoken.
pub(super) const VERSION: u32 = 3;
/// Bytes of a packet: several fit into a socket's usual buffer of 208 KiB.
const PACKET_BYTES: usize = 48 << 10;
/// Bytes of the longest message.
const MESSAGE_BYTES_MAX: usize = 64 << 20;
/// Most samples of a batch whose message surely fits.
pub(super) const BATCH_SAMPLES_MAX: u32 = 1 << 20;
/// Of an error's text.
const TEXT_BYTES_MAX: usize = 2 << 10;

/// What a job says.
#[derive(Serialize, Deserialize, Debug)]
pub(super) enum ToReader {
    /// The first message: what decides its batches, and where it stands.
    Hello { version: u32, terms: Terms, epoch: u64, position: u64 },
    /// It has taken all of the batches that it was given, so many, and waits. It says so again while it hears nothing.
    Waits(u64),
    /// It has let go of the batch of this name.
    Released(u64),
    /// It takes no further batch.
    Leaves,
}

/// What the process that reads says.
#[derive(Serialize, Deserialize, Debug)]
pub(super) enum ToJob {
    /// The answer where nothing is in the way; and whether batches come decoded.
    Agreed { decodes: bool },
    /// The answer to a job that may not take part: an error of the caller's.
    Refused { cause: String, hint: String },
    /// No further batch comes, and why.
    Alone { why: String },
    /// The answer to a job that says again that it waits.
    Here,
    /// With the descriptor of the memory that batches lie in.
    Memory,
    /// A batch; the table of its samples follows.
    Batch(Head),
}

/// A batch, as it is handed to a job.
#[derive(Serialize, Deserialize, Debug)]
pub(super) struct Head {
    /// What it is released by.
    pub name: u64,
    pub epoch: u64,
    /// Its positions.
    pub from: u64,
    pub to: u64,
    /// Where its memory is.
    pub offset: u64,
    pub len: u64,
    pub left_out: Vec<LeftOut>,
}

/// A sample that could not be had.
#[derive(Serialize, Deserialize, Debug)]
pub(super) struct LeftOut {
    id: u64,
    kind: String,
    cause: String,
    object: Option<String>,
    hint: Option<String>,
}

impl LeftOut {
    fn of((id, error): &(SampleId, Error)) -> LeftOut {
        let short = |text: &str| text[..text.floor_char_boundary(TEXT_BYTES_MAX)].to_owned();
        LeftOut {
            id: id.0,
            kind: error.kind().word().into(),
            cause: short(error.cause()),
            object: error.object().map(short),
            hint: error.hint().map(short),
        }
    }

    pub(super) fn read(&self) -> (SampleId, Error) {
        let mut error = Error::new(self.kind.parse().unwrap_or(Kind::Mismatch), self.cause.as_str());
        error = self.object.iter().fold(error, |error, object| error.with_object(object.as_str()));
        error = self.hint.iter().fold(error, |error, hint| error.with_hint(hint.as_str()));
        (SampleId(self.id), error)
    }
}

/// Labels are u32.
const NO_LABEL: u64 = u64::MAX;

/// The message of a batch that lies `offset` bytes into the memory.
pub(super) fn batch_message(name: u64, batch: &Assembled, offset: u64) -> Arc<[u8]> {
    let left_out = batch.left_out.iter().map(LeftOut::of).collect();
    let (positions, len) = (&batch.spec.positions, batch.slot.len() as u64);
    let (from, to) = (positions.start, positions.end);
    let head = ToJob::Batch(Head { name, epoch: batch.spec.epoch, from, to, offset, len, left_out });
    let numbers = batch.samples.iter().flat_map(|placed| {
        [placed.id.0, placed.offset as u64, placed.len as u64, placed.label.map_or(NO_LABEL, u64::from)]
    });
    message(&head, &numbers.flat_map(u64::to_le_bytes).collect::<Vec<u8>>())
}

/// The samples of a batch's table; `None` where it is none.
pub(super) fn samples(table: &[u8]) -> Option<impl ExactSizeIterator<Item = SampleSpan> + '_> {
    let (rows, rest) = table.as_chunks::<32>();
    let number = |row: &[u8; 32], at: usize| u64::from_le_bytes(row.as_chunks::<8>().0[at]);
    rest.is_empty().then(|| {
        rows.iter().map(move |row| SampleSpan {
            id: SampleId(number(row, 0)),
            offset: usize::try_from(number(row, 1)).unwrap_or(usize::MAX),
            len: usize::try_from(number(row, 2)).unwrap_or(usize::MAX),
            label: u32::try_from(number(row, 3)).ok(),
        })
    })
}

pub(super) fn message(head: &impl Serialize, table: &[u8]) -> Arc<[u8]> {
    let head = serde_json::to_vec(head).expect("messages are plain structures");
    let bytes = 8 + head.len() + table.len();
    debug_assert!(bytes <= MESSAGE_BYTES_MAX, "a batch has at most {BATCH_SAMPLES_MAX} samples");
    let lengths = [bytes as u32, head.len() as u32].map(u32::to_le_bytes);
    [lengths.as_flattened(), &head, table].concat().into()
}

/// One side of a connection. Never waits.
#[derive(Debug)]
pub(super) struct Connection {
    pub socket: LocalSocket,
    packet: Box<[u8]>,
    /// What has come of the next message, and the descriptor that came with it.
    incoming: Vec<u8>,
    descriptor: Option<OwnedFd>,
    /// Messages to be sent, and how much of the first has been.
    outgoing: VecDeque<(Arc<[u8]>, Option<OwnedFd>)>,
    sent: usize,
}

/// What a connection has brought.
#[derive(Debug)]
pub(super) enum Heard<M> {
    /// A message, the bytes after its head, and its descriptor.
    Message(M, Vec<u8>, Option<OwnedFd>),
    Nothing,
    Closed,
}

impl Connection {
    pub(super) fn over(socket: LocalSocket) -> Connection {
        let (incoming, outgoing) = (Vec::new(), VecDeque::new());
        let packet = vec![0; PACKET_BYTES].into_boxed_slice();
        Connection { socket, packet, incoming, descriptor: None, outgoing, sent: 0 }
    }

    /// Sends a message, now or as soon as there is room. What the other side does not take because it has gone is found by
    /// [`hear`](Connection::hear).
    pub(super) fn say(&mut self, message: Arc<[u8]>, descriptor: Option<OwnedFd>) {
        self.outgoing.push_back((message, descriptor));
        self.flush();
    }

    /// Sends what waits for room, as far as there is.
    pub(super) fn flush(&mut self) {
        while let Some((message, descriptor)) = self.outgoing.front() {
            let packet = &message[self.sent..message.len().min(self.sent + PACKET_BYTES)];
            let with = descriptor.as_ref().filter(|_| self.sent == 0).map(AsFd::as_fd);
            match self.socket.send(packet, with) {
                Ok(true) => self.sent += packet.len(),
                Ok(false) => return,
                Err(_) => {
                    self.outgoing.clear();
                    self.sent = 0;
                    return;
                }
            }
            if self.sent == message.len() {
                self.outgoing.pop_front();
                self.sent = 0;
            }
        }
    }

    /// Messages wait for room.
    pub(super) fn is_stuck(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// The next message.
    ///
    /// # Errors
    /// `Protocol` for what is no message; `Environment` where no further file can be open for what comes with one.
    pub(super) fn hear<M: DeserializeOwned>(&mut self) -> Result<Heard<M>> {
        loop {
            let (bytes, descriptor) = match self.socket.receive(&mut self.packet) {
                Err(error) if error.raw_os_error() == Some(EMFILE) => {
                    let doing = "receiving a descriptor of the other process";
                    return Err(Error::from_io(Kind::Environment, doing, error)
                        .with_hint("raise the limit of open files (ulimit -n)"));
                }
                Err(error) => return Err(garbled(&error.to_string())),
                Ok(Received::Nothing) => return Ok(Heard::Nothing),
                Ok(Received::Closed) => return Ok(Heard::Closed),
                Ok(Received::Bytes(bytes, descriptor)) => (bytes, descriptor),
            };
            self.descriptor = descriptor.or(self.descriptor.take());
            self.incoming.extend_from_slice(&self.packet[..bytes]);
            let number = |at: usize| {
                let bytes = self.incoming.get(at..at + 4)?.try_into().ok()?;
                Some(u32::from_le_bytes(bytes) as usize)
            };
            let (Some(all), Some(head)) = (number(0), number(4)) else { return Err(garbled("it is cut")) };
            if all > MESSAGE_BYTES_MAX || self.incoming.len() > all {
                return Err(garbled("its length is not the one it states"));
            }
            if self.incoming.len() < all {
                continue;
            }
            let text = self.incoming.get(8..8 + head).ok_or_else(|| garbled("its head is longer than itself"))?;
            let message = serde_json::from_slice(text).map_err(|error| garbled(&error.to_string()))?;
            let rest = self.incoming[8 + head..].to_vec();
            self.incoming.clear();
            return Ok(Heard::Message(message, rest, self.descriptor.take()));
        }
    }
}

/// The error for a message that cannot be.
pub(super) fn garbled(cause: &str) -> Error {
    Error::new(Kind::Protocol, format!("a message of the other process: {cause}"))
        .with_hint("use the same version of fuelrail on both sides")
}

/// What decides a job's batches, by the names of settings.
pub(super) type Terms = BTreeMap<String, Value>;

/// What must be set alike; with a decoding reader what is decoded, too.
const ALIKE: [&str; 5] = ["batch_size", "rank", "world", "drop_last", "bad_samples"];
/// What follows from the listing.
pub(super) const LISTED: [&str; 3] = ["listing", "samples", "records"];
/// `fields` decides what is read of Parquet, and of other formats what comes with decoded samples.
const DECODED_FIELDS: &str = "fields with decode";

pub(super) fn terms(parts: &Parts) -> Terms {
    let Parts { config, run, fingerprint, records, .. } = parts;
    let state = state_at(run, fingerprint, None, run.config().start);
    let settings = Config::SETTINGS.iter().filter(|setting| ALIKE.contains(&setting.name) || is_decoding(setting.name));
    let settings = settings.map(|setting| (setting.name.to_owned(), (setting.get)(config)));
    let run = [
        ("samples", state.samples.into()),
        ("listing", state.listing.as_str().into()),
        ("seed", state.seed.into()),
        ("shuffle", state.shuffle.into()),
        ("order", state.order.as_str().into()),
        ("decode_with", config.decode.function.is_some().into()),
        ("fields", config.columns().into()),
        (DECODED_FIELDS, config.fields.as_slice().into()),
        ("records", records.as_ref().map(|records| records.digest()).into()),
    ];
    settings.chain(run.map(|(name, value): (_, Value)| (name.to_owned(), value))).collect()
}

/// Of no account where batches come as the bucket has them.
fn is_decoding(name: &str) -> bool {
    ["label_field", "side_cars", "records", DECODED_FIELDS].contains(&name)
        || name.starts_with("decode") && !["decode_threads", "decode_depth"].contains(&name)
}

/// What a job has set otherwise: cause and hint of its refusal.
pub(super) fn difference(ours: &Terms, theirs: &Terms, decodes: bool) -> Option<(String, String)> {
    let name = ours.keys().find(|name| (decodes || !is_decoding(name)) && theirs.get(*name) != ours.get(*name))?;
    let show =
        |terms: &Terms| terms.get(name).filter(|value| !value.is_null()).map_or("not set".into(), Value::to_string);
    let cause = format!("{name} is {} here, and {} at the process that reads", show(theirs), show(ours));
    let hint = match name.as_str() {
        "listing" | "samples" => {
            "both must have listed the same objects: keep the data set as it is, or set listing_dir"
        }
        "records" => "both must find the same records: of the same objects, or in the same record_file",
        "decode_with" => "a function of the program's own decodes in the job: serve the data set without decode",
        _ => "set it alike, or shared_read = false",
    };
    Some((cause, hint.to_owned()))
}

/// What the socket is called, in the directory of this user.
pub(super) fn socket_name(uri: &str) -> String {
    // A relative path is another folder elsewhere.
    let path = if uri.contains("://") { None } else { std::path::absolute(uri).ok() };
    let path = path.as_deref().and_then(std::path::Path::to_str);
    format!("fuelrail-share-{:016x}", xxh3_64(path.unwrap_or(uri).as_bytes()))
}
