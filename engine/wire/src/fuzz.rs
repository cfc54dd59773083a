//! What must hold for any bytes at all, one function per parser. Fuzz targets and the corpus test run the same ones.
//!
//! Each function panics when an invariant breaks and returns otherwise. Nothing here is for users of the crate.

use crate::block::{self, Entry, PAGE_BYTES, RECORD_BYTES, SegmentHeader, SegmentName};
use crate::framing::{Body, Expect, Framing};
use crate::head::{Parsed, parse_head};
use crate::kept::{self, FRAME_HEAD_BYTES, Frames, HEADER_BYTES, Header, Object, Packer, Unpacker};
use crate::list::{parse_error, parse_list};
use crate::proxy::Proxy;
use crate::redirect::{self, Answer};
use crate::request::write_get;
pub use crate::tls::trial::records;
use crate::uri::{Addressing, Cloud, Endpoint, Scheme, expand};
use crate::{date, escape, manifest, multipart, ranks, sign};
use fuelrail_base::limits::{KEY_BYTES_MAX, OBJECT_BYTES_MAX, PREFIXES_MAX, RESPONSE_HEAD_BYTES_MAX};
use fuelrail_base::prng::Prng;
use fuelrail_base::{Error, Kind};

/// A parser on trial: its name, and what must hold for any bytes it is given.
pub type Target = (&'static str, fn(&[u8]));

/// Every target of this crate.
pub const TARGETS: [Target; 11] = [
    ("answers", answers),
    ("block", block),
    ("dates", dates),
    ("framing", framing),
    ("head", head),
    ("kept", kept),
    ("list", list),
    ("manifest", manifest),
    ("proxy", proxy),
    ("records", records),
    ("uri", uri),
];

/// A head's length never exceeds the buffer or the limit, does not depend on what follows, and no shorter piece of the
/// head passes for a whole one.
pub fn head(bytes: &[u8]) {
    let parsed = match parse_head(bytes) {
        Ok(parsed) => parsed,
        Err(error) => return assert_eq!(error.kind(), Kind::Protocol),
    };
    let len = match parsed {
        Parsed::Partial => return assert!(bytes.len() < RESPONSE_HEAD_BYTES_MAX, "a full buffer is a verdict"),
        Parsed::Interim { len } => len,
        Parsed::Complete { head, len } => {
            assert!((200..600).contains(&head.status));
            assert!(head.framing != Framing::UntilClose || !head.keep_alive);
            len
        }
    };
    assert!((1..=bytes.len().min(RESPONSE_HEAD_BYTES_MAX)).contains(&len));
    assert_eq!(parse_head(&bytes[..len]).expect("the head alone is enough"), parsed);
    for cut in [len - 1, len / 2, len / 3] {
        assert_eq!(parse_head(&bytes[..cut]).expect("a piece of a head is no error"), Parsed::Partial);
    }
}

/// Any chopping of a body gives the same payload, the same end and the same verdict. The first two bytes choose the
/// framing and the seed of the chopping, the rest is the body.
pub fn framing(bytes: &[u8]) {
    let [choice, seed, body @ ..] = bytes else { return };
    let framing = match choice % 8 {
        0 => Framing::None,
        1 => Framing::Length(u64::from(*seed)),
        2 => Framing::UntilClose,
        _ => Framing::Chunked,
    };
    let whole = receive(framing, body, |most| most);
    let mut prng = Prng::new(u64::from(*seed));
    assert_eq!(receive(framing, body, |most| 1 + prng.below(most as u64) as usize), whole, "chopped at random");
    assert_eq!(receive(framing, body, |_| 1), whole, "byte by byte");
}

/// How a body came through.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Received {
    /// Its payload.
    pub payload: Vec<u8>,
    /// Bytes of the input it took up to its end, or to the error.
    pub taken: usize,
    /// Whether its end was reached before the input's.
    pub ended: bool,
    /// The first error, and else what closing the connection after the input means.
    pub verdict: Result<(), Error>,
}

