//! Ranges and preconditions of a request, judged against an object.

use core::ops::Range;

use hyper::HeaderMap;
use hyper::header::{self, HeaderName};

use super::refusal::Refusal;

/// What the conditions allow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
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

pub(crate) fn judge(headers: &HeaderMap, etag: &str, size: u64) -> Verdict {
    if let Some(wanted) = text(headers, &header::IF_MATCH)
        && !names(wanted, etag)
    {
        return Verdict::Failed;
    }
    if let Some(known) = text(headers, &header::IF_NONE_MATCH)
        && names(known, etag)
    {
        return Verdict::NotModified;
    }
    let is_same = text(headers, &header::IF_RANGE).is_none_or(|wanted| wanted.trim() == etag);
    match text(headers, &header::RANGE).filter(|_| is_same) {
        Some(asked) => range(asked, size),
        None => Verdict::Whole,
    }
}

/// What a `PUT` wants to find under its key.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct PutCondition {
    wanted: Option<String>,
    unwanted: Option<String>,
    /// Asked in Azure's words, to be refused in them.
    for_azure: bool,
}

impl PutCondition {
    pub(crate) fn of(headers: &HeaderMap, for_azure: bool) -> PutCondition {
        let owned = |name: &HeaderName| text(headers, name).map(str::to_owned);
        // Google's word for "nothing is there".
        let nothing = headers.get("x-goog-if-generation-match").is_some_and(|value| value == "0");
        let unwanted = owned(&header::IF_NONE_MATCH).or_else(|| nothing.then(|| "*".to_owned()));
        PutCondition { wanted: owned(&header::IF_MATCH), unwanted, for_azure }
    }

    /// Against the entity tag of what is there.
    pub(crate) fn check(&self, there: Option<&str>) -> Result<(), Refusal> {
        let is_named = |list: &String| there.is_some_and(|etag| names(list, etag));
        if self.wanted.as_ref().is_some_and(|list| !is_named(list)) {
            return Err(Refusal::precondition_failed());
        }
        match &self.unwanted {
            Some(list) if is_named(list) && self.for_azure => Err(Refusal::already_exists()),
            Some(list) if is_named(list) => Err(Refusal::precondition_failed()),
            _ => Ok(()),
        }
    }

    pub(crate) fn is_any(&self) -> bool {
        self.wanted.is_none() && self.unwanted.is_none()
    }
}

/// A header's text; `None` when absent or not text, which then counts as absent.
pub(crate) fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// Whether a list of entity tags names this one. Weak tags compare by their opaque part; quotes may be missing, as S3
/// allows.
pub(crate) fn names(list: &str, etag: &str) -> bool {
    list.split(',')
        .map(str::trim)
        .any(|tag| tag == "*" || tag.strip_prefix("W/").unwrap_or(tag).trim_matches('"') == etag.trim_matches('"'))
}

/// One range in bytes; what RFC 9110 calls invalid, and several ranges, are ignored.
fn range(asked: &str, size: u64) -> Verdict {
    let Some((first, last)) = asked.trim().strip_prefix("bytes=").and_then(|spec| spec.split_once('-')) else {
        return Verdict::Whole;
    };
    let (first, last) = (first.trim(), last.trim());
    let parse = |text: &str| {
        (!text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().unwrap_or(u64::MAX))
    };
    match (parse(first), parse(last)) {
        (None, Some(suffix)) if first.is_empty() => {
            if suffix == 0 || size == 0 {
                Verdict::Unsatisfiable
            } else {
                Verdict::Part(size.saturating_sub(suffix)..size)
            }
        }
        (Some(first), last_byte) if last_byte.is_some() || last.is_empty() => {
            let last_byte = last_byte.unwrap_or(u64::MAX);
            if last_byte < first {
                Verdict::Whole
            } else if first >= size {
                Verdict::Unsatisfiable
            } else {
                Verdict::Part(first..last_byte.min(size - 1) + 1)
            }
        }
        _ => Verdict::Whole,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges() {
        use Verdict::{Part, Unsatisfiable, Whole};
        for (asked, size, want) in [
            ("bytes=0-9", 100, Part(0..10)),
            ("bytes=90-200", 100, Part(90..100)),
            ("bytes=99-", 100, Part(99..100)),
            ("bytes=-10", 100, Part(90..100)),
            ("bytes=-500", 100, Part(0..100)),
            ("bytes=100-", 100, Unsatisfiable),
            ("bytes=-0", 100, Unsatisfiable),
            ("bytes=0-0", 0, Unsatisfiable),
            ("bytes=-5", 0, Unsatisfiable),
            ("bytes=5-4", 100, Whole),
            ("bytes=0-1,3-4", 100, Whole),
            ("bytes=a-b", 100, Whole),
            ("bytes=-", 100, Whole),
            ("bytes=+1-5", 100, Whole),
            ("bytes=--5", 100, Whole),
            ("bytes=x-5", 100, Whole),
            ("items=0-1", 100, Whole),
            ("bytes=0-99999999999999999999999", 100, Part(0..100)),
        ] {
            assert_eq!(range(asked, size), want, "{asked} of {size}");
        }
    }

    #[test]
    fn tags() {
        assert!(
            names("\"a\", \"b\"", "\"b\"") && names("*", "\"b\"") && names("b", "\"b\"") && names("W/\"b\"", "\"b\"")
        );
        assert!(!names("\"a\"", "\"b\"") && !names("", "\"b\""));
    }
}
