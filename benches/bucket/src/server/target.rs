//! What a request asks for, from its method and URI.

use hyper::{Method, Uri};
use percent_encoding::percent_decode_str;

use super::list::{After, ListQuery};
use super::refusal::Refusal;
use crate::script::Operation;

/// Longest key, as S3.
const KEY_BYTES_MAX: usize = 1024;
/// Most keys of a listing page, as S3.
const PAGE_KEYS_MAX: usize = 1000;

/// What is asked for.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Target {
    Get(String),
    Head(String),
    Put(String),
    /// A step of an upload in parts of this key.
    Upload(String, Step),
    HeadBucket,
    List(Box<ListQuery>),
}

/// A step of an upload in parts: S3's, then Azure's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    Create,
    Part { upload: String, number: u32 },
    Complete { upload: String },
    Abort { upload: String },
    Block { id: String },
    BlockList,
}

impl Step {
    /// What stands behind the key in scripts.
    pub(crate) fn identity(&self) -> String {
        match self {
            Step::Create => "?uploads".to_owned(),
            Step::Part { number, .. } => format!("?partNumber={number}"),
            Step::Complete { .. } | Step::Abort { .. } => "?uploadId".to_owned(),
            Step::Block { id } => format!("?block={id}"),
            Step::BlockList => "?blocklist".to_owned(),
        }
    }

    /// The step that a request with this query is, if it is one.
    fn parse(method: &Method, query: &str) -> Result<Option<Step>, Refusal> {
        let (mut names, mut values) = (Vec::new(), Vec::new());
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            names.push(name);
            values.push(decode(value)?);
        }
        let value = |name: &str| names.iter().position(|have| *have == name).map(|at| values[at].clone());
        let (upload, comp) = (value("uploadId"), value("comp"));
        Ok(match (method, upload, comp.as_deref()) {
            (&Method::POST, None, None) if names.contains(&"uploads") => Some(Step::Create),
            (&Method::POST, Some(upload), _) => Some(Step::Complete { upload }),
            (&Method::DELETE, Some(upload), _) => Some(Step::Abort { upload }),
            (&Method::PUT, Some(upload), _) => {
                let number = value("partNumber").and_then(|number| number.parse().ok());
                let number = number.ok_or_else(|| Refusal::invalid_argument("partNumber is no number."))?;
                Some(Step::Part { upload, number })
            }
            (&Method::PUT, None, Some("block")) => Some(Step::Block { id: value("blockid").unwrap_or_default() }),
            (&Method::PUT, None, Some("blocklist")) => Some(Step::BlockList),
            _ => None,
        })
    }
}

impl Target {
    pub(crate) fn operation(&self) -> Operation {
        match self {
            Target::Get(_) => Operation::Get,
            Target::Head(_) | Target::HeadBucket => Operation::Head,
            Target::Put(_) => Operation::Put,
            Target::Upload(_, Step::Create) => Operation::Create,
            Target::Upload(_, Step::Part { .. } | Step::Block { .. }) => Operation::Part,
            Target::Upload(_, Step::Complete { .. } | Step::BlockList) => Operation::Complete,
            Target::Upload(_, Step::Abort { .. }) => Operation::Abort,
            Target::List(_) => Operation::List,
        }
    }

    pub(crate) fn parse(method: &Method, uri: &Uri, bucket: &str) -> Result<Target, Refusal> {
        let path = uri.path().strip_prefix('/').unwrap_or_default();
        let (named, key) = path.split_once('/').unwrap_or((path, ""));
        let named = decode(named)?;
        if named != bucket {
            return Err(Refusal::no_such_bucket(&named, bucket));
        }
        let key = decode(key)?;
        if key.len() > KEY_BYTES_MAX {
            let message = format!("A key has at most {KEY_BYTES_MAX} bytes, this one has {}.", key.len());
            return Err(Refusal::new(hyper::StatusCode::BAD_REQUEST, "KeyTooLongError", message));
        }
        if !key.is_empty()
            && let Some(step) = Step::parse(method, uri.query().unwrap_or_default())?
        {
            return Ok(Target::Upload(key, step));
        }
        match (method, key.is_empty()) {
            (&Method::GET, true) => {
                list_query(uri.query().unwrap_or_default()).map(|query| Target::List(Box::new(query)))
            }
            (&Method::HEAD, true) => Ok(Target::HeadBucket),
            (&Method::GET, false) => Ok(Target::Get(key)),
            (&Method::HEAD, false) => Ok(Target::Head(key)),
            (&Method::PUT, false) => Ok(Target::Put(key)),
            _ => {
                let message =
                    "This server knows GET, HEAD and PUT of objects, uploads in parts, and GET and HEAD of the bucket.";
                Err(Refusal::new(hyper::StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message))
            }
        }
    }
}