/// Feeds `input` through a [`Body`], the next piece as long as `piece` says of the longest possible. Reads control bytes
/// no further than announced, so that payload always lands in place.
pub fn receive(framing: Framing, input: &[u8], mut piece: impl FnMut(usize) -> usize) -> Received {
    let mut body = Body::new(framing);
    let mut payload = Vec::new();
    let mut taken = 0;
    while taken < input.len() {
        let left = &input[taken..];
        match body.expect() {
            Expect::End => break,
            Expect::Payload { at_most } => {
                assert!(at_most > 0 && (framing == Framing::UntilClose || body.landed() + at_most <= OBJECT_BYTES_MAX));
                let bytes = piece(usize::try_from(at_most).unwrap_or(usize::MAX).min(left.len()));
                payload.extend_from_slice(&left[..bytes]);
                body.payload(bytes as u64);
                taken += bytes;
            }
            Expect::Control { at_least } => {
                assert!((1..=7).contains(&at_least));
                let offered = &left[..piece(at_least.min(left.len()))];
                let mut ahead = body;
                match body.control(offered) {
                    Ok(consumed) => {
                        assert_eq!(consumed, offered.len(), "what is certain to be control is consumed");
                        check_overread(&mut ahead, &left[..left.len().min(LOOK_AHEAD_BYTES)], &body);
                        taken += consumed;
                    }
                    Err(error) => return Received { payload, taken: 0, ended: false, verdict: Err(error) },
                }
            }
        }
        assert_eq!(body.landed(), payload.len() as u64);
    }
    let ended = body.expect() == Expect::End;
    Received { payload, taken, ended, verdict: body.closed() }
}

/// How far beyond the control bytes due a body is offered more: enough for several small chunks, cheap at every byte.
const LOOK_AHEAD_BYTES: usize = 64;

/// Offered more than is due, a body takes the control bytes and stops at the first byte that is not.
fn check_overread(ahead: &mut Body, offered: &[u8], stepped: &Body) {
    let Ok(consumed) = ahead.control(offered) else { return };
    assert!(consumed <= offered.len());
    let at_rest = !matches!(ahead.expect(), Expect::Control { .. });
    assert!(at_rest || consumed == offered.len(), "control bytes were left behind");
    assert_eq!(ahead.landed(), stepped.landed());
}

/// A listing that parses is usable as it stands; all else is a protocol error. So are the answers to uploads.
pub fn list(bytes: &[u8]) {
    if let Ok(id) = multipart::parse_begun(bytes) {
        assert!(!id.is_empty() && parse_error(bytes).is_none(), "an error document begins no upload");
        assert!(multipart::with_query("/k", &[("uploadId", &id)]).is_ascii());
    }
    if let Ok(etag) = multipart::parse_completed(bytes) {
        assert!(crate::etag::is_sound(&etag) && parse_error(bytes).is_none(), "an error document completes none");
    }
    if let Some((code, message)) = parse_error(bytes) {
        assert!(!code.is_empty() && !code.contains(char::is_control) && !message.contains(char::is_control));
        assert!(parse_list(bytes).is_err(), "an error document is no listing");
    }
    match parse_list(bytes) {
        Ok(page) => {
            assert!(page.next.is_none_or(|token| !token.is_empty()));
            for entry in &page.entries {
                assert!((1..=KEY_BYTES_MAX).contains(&entry.key.len()) && entry.size <= OBJECT_BYTES_MAX);
                let mut request = Vec::new();
                write_get(&mut request, "h", "/", None, entry.etag.as_deref()).expect("a listed tag can be asked for");
                assert_eq!(request.iter().filter(|byte| **byte == b'\n').count() as u32, lines_of(&entry.etag));
            }
        }
        Err(error) => assert_eq!(error.kind(), Kind::Protocol),
    }
}

/// Lines of a GET for a whole object: request, host, agent, coding, checksum, blank; and one for a strong tag.
fn lines_of(etag: &Option<String>) -> u32 {
    6 + u32::from(etag.as_ref().is_some_and(|tag| !tag.starts_with("W/")))
}

/// A manifest that parses is written and parsed again without a change.
pub fn manifest(bytes: &[u8]) {
    match manifest::parse(bytes) {
        Ok(entries) => {
            let mut text = Vec::new();
            manifest::write(&mut text, &entries);
            assert_eq!(manifest::parse(&text).expect("what was written can be read"), entries);
        }
        Err(error) => assert_eq!(error.kind(), Kind::Usage),
    }
}

