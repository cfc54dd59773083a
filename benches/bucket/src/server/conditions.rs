//! Evaluates a request's range and preconditions against an object.

use core::ops::Range;

use http::HeaderMap;
use http::header::{self, AsHeaderName};

use super::refusal::Refusal;

/// The outcome, with its status.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// The whole object: 200.
    Whole,
    /// Part of it: 206.
    Part(Range<u64>),
    /// 304.
    NotModified,
    /// 412.
    Failed,
    /// 416.
    Unsatisfiable,
}

pub(super) fn judge(headers: &HeaderMap, etag: &str, size: u64) -> Verdict {
    if text(headers, header::IF_MATCH).is_some_and(|wanted| !names(wanted, etag)) {
        return Verdict::Failed;
    }
    if text(headers, header::IF_NONE_MATCH).is_some_and(|known| names(known, etag)) {
        return Verdict::NotModified;
    }
    let is_same = text(headers, header::IF_RANGE).is_none_or(|wanted| wanted.trim() == etag);
    match text(headers, header::RANGE).filter(|_| is_same) {
        Some(asked) => range(asked, size),
        None => Verdict::Whole,
    }
}

#[derive(Clone, Default, Debug)]
pub(crate) struct PutCondition {
    headers: HeaderMap,
    /// Whether the request uses Azure's protocol, whose errors differ.
    for_azure: bool,
}

impl PutCondition {
    pub(super) fn of(headers: &HeaderMap, for_azure: bool) -> PutCondition {
        PutCondition { headers: headers.clone(), for_azure }
    }

    /// Checks the conditions against the entity tag of the existing object, if any.
    pub(crate) fn check(&self, there: Option<&str>) -> Result<(), Refusal> {
        let is_named = |list: &str| there.is_some_and(|etag| names(list, etag));
        // Google's form of "the object does not exist".
        let nothing = self.headers.get("x-goog-if-generation-match").filter(|value| *value == "0").map(|_| "*");
        let is_unwanted = text(&self.headers, header::IF_NONE_MATCH).or(nothing).is_some_and(is_named);
        if is_unwanted && self.for_azure {
            return Err(Refusal::new("BlobAlreadyExists", "The specified blob already exists."));
        }
        let is_wanted = text(&self.headers, header::IF_MATCH).is_none_or(is_named);
        if is_wanted && !is_unwanted { Ok(()) } else { Err(precondition_failed()) }
    }
}

pub(super) fn precondition_failed() -> Refusal {
    Refusal::new("PreconditionFailed", "The object is not the one the request is conditional on.")
}

/// Returns a header's text; `None` when it is absent or not text.
pub(super) fn text(headers: &HeaderMap, name: impl AsHeaderName) -> Option<&str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// Whether a list of entity tags contains this one. Weak tags compare by their opaque part; quotes may be missing, as S3
/// allows.
fn names(list: &str, etag: &str) -> bool {
    list.split(',')
        .map(str::trim)
        .any(|tag| tag == "*" || tag.strip_prefix("W/").unwrap_or(tag).trim_matches('"') == etag.trim_matches('"'))
}

/// Parses one byte range; ranges that RFC 9110 calls invalid, and several ranges, are ignored.
fn range(asked: &str, size: u64) -> Verdict {
    let Some((first, last)) = asked.trim().strip_prefix("bytes=").and_then(|spec| spec.split_once('-')) else {
        return Verdict::Whole;
    };
    let (first, last) = (first.trim(), last.trim());
    let number = |text: &str| {
        (!text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().unwrap_or(u64::MAX))
    };
    let range = match (number(first), number(last)) {
        (Some(first), Some(last)) if first <= last => first..last.saturating_add(1).min(size),
        (Some(first), None) if last.is_empty() => first..size,
        (None, Some(suffix)) if first.is_empty() => size.saturating_sub(suffix)..size,
        _ => return Verdict::Whole,
    };
    if range.is_empty() { Verdict::Unsatisfiable } else { Verdict::Part(range) }
}
