//! One object, fetched by itself: whole, of one version, and as its checksum says.
//!
//! What is written cannot be taken back. So what broke off goes on from its last byte only under a strong entity tag; without one
//! the object is fetched again from its start, and what comes again must hash as what was written.

use std::fs;
use std::io::Write;

use fuelrail_base::{Duration, Error, Kind, Result};
use fuelrail_wire::digest::{Digest, Sum};
use fuelrail_wire::{Framing, PageStart, ResponseHead, Scheme, can_match, list_path, parse_list};
use hyper::header::HeaderMap;
use hyper::{Method, StatusCode};
use tokio::runtime::Runtime;
use xxhash_rust::xxh3::Xxh3;

use crate::access::{Access, wherever};
use crate::client::{ANSWER_TIMEOUT, AT_A_PROMPT, Ask, Client, Refused, Reply, runtime, within};
use crate::folder;
use crate::proxy::Route;

/// Copies one object to `out`, resumed where it broke off. The URI's prefix is the whole key. Returns its length, bytes. Checksums
/// that the server sends are verified; `out` has been written to before an error of kind `Mismatch`, `Changed` or `Truncated`. Feature
/// `clouds`.
///
/// # Errors
/// `Usage` for a bad URI, `NotFound`, `Denied`, `Network` … for what the server answers after retries; `File` when `out` fails; `Truncated` when
/// the server keeps cutting it short, `Changed` when it was replaced meanwhile, `Mismatch` when its checksum does not hold,
/// `Protocol` when the server does not say how long it is.
pub fn get(uri: &str, out: &mut (dyn Write + Send)) -> Result<u64> {
    get_with(Access::default(), uri, out)
}

/// As [`get`], with the bucket reached as `access` says: an [`Access`] or a [`Tls`](crate::Tls). Feature `clouds`.
///
/// # Errors
/// As [`get`]; `File`, `Usage` and `Environment` for what [`Access`] holds and cannot be used.
pub fn get_with(access: impl Into<Access>, uri: &str, out: &mut (dyn Write + Send)) -> Result<u64> {
    let (access, endpoint, key) = access.into().object(uri)?;
    if endpoint.scheme == Scheme::File {
        return folder::get(&endpoint, &key, out).map_err(|e| e.with_object(key));
    }
    let mut progress = Progress::default();
    let copied = wherever(&access, uri, endpoint, None, |route| {
        route.run(async |client| get_all(&client, &key, &mut progress, out).await)
    });
    copied.map_err(|e| e.with_object(key))?;
    Ok(progress.copied)
}

/// Copies what is missing, with retries.
async fn get_all(client: &Client<'_>, key: &str, progress: &mut Progress, out: &mut (dyn Write + Send)) -> Result<()> {
    let path = client.route.endpoint.object_path(key);
    let attempt = async || {
        let before = progress.copied;
        let mut outcome = get_once(client, &path, progress, out).await;
        if outcome.is_ok() && !progress.is_proved() {
            outcome = confirm(client, &path, progress).await;
        }
        outcome.map_err(|refused| Refused { got_further: progress.copied > before, ..refused })
    };
    let fetched = client.persist(AT_A_PROMPT, attempt).await;
    match fetched {
        Ok(()) => progress.verdict(),
        Err(refused) if refused.status == Some(StatusCode::NOT_FOUND) => Err(absent(client, key, refused.error).await),
        Err(refused) => Err(refused.error),
    }
}

/// How long is looked for what may have been meant by a key that is not there.
const HINT_TIMEOUT: Duration = Duration::from_secs(5);

