//! Parses what a request addresses, from its method, host and URI.

use std::sync::Arc;

use http::request::Parts;
use http::{Method, header};

use super::list::{ListQuery, behind};
use super::refusal::{Refusal, decode, pairs};
use super::{Hosted, Site};
use crate::script::Operation;

/// Longest key, as in S3.
const KEY_BYTES_MAX: usize = 1024;
/// Most keys of a listing page, as in S3.
const PAGE_KEYS_MAX: usize = 1000;
/// `NAME.localhost` is the virtual host of bucket `NAME`.
const DOMAIN: &str = ".localhost";

/// What a request addresses.
#[derive(Clone)]
pub(super) struct Target {
    /// `None` for the server itself, whose buckets are listed.
    pub(super) bucket: Option<Arc<Hosted>>,
    pub(super) operation: Operation,
    /// Empty for the bucket itself.
    pub(super) key: String,
    /// The upload of a part or of its completion; `None` for Azure, which has one per key.
    pub(super) upload: Option<String>,
    /// S3's part number, or Azure's block id.
    pub(super) part: String,
    pub(super) list: ListQuery,
}

impl Target {
    pub(super) fn parse(parts: &Parts, site: &Site) -> Result<Target, Refusal> {
        let path = parts.uri.path().strip_prefix('/').unwrap_or_default();
        let host = parts.headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        let host = host.rsplit_once(':').map_or(host, |(host, _)| host);
        let virtual_bucket = host.strip_suffix(DOMAIN).and_then(|name| site.buckets.get(name));
        if path.is_empty() && virtual_bucket.is_none() && parts.method == Method::GET {
            return Ok(Target::of(Operation::List, String::new()));
        }
        let (bucket, key) = match virtual_bucket {
            Some(bucket) => (bucket, path),
            None => {
                let (named, key) = path.split_once('/').unwrap_or((path, ""));
                let named = decode(named)?;
                let no_such = || Refusal::new("NoSuchBucket", format!("There is no bucket `{named}` on this server."));
                (site.buckets.get(&named).ok_or_else(no_such)?, key)
            }
        };
        let target = Target::within(&parts.method, key, parts.uri.query().unwrap_or_default())?;
        Ok(Target { bucket: Some(Arc::clone(bucket)), ..target })
    }

    fn of(operation: Operation, key: String) -> Target {
        Target { bucket: None, operation, key, upload: None, part: String::new(), list: ListQuery::default() }
    }

    /// Parses a request within a bucket.
    fn within(method: &Method, key: &str, query: &str) -> Result<Target, Refusal> {
        let key = decode(key)?;
        if key.len() > KEY_BYTES_MAX {
            let message = format!("A key has at most {KEY_BYTES_MAX} bytes, this one has {}.", key.len());
            return Err(Refusal::new("KeyTooLongError", message));
        }
        let query = pairs(query)?;
        let value = |name: &str| query.iter().find(|(have, _)| have == name).map(|(_, value)| value.clone());
        if key.is_empty() && method == Method::GET {
            return Ok(Target { list: list_query(query)?, ..Target::of(Operation::List, key) });
        }
        let (upload, azure) = (value("uploadId"), value("comp"));
        let mut part = String::new();
        let operation = match (method, key.is_empty()) {
            (&Method::HEAD, _) => Operation::Head,
            (&Method::GET, false) => Operation::Get,
            (&Method::POST, false) if upload.is_some() => Operation::Complete,
            (&Method::POST, false) if azure.is_none() && value("uploads").is_some() => Operation::Create,
            (&Method::DELETE, false) => {
                if upload.is_some() {
                    Operation::Abort
                } else {
                    Operation::Delete
                }
            }
            (&Method::PUT, false) if upload.is_some() => {
                let number = value("partNumber").and_then(|number| number.parse::<u32>().ok());
                part = number.ok_or_else(|| invalid("partNumber is no number."))?.to_string();
                Operation::Part
            }
            (&Method::PUT, false) => match azure.as_deref() {
                Some("block") => {
                    part = value("blockid").unwrap_or_default();
                    Operation::Part
                }
                Some("blocklist") => Operation::Complete,
                _ => Operation::Put,
            },
            _ => {
                let message = "This server knows GET, HEAD, PUT and DELETE of objects, uploads in parts, and GET and HEAD of buckets.";
                return Err(Refusal::new("MethodNotAllowed", message));
            }
        };
        Ok(Target { upload, part, ..Target::of(operation, key) })
    }

    /// Returns the request's name in scripts: a key, with the step of an upload in short, or the query of a listing.
    pub(super) fn identity(&self) -> String {
        let Target { key, part, .. } = self;
        match (self.operation, &self.upload) {
            (Operation::List, _) => self.bucket.as_ref().map_or_else(String::new, |_| self.list.identity()),
            (Operation::Create, _) => format!("{key}?uploads"),
            (Operation::Part, Some(_)) => format!("{key}?partNumber={part}"),
            (Operation::Part, None) => format!("{key}?block={part}"),
            (Operation::Complete, None) => format!("{key}?blocklist"),
            (Operation::Complete | Operation::Abort, _) => format!("{key}?uploadId"),
            _ => key.clone(),
        }
    }
}

/// Decodes hexadecimal digits.
fn unhex(digits: &str) -> Option<Vec<u8>> {
    let pair = |pair| u8::from_str_radix(core::str::from_utf8(pair).ok()?, 16).ok();
    digits.as_bytes().chunks(2).map(pair).collect()
}

fn invalid(message: impl Into<String>) -> Refusal {
    Refusal::new("InvalidArgument", message)
}

fn list_query(query: Vec<(String, String)>) -> Result<ListQuery, Refusal> {
    let mut list = ListQuery { keys_max: PAGE_KEYS_MAX, ..ListQuery::default() };
    let mut is_version_2 = false;
    let mut token = None;
    for (name, value) in query {
        match name.as_str() {
            "list-type" => is_version_2 = value == "2",
            "prefix" => list.prefix = value,
            "delimiter" => list.delimiter = value,
            "start-after" => list.start_after = value,
            "continuation-token" => token = Some(value),
            "encoding-type" if value == "url" => list.is_url_encoded = true,
            "encoding-type" => return Err(invalid("encoding-type can only be `url`.")),
            "max-keys" => {
                let keys: usize = value.parse().map_err(|_| invalid(format!("max-keys `{value}` is no number.")))?;
                list.keys_max = keys.min(PAGE_KEYS_MAX);
            }
            // The bucket has one owner, who is not shown; clients add these by default. The signature is checked elsewhere.
            "fetch-owner" | "x-id" => {}
            signature if signature.starts_with("X-Amz-") => {}
            other => {
                return Err(Refusal::new("NotImplemented", format!("A listing has no parameter `{other}` here.")));
            }
        }
    }
    if !is_version_2 {
        return Err(Refusal::new("NotImplemented", "Only version 2 listings are served: add `list-type=2`."));
    }
    list.from = match token {
        Some(token) => unhex(&token).ok_or_else(|| invalid("The continuation token is not one of this server's."))?,
        None if list.start_after.is_empty() => Vec::new(),
        None => behind(&list.start_after),
    };
    Ok(list)
}