/// A segment's pages: a header that is believed is written as it stands, and so is every record; damage to either is seen.
pub fn block(bytes: &[u8]) {
    if let Ok(header) = SegmentHeader::decode(bytes) {
        assert_eq!(header.encode()[..RECORD_BYTES], bytes[..RECORD_BYTES]);
        assert!(header.len.is_power_of_two() && header.len > 2 * PAGE_BYTES as u64);
        let damaged = flipped(&bytes[..PAGE_BYTES], header.created_s as usize % (8 * RECORD_BYTES));
        assert!(SegmentHeader::decode(&damaged).is_err(), "a flipped bit passes for a header");
        let name = SegmentName { id: header.id, new: header.unit == 512 };
        assert_eq!(SegmentName::parse(&name.to_string()), Some(name));
    }
    let places = bytes.chunks_exact(RECORD_BYTES);
    assert_eq!(block::entries(bytes).count(), places.len());
    for (entry, place) in block::entries(bytes).zip(places) {
        match entry {
            Entry::Empty => assert!(place.iter().all(|byte| *byte == 0)),
            Entry::Damaged => {}
            Entry::Record(record) => {
                assert_eq!(record.encode(), place);
                assert!(record.len > 0 && !record.lies_before(record.place), "a block of nothing");
                let damaged = flipped(place, record.sequence as usize % (8 * RECORD_BYTES));
                assert_eq!(block::entries(&damaged).next(), Some(Entry::Damaged), "a flipped bit passes for a record");
            }
        }
    }
    if let Ok(name) = core::str::from_utf8(bytes)
        && let Some(parsed) = SegmentName::parse(name)
    {
        assert_eq!(parsed.to_string(), name);
    }
}

/// A kept listing: a header that is believed is written as it stands, frames prove themselves and nothing else, and what one
/// holds is written and read again without a change, as objects and as an answer; lists of ranks as well.
pub fn kept(bytes: &[u8]) {
    let data_set: [u8; 16] = bytes.get(24..40).and_then(|id| id.try_into().ok()).unwrap_or_default();
    if let Ok(runs) = ranks::decode(bytes, data_set) {
        assert_eq!(ranks::decode(&ranks::encode(data_set, &runs), data_set), Ok(runs));
    }
    if let Ok(header) = Header::decode(bytes) {
        let page = header.encode();
        assert_eq!(page[..], bytes[..HEADER_BYTES]);
        let damaged = flipped(&page, header.begun_s as usize % (8 * HEADER_BYTES));
        assert!(Header::decode(&damaged).is_err(), "a flipped bit passes for a header");
        framed(Frames::behind(&page), &bytes[HEADER_BYTES..]);
    }
    kept_objects(bytes);
    if let Ok(answer) = kept::Answer::decode(bytes) {
        let mut written = Vec::new();
        kept::Answer::write(&mut written, (answer.stretch, answer.asked), &answer.page);
        assert_eq!(kept::Answer::decode(&written), Ok(answer));
    }
}

fn framed(mut frames: Frames, mut bytes: &[u8]) {
    let mut payload = Vec::new();
    loop {
        let (before, all) = (frames, bytes);
        if frames.read(&mut bytes, &mut payload).is_err() {
            return assert_eq!(frames, before, "a frame that is not believed leaves no trace");
        }
        let (mut written, mut again) = (Vec::new(), before);
        again.push(&mut written, |out| out.extend_from_slice(&payload));
        assert_eq!((&written[..], again), (&all[..FRAME_HEAD_BYTES + payload.len()], frames));
        kept_objects(&payload);
    }
}

fn kept_objects(bytes: &[u8]) {
    let (mut reader, mut packer, mut written, mut all) =
        (Unpacker::new(bytes), Packer::default(), Vec::new(), Vec::new());
    let flaw: Option<kept::Flaw> = loop {
        match reader.next() {
            Ok(Some(object)) => {
                let Object { key, size, etag } = object;
                assert!((1..=KEY_BYTES_MAX).contains(&key.len()) && size <= OBJECT_BYTES_MAX);
                packer.push(&mut written, object);
                all.push((key.to_owned(), size, etag.map(str::to_owned)));
            }
            Ok(None) => break None,
            Err(flaw) => break Some(flaw),
        }
    };
    assert!(flaw.is_some() || written.len() <= bytes.len(), "what is packed is not longer");
    let mut again = Unpacker::new(&written);
    for (key, size, etag) in &all {
        let wanted = Object { key, size: *size, etag: etag.as_deref() };
        assert_eq!(again.next(), Ok(Some(wanted)));
    }
    assert_eq!(again.next(), Ok(None));
}

fn flipped(bytes: &[u8], bit: usize) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[bit / 8] ^= 1 << (bit % 8);
    bytes
}

