//! What a request asks for, from its method, host and URI.

use std::sync::Arc;

use http::request::Parts;
use http::{Method, header};

use super::desk::{Hosted, Site};
use super::list::{ListQuery, behind};
use super::refusal::{Refusal, decode, pairs};
use crate::script::Operation;

/// Longest key, as S3.
const KEY_BYTES_MAX: usize = 1024;
/// Most keys of a listing page, as S3.
const PAGE_KEYS_MAX: usize = 1000;
/// `NAME.localhost` is the virtual host of bucket `NAME`.
const DOMAIN: &str = ".localhost";

/// What is asked for.
#[derive(Clone)]
pub(super) enum Target {
    Buckets,
    Of(Arc<Hosted>, Wanted),
}

/// What is asked of a bucket.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Wanted {
    Get(String),
    Head(String),
    Put(String),
    Delete(String),
    /// A step of an upload in parts of this key.
    Upload(String, Step),
    HeadBucket,
    List(Box<ListQuery>),
}

/// A step of an upload in parts: S3's, then Azure's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Step {
    Create,
    Part { upload: String, number: u32 },
    Complete { upload: String },
    Abort { upload: String },
    Block { id: String },
    BlockList,
}

impl Step {
    /// The step that a request with this query is, if it is one.
    fn parse(method: &Method, query: &[(String, String)]) -> Result<Option<Step>, Refusal> {
        let value = |name: &str| query.iter().find(|(have, _)| have == name).map(|(_, value)| value.clone());
        Ok(match (method, value("uploadId"), value("comp").as_deref()) {
            (&Method::POST, None, None) if value("uploads").is_some() => Some(Step::Create),
            (&Method::POST, Some(upload), _) => Some(Step::Complete { upload }),
            (&Method::DELETE, Some(upload), _) => Some(Step::Abort { upload }),
            (&Method::PUT, Some(upload), _) => {
                let number = value("partNumber").and_then(|number| number.parse().ok());
                let number = number.ok_or_else(|| invalid("partNumber is no number."))?;
                Some(Step::Part { upload, number })
            }
            (&Method::PUT, None, Some("block")) => Some(Step::Block { id: value("blockid").unwrap_or_default() }),
            (&Method::PUT, None, Some("blocklist")) => Some(Step::BlockList),
            _ => None,
        })
    }
}

impl Target {
    pub(super) fn parse(parts: &Parts, site: &Site) -> Result<Target, Refusal> {
        let path = parts.uri.path().strip_prefix('/').unwrap_or_default();
        let host = parts.headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        let host = host.rsplit_once(':').map_or(host, |(host, _)| host);
        let virtual_bucket = host.strip_suffix(DOMAIN).and_then(|name| site.buckets.get(name));
        if path.is_empty() && virtual_bucket.is_none() && parts.method == Method::GET {
            return Ok(Target::Buckets);
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
        Wanted::parse(&parts.method, key, parts.uri.query()).map(|wanted| Target::Of(Arc::clone(bucket), wanted))
    }

    pub(super) fn operation(&self) -> Operation {
        match self {
            Target::Buckets => Operation::List,
            Target::Of(_, wanted) => wanted.operation(),
        }
    }

    /// What scripts know the request by: a key, with the step of an upload in short, or the query of a listing.
    pub(super) fn identity(&self) -> String {
        match self {
            Target::Buckets => String::new(),
            Target::Of(_, wanted) => wanted.identity(),
        }
    }
}

impl Wanted {
    fn operation(&self) -> Operation {
        match self {
            Wanted::Get(_) => Operation::Get,
            Wanted::Head(_) | Wanted::HeadBucket => Operation::Head,
            Wanted::Put(_) => Operation::Put,
            Wanted::Delete(_) => Operation::Delete,
            Wanted::Upload(_, Step::Create) => Operation::Create,
            Wanted::Upload(_, Step::Part { .. } | Step::Block { .. }) => Operation::Part,
            Wanted::Upload(_, Step::Complete { .. } | Step::BlockList) => Operation::Complete,
            Wanted::Upload(_, Step::Abort { .. }) => Operation::Abort,
            Wanted::List(_) => Operation::List,
        }
    }