/// The error for an object that is not there, with a hint at the objects under its key.
async fn absent(client: &Client<'_>, key: &str, error: Error) -> Error {
    let under = format!("{}/", key.trim_end_matches('/'));
    let page = Ask::new(Method::GET, list_path(&client.route.endpoint, &under, PageStart::default(), 1));
    let answer = client.ask(&Ask { limit: HINT_TIMEOUT, ..page }).await.ok();
    let page = answer.and_then(|answer| parse_list(&answer.body).ok());
    if page.is_some_and(|page| !page.entries.is_empty()) {
        return error.with_hint(format!(
            "there are objects under '{}': add the slash to the URI (`fuelrail cp` copies them all)",
            under.escape_debug()
        ));
    }
    error.with_hint("check bucket and key; `fuelrail ls` shows the keys")
}

/// The length of the object whose key is that of the URI with `below` appended, bytes; `None` where there is none.
///
/// # Errors
/// As [`get_with`], but for `NotFound`.
pub fn object_bytes(access: &Access, uri: &str, below: &str) -> Result<Option<u64>> {
    let (access, endpoint, key) = access.clone().object_below(uri, below)?;
    if endpoint.scheme == Scheme::File {
        let mut path = String::new();
        endpoint.push_file_path(&mut path, &key);
        return Ok(fs::metadata(path).ok().filter(fs::Metadata::is_file).map(|facts| facts.len()));
    }
    let asked = wherever(&access, uri, endpoint, None, |route| {
        route.run(async |client| {
            let head = Ask::new(Method::HEAD, client.route.endpoint.object_path(&key));
            let answer = client.persist(AT_A_PROMPT, async || client.ask(&head).await).await;
            let answer = answer.map_err(Refused::into_error)?;
            Ok(answer.header("content-length").and_then(|bytes| bytes.parse::<u64>().ok()))
        })
    });
    match asked {
        Ok((bytes, _)) => Ok(bytes),
        Err(error) if error.kind() == Kind::NotFound => Ok(None),
        Err(error) => Err(error.with_object(key)),
    }
}

/// How far an object has come.
#[derive(Default)]
struct Progress {
    /// Bytes written, and their hash.
    copied: u64,
    written: Xxh3,
    /// Bytes seen of the version that is being read; fewer than are written while they come again.
    seen: u64,
    /// The strong entity tag of that version, if it has one.
    etag: Option<String>,
    /// How long it is, bytes, where the server says so before its end.
    total: Option<u64>,
    /// That is not said by `Content-Length` alone, which may be wrong.
    is_confirmed: bool,
    /// The checksum that the server sends with it, over what was seen.
    sum: Option<Sum>,
}

impl Progress {
    /// The tag under which what is missing can be asked for.
    fn resumes(&self) -> Option<&str> {
        self.etag.as_deref().filter(|_| self.copied > 0 && self.seen == self.copied)
    }

    /// Takes in what an answer says before its body.
    fn begin(&mut self, headers: &HeaderMap, head: &ResponseHead) -> Result<()> {
        let etag = headers.get("etag").and_then(|tag| tag.to_str().ok()).filter(|tag| can_match(tag));
        let is_part = head.status == 206;
        let (first, total) = match head.content_range {
            Some(range) => (range.first, range.total),
            None => (0, if is_part { None } else { head.content_length }),
        };
        if first == 0 {
            self.is_confirmed = is_part;
            self.etag = etag.map(Into::into);
            self.total = total;
            self.sum = head.crc32c.map(Digest::Crc32c).or(head.digest).map(Digest::sum);
            self.seen = 0;
        } else if first != self.copied || self.resumes().is_none() {
            let cause = format!("the response starts at byte {first}, requested was {}", self.copied);
            return Err(Error::new(Kind::Mismatch, cause));
        } else if etag != self.etag.as_deref() {
            self.etag = None;
            return Err(replaced());
        } else {
            self.is_confirmed |= total.is_some();
            self.total = total.or(self.total);
        }
        if self.total.is_none() && (is_part || head.framing != Framing::Chunked) {
            return Err(Error::new(Kind::Protocol, "the server does not say how long the object is")
                .with_hint("check the URI: the server may not be an object store"));
        }
        Ok(())
    }

