//! A blocking client with one connection, as DELI's trainers use: reads objects and ListObjectsV2 pages.
//!
//! Owns the connection, kept alive between requests. Never retries an error response.

use std::net::SocketAddr;
use std::time::Duration;

use fuelrail_base::limits::DOCUMENT_BYTES_MAX;
use fuelrail_base::{Error, Kind, Result};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use ureq::Agent;

/// Read timeout.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// One keep-alive connection to one bucket.
#[derive(Debug)]
pub(super) struct Client {
    /// `http://HOST:PORT/BUCKET`.
    bucket: String,
    agent: Agent,
    /// Whether a connection was kept after a response.
    keeps: bool,
}

/// One page of a listing.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Page {
    pub(super) keys: Vec<String>,
    pub(super) next: Option<String>,
}

impl Client {
    /// Creates a client of `bucket` at `addr`. Connects with the first request.
    pub(super) fn new(addr: SocketAddr, bucket: &str) -> Client {
        let config =
            Agent::config_builder().max_idle_connections_per_host(1).proxy(None).timeout_per_read(Some(SILENCE_MAX));
        Client { bucket: format!("http://{addr}/{bucket}"), agent: config.build().new_agent(), keeps: false }
    }

    /// Returns the object's bytes. Keys need no escaping: generated keys are plain ASCII.
    ///
    /// # Errors
    /// `Network` when the connection fails; `Protocol` for a response that is not HTTP; `NotFound` or `Server` by status.
    pub(super) fn get(&mut self, key: &str) -> Result<Vec<u8>> {
        self.fetch(&format!("/{key}")).map_err(|e| e.with_object(key))
    }

    /// Returns one page of at most `keys_max` keys, after the page that returned `token`.
    ///
    /// # Errors
    /// As [`Client::get`]; `Protocol` when the document is not a listing.
    pub(super) fn list_page(&mut self, keys_max: usize, token: Option<&str>) -> Result<Page> {
        let token = token.map_or_else(String::new, |token| {
            format!("&continuation-token={}", utf8_percent_encode(token, NON_ALPHANUMERIC))
        });
        parse_page(&self.fetch(&format!("?list-type=2&max-keys={keys_max}{token}"))?)
    }

    fn fetch(&mut self, what: &str) -> Result<Vec<u8>> {
        let failed = |error: ureq::Error| {
            let kind = match error {
                ureq::Error::StatusCode(404) => Kind::NotFound,
                ureq::Error::StatusCode(503) => Kind::Throttled,
                ureq::Error::StatusCode(_) => Kind::Server,
                ureq::Error::Protocol(_) | ureq::Error::Http(_) | ureq::Error::BodyExceedsLimit(_) => Kind::Protocol,
                _ => Kind::Network,
            };
            Error::new(kind, format!("{}: {error}", self.bucket))
        };
        let ask = || self.agent.get(format!("{}{what}", self.bucket)).call();
        let mut response = match ask() {
            // The server closed the kept connection: send the request over a new one.
            Err(ureq::Error::Io(_)) if self.keeps => ask(),
            asked => asked,
        }
        .map_err(failed)?;
        // Read to the end: the connection is kept only after a complete body.
        let body = response.body_mut().with_config().limit(DOCUMENT_BYTES_MAX as u64).read_to_vec().map_err(failed)?;
        self.keeps = true;
        Ok(body)
    }
}

/// Extracts the listing's keys and continuation token. A substring scan is enough: the document comes from our own
/// bucket, whose generated keys need no unescaping.
fn parse_page(document: &[u8]) -> Result<Page> {
    let garbled = |what: &str| Error::new(Kind::Protocol, format!("a listing with {what}"));
    let mut rest = str::from_utf8(document).map_err(|_| garbled("bytes that are no UTF-8"))?;
    if !rest.contains("<ListBucketResult") {
        return Err(garbled("no ListBucketResult"));
    }
    let next = element(rest, "<NextContinuationToken>", "</NextContinuationToken>").map(|(token, _)| token.to_owned());
    let mut keys = Vec::new();
    while let Some((key, after)) = element(rest, "<Key>", "</Key>") {
        keys.push(key.to_owned());
        rest = after;
    }
    Ok(Page { keys, next })
}

/// Returns the text of the first such element, and what follows it.
fn element<'a>(text: &'a str, open: &str, close: &str) -> Option<(&'a str, &'a str)> {
    let (_, inside) = text.split_once(open)?;
    inside.split_once(close)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fuelrail_bucket::{Bucket, BucketConfig, DataSet, Source};

    fn bucket(script: &str) -> (Bucket, DataSet) {
        let set = DataSet::digits(95, 3);
        let config = BucketConfig {
            source: Source::Generated(set.clone()),
            script: script.parse().unwrap(),
            ..BucketConfig::default()
        };
        (Bucket::start(config).unwrap(), set)
    }

    #[test]
    fn reads_objects_over_one_connection() {
        let (bucket, set) = bucket("");
        let mut client = Client::new(bucket.addr(), "bucket");
        for index in 0..set.len() {
            set.verify(&set.key(index), &client.get(&set.key(index)).unwrap()).unwrap();
        }
        assert_eq!(bucket.counters().connections_opened, 1);
        let error = client.get("training/0/nothing.png").unwrap_err();
        assert_eq!((error.kind(), error.object()), (Kind::NotFound, Some("training/0/nothing.png")));
    }

    #[test]
    fn reads_chunked_bodies_and_connects_again_after_a_close() {
        for script in ["chunked=1.0", "close_after=3", "drop_after=3"] {
            let (bucket, set) = bucket(script);
            let mut client = Client::new(bucket.addr(), "bucket");
            for index in 0..10 {
                let out = client.get(&set.key(index)).unwrap_or_else(|e| panic!("{script}: {e}"));
                set.verify(&set.key(index), &out).unwrap();
            }
        }
    }

    #[test]
    fn garbage_is_named() {
        let (bucket, set) = bucket("garbage=1.0,per_key_max=9");
        let error = Client::new(bucket.addr(), "bucket").get(&set.key(0)).unwrap_err();
        assert_eq!(error.kind(), Kind::Protocol, "{error}");
        assert_eq!(parse_page(b"<html></html>").unwrap_err().kind(), Kind::Protocol);
    }

    #[test]
    fn an_unreachable_bucket_is_a_network_error() {
        let (bucket, _) = bucket("");
        let addr = bucket.addr();
        bucket.stop();
        let error = Client::new(addr, "bucket").get("a").unwrap_err();
        assert_eq!(error.kind(), Kind::Network);
    }
}