    fn identity(&self) -> String {
        match self {
            Wanted::Get(key) | Wanted::Head(key) | Wanted::Put(key) | Wanted::Delete(key) => key.clone(),
            Wanted::Upload(key, step) => match step {
                Step::Create => format!("{key}?uploads"),
                Step::Part { number, .. } => format!("{key}?partNumber={number}"),
                Step::Complete { .. } | Step::Abort { .. } => format!("{key}?uploadId"),
                Step::Block { id } => format!("{key}?block={id}"),
                Step::BlockList => format!("{key}?blocklist"),
            },
            Wanted::List(query) => query.identity(),
            Wanted::HeadBucket => String::new(),
        }
    }

    fn parse(method: &Method, key: &str, query: Option<&str>) -> Result<Wanted, Refusal> {
        let key = decode(key)?;
        if key.len() > KEY_BYTES_MAX {
            let message = format!("A key has at most {KEY_BYTES_MAX} bytes, this one has {}.", key.len());
            return Err(Refusal::new("KeyTooLongError", message));
        }
        let query = pairs(query.unwrap_or_default())?;
        if let Some(step) = Step::parse(method, &query)?.filter(|_| !key.is_empty()) {
            return Ok(Wanted::Upload(key, step));
        }
        match (method, key.is_empty()) {
            (&Method::GET, true) => list_query(query).map(|query| Wanted::List(Box::new(query))),
            (&Method::HEAD, true) => Ok(Wanted::HeadBucket),
            (&Method::GET, false) => Ok(Wanted::Get(key)),
            (&Method::HEAD, false) => Ok(Wanted::Head(key)),
            (&Method::PUT, false) => Ok(Wanted::Put(key)),
            (&Method::DELETE, false) => Ok(Wanted::Delete(key)),
            _ => {
                let message = "This server knows GET, HEAD, PUT and DELETE of objects, uploads in parts, and GET and HEAD of buckets.";
                Err(Refusal::new("MethodNotAllowed", message))
            }
        }
    }
}

/// What a text of hexadecimal digits stands for.
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
            // The bucket has one owner, who is not shown; clients add these by habit. A signature is checked elsewhere.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(method: &Method, key: &str) -> Result<Wanted, Refusal> {
        let (key, query) = key.split_once('?').unwrap_or((key, ""));
        Wanted::parse(method, key, Some(query))
    }

    #[test]
    fn keys_are_decoded_once() {
        for (uri, key) in [("a%2Fb", "a/b"), ("a+b%20c", "a+b c"), ("%25", "%"), ("%C3%A4", "ä"), ("/x", "/x")] {
            assert_eq!(parse(&Method::GET, uri), Ok(Wanted::Get(key.to_owned())));
        }
        assert!(parse(&Method::GET, "%FF").is_err());
        assert!(parse(&Method::POST, "x").is_err());
        assert!(parse(&Method::GET, &"x".repeat(1025)).is_err());
        assert!(parse(&Method::GET, &"x".repeat(1024)).is_ok());
    }

    #[test]
    fn listings() {
        let Ok(Wanted::List(query)) = parse(&Method::GET, "?list-type=2&prefix=a%2B+b&max-keys=5000&encoding-type=url")
        else {
            panic!("not a listing");
        };
        assert_eq!((query.prefix.as_str(), query.keys_max, query.is_url_encoded), ("a+ b", 1000, true));
        for bad in ["", "list-type=1", "list-type=2&max-keys=x", "list-type=2&continuation-token=zz", "list-type=2&acl"]
        {
            assert!(parse(&Method::GET, &format!("?{bad}")).is_err(), "{bad}");
        }
    }
}