    /// Takes in the next bytes, and writes those that are new.
    fn take(&mut self, bytes: &[u8], again: &mut Xxh3, out: &mut (dyn Write + Send)) -> Result<()> {
        let missing = usize::try_from(self.copied - self.seen).unwrap_or(usize::MAX);
        let (known, new) = bytes.split_at(missing.min(bytes.len()));
        again.update(known);
        if !known.is_empty() && known.len() == missing && again.digest128() != self.written.digest128() {
            return Err(replaced());
        }
        if let Some(sum) = &mut self.sum {
            sum.update(bytes);
        }
        self.seen += bytes.len() as u64;
        if let Some(total) = self.total.filter(|total| *total < self.seen) {
            return Err(Error::new(Kind::Mismatch, format!("received {} of the object's {total} bytes", self.seen)));
        }
        out.write_all(new).map_err(|e| Error::from_io(Kind::File, "writing", e))?;
        self.written.update(new);
        self.copied += new.len() as u64;
        Ok(())
    }

    /// Judges an answer that has ended.
    fn end(&mut self) -> Result<()> {
        let total = *self.total.get_or_insert(self.seen);
        if self.seen < total {
            return Err(Error::new(Kind::Truncated, format!("the body ends at byte {} of {total}", self.seen)));
        }
        if self.seen < self.copied { Err(replaced()) } else { Ok(()) }
    }

    /// Whether nothing else has to be asked to know that this is the object. Where ranges cannot be asked for, nothing can be.
    fn is_proved(&self) -> bool {
        self.is_confirmed || self.resumes().is_none() || self.sum.as_ref().is_some_and(Sum::holds)
    }

    /// Judges an object that has come whole.
    fn verdict(&self) -> Result<()> {
        if self.sum.as_ref().is_none_or(Sum::holds) {
            return Ok(());
        }
        Err(Error::new(Kind::Mismatch, "checksum mismatch: the bytes differ from the checksum the server sent")
            .with_hint("the bytes were corrupted on the server or in transit: fetch it again"))
    }
}

fn replaced() -> Error {
    Error::new(Kind::Changed, "the object changed while it was read").with_hint("fetch it again")
}

async fn get_once(
    client: &Client<'_>,
    path: &str,
    progress: &mut Progress,
    out: &mut (dyn Write + Send),
) -> Result<(), Refused> {
    let resumes = progress.resumes().is_some();
    if resumes && progress.total == Some(progress.copied) {
        return Ok(());
    }
    let mut reply = answer(client, path, progress, resumes.then_some(progress.copied)).await?;
    if reply.status == StatusCode::RANGE_NOT_SATISFIABLE && resumes {
        // Nothing follows what has come of this version.
        (progress.total, progress.is_confirmed) = (Some(progress.copied), true);
        return Ok(());
    }
    progress.begin(&reply.headers, &head_of(&reply)?)?;
    let mut again = Xxh3::new();
    while let Some(bytes) = reply.more().await? {
        progress.take(&bytes, &mut again, out)?;
    }
    Ok(progress.end()?)
}

/// Holds the length of an object without a checksum against what a request for its last byte brings.
async fn confirm(client: &Client<'_>, path: &str, progress: &mut Progress) -> Result<(), Refused> {
    let reply = answer(client, path, progress, Some(progress.copied - 1)).await?;
    if reply.status == StatusCode::PARTIAL_CONTENT {
        progress.total = head_of(&reply)?.content_range.and_then(|range| range.total).or(progress.total);
    }
    progress.is_confirmed = true;
    Ok(progress.end()?)
}