fn list_query(query: &str) -> Result<ListQuery, Refusal> {
    let mut list = ListQuery { keys_max: PAGE_KEYS_MAX, ..ListQuery::default() };
    let mut is_version_2 = false;
    let mut token = None;
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        // In a query, unlike in a path, `+` is a space.
        let value = decode(&value.replace('+', " "))?;
        match name {
            "list-type" => is_version_2 = value == "2",
            "prefix" => list.prefix = value,
            "delimiter" => list.delimiter = value,
            "start-after" => list.start_after = value,
            "continuation-token" => token = Some(value),
            "encoding-type" if value == "url" => list.is_url_encoded = true,
            "encoding-type" => return Err(Refusal::invalid_argument("encoding-type can only be `url`.")),
            "max-keys" => {
                let keys: usize = value
                    .parse()
                    .map_err(|_| Refusal::invalid_argument(format!("max-keys `{value}` is no number.")))?;
                list.keys_max = keys.min(PAGE_KEYS_MAX);
            }
            // The bucket has one owner, who is not shown; clients add these by habit.
            "fetch-owner" | "x-id" => {}
            other => return Err(Refusal::not_implemented(&format!("A listing has no parameter `{other}` here."))),
        }
    }
    if !is_version_2 {
        return Err(Refusal::not_implemented("Only version 2 listings are served: add `list-type=2`."));
    }
    list.after = match token {
        Some(token) => After::from_token(&token)
            .ok_or_else(|| Refusal::invalid_argument("The continuation token is not one of this server's."))?,
        None if list.start_after.is_empty() => After::Start,
        None => After::Key(list.start_after.clone()),
    };
    Ok(list)
}

fn decode(text: &str) -> Result<String, Refusal> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(std::borrow::Cow::into_owned).map_err(|_| Refusal::invalid_uri("The URI is not UTF-8 when decoded."))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(method: &Method, uri: &str) -> Result<Target, Refusal> {
        Target::parse(method, &uri.parse().unwrap(), "b")
    }

    #[test]
    fn keys_are_decoded_once() {
        for (uri, key) in
            [("/b/a%2Fb", "a/b"), ("/b/a+b%20c", "a+b c"), ("/b/%25", "%"), ("/b/%C3%A4", "ä"), ("/b//x", "/x")]
        {
            assert_eq!(parse(&Method::GET, uri), Ok(Target::Get(key.to_owned())));
        }
        assert!(parse(&Method::GET, "/b/%FF").is_err());
        assert!(parse(&Method::GET, "/other/x").is_err());
        assert!(parse(&Method::DELETE, "/b/x").is_err());
        assert!(parse(&Method::GET, &format!("/b/{}", "x".repeat(1025))).is_err());
        assert!(parse(&Method::GET, &format!("/b/{}", "x".repeat(1024))).is_ok());
    }

    #[test]
    fn listings() {
        let Ok(Target::List(query)) =
            parse(&Method::GET, "/b?list-type=2&prefix=a%2B+b&max-keys=5000&encoding-type=url")
        else {
            panic!("not a listing");
        };
        assert_eq!((query.prefix.as_str(), query.keys_max, query.is_url_encoded), ("a+ b", 1000, true));
        for bad in ["", "list-type=1", "list-type=2&max-keys=x", "list-type=2&continuation-token=zz", "list-type=2&acl"]
        {
            assert!(parse(&Method::GET, &format!("/b/?{bad}")).is_err(), "{bad}");
        }
    }
}