/// What names a proxy, in the first line, is read or refused without being shown; and of what a proxy answers, in the rest, no piece
/// passes for the whole.
pub fn proxy(bytes: &[u8]) {
    let line = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
    let (name, answer) = (String::from_utf8_lossy(&bytes[..line]), bytes.get(line + 1..).unwrap_or_default());
    let server: Endpoint = "https://h/bucket/".parse().expect("a good URI");
    let read = Proxy::parse("X", &name);
    match &read {
        Ok(proxy) => {
            let again = Proxy::parse("X", &proxy.authority()).expect("what is printed can be read");
            assert_eq!((&again.host, again.port), (&proxy.host, proxy.port));
            let mut request = Vec::new();
            proxy.push_connect(&server, &mut request);
            let lines = if proxy.authorization().is_some() { 5 } else { 4 };
            assert_eq!(request.split(|byte| *byte == b'\n').count(), lines + 1, "nothing splits a line");
        }
        Err(error) => {
            let fixed = ["host or port", "percent-encoded", "plain HTTP"];
            assert!(error.kind() == Kind::Usage && fixed.iter().any(|word| error.cause().contains(word)));
        }
    }
    let proxy = read.unwrap_or_else(|_| Proxy::parse("X", "p").expect("a good name"));
    match proxy.judge(&server, answer) {
        Ok(true) => {
            assert_eq!(proxy.judge(&server, &answer[..answer.len() - 1]), Ok(false), "a piece of it is not all");
            assert!(proxy.judge(&server, &[answer, b"x"].concat()).is_err(), "nothing may follow");
        }
        Ok(false) => assert!(answer.len() < RESPONSE_HEAD_BYTES_MAX, "a full buffer is a verdict"),
        Err(error) => assert!(matches!(error.kind(), Kind::Denied | Kind::Network | Kind::Protocol | Kind::Throttled)),
    }
}

/// An endpoint that parses prints as a URI of itself, and its paths are clean and decode to what they name.
pub fn uri(bytes: &[u8]) {
    let Ok(text) = core::str::from_utf8(bytes) else { return };
    match text.parse::<Endpoint>() {
        Ok(endpoint) => {
            assert_eq!(endpoint.to_string().parse::<Endpoint>().expect("a printed endpoint can be read"), endpoint);
            if endpoint.scheme == Scheme::File {
                assert!(!endpoint.prefix.contains('/') && !endpoint.bucket.is_empty());
                return;
            }
            let path = endpoint.object_path(&endpoint.prefix);
            let bucket = if endpoint.addressing == Addressing::Path { endpoint.bucket.as_str() } else { "" };
            let slash = if bucket.is_empty() { "" } else { "/" };
            assert_eq!(escape::decode(&path), Ok(format!("/{bucket}{slash}{}", endpoint.prefix)));
            let mut request = Vec::new();
            write_get(&mut request, &endpoint.authority(), &path, None, None).expect("paths are fit for a request");
        }
        Err(error) => assert_eq!(error.kind(), Kind::Usage),
    }
    // As where a server sends requests on to: never anywhere less safe.
    let from: Endpoint = "https://h/bucket/".parse().expect("a good URI");
    let answer = Answer { status: 301, location: Some(text), region: Some(text) };
    for signed in [false, true] {
        match redirect::moved(&from, "/bucket/k", answer, signed) {
            Ok(Some(moved)) => {
                assert!(moved.endpoint.scheme == Scheme::Https && (!signed || moved.endpoint.host == "h"))
            }
            Ok(None) => panic!("a location is followed or refused"),
            Err(error) => assert_eq!(error.kind(), Kind::Usage),
        }
    }
    match (expand(text), Cloud::default().source(text)) {
        (Ok(all), Ok(source)) => {
            assert!((1..=all.len()).contains(&source.prefixes.len()) && all.len() <= PREFIXES_MAX);
            let starts = source.prefixes.iter().all(|prefix| prefix.starts_with(&source.endpoint.prefix));
            assert!(starts && source.prefixes.is_sorted());
        }
        (_, Err(error)) => assert_eq!(error.kind(), Kind::Usage),
        (Err(_), Ok(_)) => panic!("a source of braces that cannot be expanded"),
    }
}

/// A date that is read is written and read again without a change.
pub fn dates(bytes: &[u8]) {
    if let Some(time) = date::parse_http(bytes) {
        let mut written = Vec::new();
        date::push_http(&mut written, time);
        assert_eq!(date::parse_http(&written), Some(time));
    }
    if let Some(time) = core::str::from_utf8(bytes).ok().and_then(date::parse_iso) {
        assert_eq!(date::parse_iso(&date::iso(time)), Some(time));
    }
}

/// What services say of credentials is one, fit for a request, or an error that shows nothing of it on more than one line.
pub fn answers(bytes: &[u8]) {
    for answer in [sign::parse_session(bytes), sign::parse_keys(bytes)] {
        match answer {
            Ok(credential) => {
                let printed = format!("{credential:?}");
                assert!(printed.len() < 200 && !printed.contains('\n'), "{printed}");
            }
            Err(error) => {
                assert!(matches!(error.kind(), Kind::Denied | Kind::Protocol | Kind::Usage));
                assert!(!error.cause().contains(char::is_control), "{error}");
            }
        }
    }
}