/// The server's answer: 200, 206, or 416 to a request from a byte on, which insists on the version that is being read.
async fn answer<'a>(
    client: &'a Client<'a>,
    path: &str,
    progress: &mut Progress,
    from: Option<u64>,
) -> Result<Reply<'a>, Refused> {
    let ask = Ask::new(Method::GET, path);
    let ask = match (from, &progress.etag) {
        (Some(from), Some(etag)) => {
            let quoted = if etag.starts_with('"') { etag.clone() } else { format!("\"{etag}\"") };
            ask.header("range", format!("bytes={from}-")).header("if-match", quoted)
        }
        // No cloud sends the checksum of an object with a part of it.
        _ => ask.header("x-amz-checksum-mode", "ENABLED"),
    };
    let reply = within(ANSWER_TIMEOUT, client.send_whole(&ask)).await??;
    match reply.status {
        StatusCode::OK | StatusCode::PARTIAL_CONTENT => Ok(reply),
        StatusCode::RANGE_NOT_SATISFIABLE if from.is_some() => Ok(reply),
        StatusCode::PRECONDITION_FAILED => {
            progress.etag = None;
            Err(replaced().into())
        }
        _ => Err(client.refused(&ask, &reply.read().await?)),
    }
}

fn head_of(reply: &Reply<'_>) -> Result<ResponseHead> {
    let lines = reply.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
    ResponseHead::of(reply.status.as_u16(), lines)
}

/// A bucket whose GETs are timed.
#[derive(Debug)]
pub struct Gets {
    route: Route,
}

impl Gets {
    /// The bucket of `uri`, or where it has moved to: a GET of one byte of `key` finds out.
    ///
    /// # Errors
    /// `Usage` for a bad URI or a folder; `Environment` and `File` for unusable settings in `access`; `NotFound`, `Denied`,
    /// `Network` … for the server's response.
    pub fn open(access: impl Into<Access>, uri: &str, key: &str) -> Result<Gets> {
        let access = access.into().settled(uri)?;
        let endpoint = access.cloud.endpoint(uri)?;
        if endpoint.scheme == Scheme::File {
            return Err(Error::new(Kind::Usage, format!("{uri} is a folder: give the URI of a bucket")));
        }
        let (_, route) = wherever(&access, uri, endpoint, None, |route| {
            route.run(async |client| get_bytes(&client, key, Some(1)).await)
        })?;
        Ok(Gets { route })
    }

    /// Opens a connection.
    ///
    /// # Errors
    /// `Network`, `Untrusted` … when the server cannot be reached; `Environment` when the system refuses an event loop.
    pub fn connect(&self) -> Result<GetConnection<'_>> {
        let (runtime, client) = (runtime()?, Client::new(&self.route, ANSWER_TIMEOUT)?);
        runtime.block_on(client.dial())?;
        Ok(GetConnection { runtime, client })
    }
}

/// A connection that is kept from one GET to the next. Blocks: not for use inside an async runtime.
pub struct GetConnection<'a> {
    runtime: Runtime,
    client: Client<'a>,
}

impl GetConnection<'_> {
    /// GETs the first `bytes` of an object (at least one), or all of it, to the last byte. Returns the number of bytes.
    ///
    /// # Errors
    /// The error of the server's response, `Truncated` when the body ends early, `Stalled` when nothing arrives.
    pub fn get(&mut self, key: &str, bytes: Option<u64>) -> Result<u64> {
        self.runtime.block_on(get_bytes(&self.client, key, bytes))
    }
}

async fn get_bytes(client: &Client<'_>, key: &str, bytes: Option<u64>) -> Result<u64> {
    let ask = Ask::new(Method::GET, client.route.endpoint.object_path(key));
    let ask = match bytes {
        Some(bytes) => ask.header("range", format!("bytes=0-{}", bytes.saturating_sub(1))),
        None => ask,
    };
    let mut reply = within(ANSWER_TIMEOUT, client.send_whole(&ask)).await??;
    if !reply.status.is_success() {
        return Err(client.refused(&ask, &reply.read().await?).into_error().with_object(key));
    }
    let mut came = 0;
    while let Some(bytes) = reply.more().await? {
        came += bytes.len() as u64;
    }
    Ok(came)
}
