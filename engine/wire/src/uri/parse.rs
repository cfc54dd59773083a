//! The parts of a URI: scheme, host and port, plain web addresses as a whole, and braces as shells read them: `{a,b}` and `{000..127}`
//! stand for several URIs.

use super::{Addressing, Dialect, Endpoint, Scheme, usage};
use crate::escape::{Flaw, decode};
use crate::range::decimal;
use core::net::Ipv6Addr;
use fuelrail_base::{Result, limits};

pub(super) const FORM: &str =
    "write http://HOST:PORT/BUCKET/PREFIX, https, s3://BUCKET/PREFIX, gs://, az://ACCOUNT/CONTAINER/PREFIX or /FOLDER/";
const HOST_BYTES_MAX: usize = 253;

/// What follows the `://` of a plain web address.
pub(super) fn plain(scheme: Scheme, rest: &str) -> Result<Endpoint> {
    refuse_query(rest)?;
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (host, port) = host_and_port(authority)?;
    let port = port.unwrap_or(scheme.port_default());
    let (bucket, prefix) = path.split_once('/').unwrap_or((path, ""));
    let (bucket, prefix) = (decoded(bucket, "bucket")?, decoded(prefix, "prefix")?);
    if bucket.contains('/') {
        return Err(usage("the bucket's name holds a slash ('%2F')", FORM));
    }
    refuse_length(&bucket, &prefix)?;
    let (dialect, base) = (Dialect::of(&host), String::new());
    Ok(Endpoint { scheme, dialect, addressing: Addressing::Path, host, port, base, bucket, prefix })
}

/// The setting that names a server for the clouds' own forms: `http[s]://HOST[:PORT][/BASE]`.
pub(super) fn server(text: &str) -> Result<(Scheme, String, u16, String)> {
    const CURE: &str = "write http[s]://HOST[:PORT]";
    let within = |error: fuelrail_base::Error| usage(&format!("endpoint: {}", error.cause()), CURE);
    let (word, rest) = text.split_once("://").ok_or_else(|| usage("endpoint: it has no scheme", CURE))?;
    refuse_query(rest).map_err(within)?;
    let (authority, base) = rest.split_once('/').unwrap_or((rest, ""));
    let (scheme, host, port) = host_of_server(word, authority).map_err(within)?;
    let base = decoded(base.trim_matches('/'), "path").map_err(within)?;
    Ok((scheme, host, port, base))
}

/// Scheme, host and port of a server: the word before `://` and what follows it up to the path.
pub(crate) fn host_of_server(word: &str, authority: &str) -> Result<(Scheme, String, u16)> {
    let scheme = web_scheme(word).ok_or_else(|| usage("the scheme is neither http nor https", FORM))?;
    let (host, port) = host_and_port(authority)?;
    Ok((scheme, host, port.unwrap_or(scheme.port_default())))
}

pub(super) fn web_scheme(word: &str) -> Option<Scheme> {
    word.to_ascii_lowercase().parse().ok().filter(|scheme| *scheme != Scheme::File)
}

fn refuse_query(rest: &str) -> Result<()> {
    if rest.contains('?') {
        return Err(usage("the URI holds a query ('?')", "leave it out, or write %3F if a key contains it"));
    }
    if rest.contains('#') {
        return Err(usage("the URI holds a fragment ('#')", "leave it out, or write %23 if a key contains it"));
    }
    Ok(())
}

pub(super) fn refuse_length(bucket: &str, prefix: &str) -> Result<()> {
    if prefix.len() > limits::KEY_BYTES_MAX || bucket.len() > limits::KEY_BYTES_MAX {
        let cause = format!("bucket or prefix is longer than {} bytes", limits::KEY_BYTES_MAX);
        return Err(usage(&cause, "no object key is that long: shorten it"));
    }
    Ok(())
}

/// The port is `None` when the URI names none.
fn host_and_port(authority: &str) -> Result<(String, Option<u16>)> {
    if authority.contains('@') {
        return Err(user_information());
    }
    if let Some(inner) = authority.strip_prefix('[') {
        let (address, port) = inner.split_once(']').ok_or_else(|| usage("'[' without ']' in the URI's host", FORM))?;
        if address.parse::<Ipv6Addr>().is_err() {
            let cause = format!("'{}' is not an IPv6 address", address.escape_debug());
            return Err(usage(&cause, "write it as [::1], without a zone"));
        }
        return Ok((address.to_ascii_lowercase(), port_of(port)?));
    }
    let (host, port) = authority.split_at(authority.find(':').unwrap_or(authority.len()));
    if port.matches(':').count() > 1 {
        return Err(usage(
            "the URI's host holds several colons",
            "write an IPv6 address in brackets: http://[::1]:80/",
        ));
    }
    if host.is_empty() {
        return Err(usage("the URI names no host", FORM));
    }
    Ok((host_name(host)?, port_of(port)?))
}

pub(super) fn user_information() -> fuelrail_base::Error {
    usage("the URI holds user information before '@'", "leave it out: credentials never go in a URI")
}

/// `uri` as it can be shown, however wrong it is: without user information, and without a query or fragment, which may hold secrets.
#[must_use]
pub fn without_secrets(uri: &str) -> String {
    let Some((scheme, rest)) = uri.split_once("://") else { return uri.to_owned() };
    let (authority, _) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let is_host = match authority.split_once('@') {
        // The container of a data lake.
        Some((container, host)) => scheme.starts_with("abfs") && !container.contains(':') && !host.contains('@'),
        // Reserved characters of a password may stand as they are: what is behind the colon has to be a port.
        None if authority.starts_with('[') => true,
        None => authority.split_once(':').is_none_or(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit())),
    };
    let shown = if is_host { rest } else { rest.rsplit_once('@').map_or("", |(_, host)| host) };
    let (shown, query) = shown.find(['?', '#']).map_or((shown, ""), |at| (&shown[..at], "?…"));
    format!("{scheme}://{}{shown}{query}", if is_host { "" } else { "…@" })
}

pub(super) fn host_name(host: &str) -> Result<String> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    if host.len() > HOST_BYTES_MAX || !host.bytes().all(fits) {
        let cause = format!("'{}' is not a host name", host.chars().take(64).collect::<String>().escape_debug());
        return Err(usage(&cause, "use letters, digits, '-', '.' and '_' only"));
    }
    Ok(host.to_ascii_lowercase())
}

/// The port after a host: `""` or `":8080"`.
fn port_of(text: &str) -> Result<Option<u16>> {
    if text.is_empty() {
        return Ok(None);
    }
    let number = text.strip_prefix(':').and_then(|digits| decimal(digits.as_bytes()));
    let port = number.and_then(|number| u16::try_from(number).ok()).filter(|port| *port > 0);
    port.map(Some).ok_or_else(|| usage("the URI's port is not a number from 1 to 65535", FORM))
}

pub(super) fn decoded(text: &str, part: &str) -> Result<String> {
    decode(text).map_err(|flaw| match flaw {
        Flaw::Percent => usage(
            &format!("a '%' in the {part} is not followed by two hexadecimal digits"),
            "write %25 for a percent sign",
        ),
        Flaw::Utf8 => usage(&format!("the {part} is not UTF-8 once decoded"), "object keys are UTF-8 text"),
    })
}

/// All URIs that `uri` stands for, in order. Alternatives may be empty and may hold braces themselves; numbers keep their width
/// when one of them begins with a zero, and may run backwards. Braces around anything else are part of the name.
///
/// # Errors
/// [`fuelrail_base::Kind::Usage`] for more than [`limits::PREFIXES_MAX`] of them, or a URI longer than any can be.
pub fn expand(uri: &str) -> Result<Vec<String>> {
    if uri.len() > limits::URI_BYTES_MAX {
        let cause = format!("the URI is longer than {} bytes", limits::URI_BYTES_MAX);
        return Err(usage(&cause, "list the objects in a manifest instead"));
    }
    alternatives(uri, 0)
}

/// Deepest nesting of braces.
const DEPTH_MAX: usize = 8;
/// Most text that braces stand for, bytes.
const TEXT_BYTES_MAX: u64 = 64 << 20;

fn alternatives(text: &str, depth: usize) -> Result<Vec<String>> {
    if depth > DEPTH_MAX {
        let cause = format!("the braces of the URI nest deeper than {DEPTH_MAX}");
        return Err(usage(&cause, "write the alternatives out"));
    }
    let (mut all, mut rest) = (vec![String::new()], text);
    while let Some(open) = rest.find('{') {
        let (before, from) = rest.split_at(open);
        let Some((group, len)) = group(from, depth)? else {
            // The brace stands for itself, but a group may begin after it.
            all = product(&all, &[rest[..=open].to_owned()])?;
            rest = &from[1..];
            continue;
        };
        all = product(&product(&all, &[before.to_owned()])?, &group)?;
        rest = &from[len..];
    }
    product(&all, &[rest.to_owned()])
}

/// Every text of `left` with every one of `right` after it; the last turns fastest.
fn product(left: &[String], right: &[String]) -> Result<Vec<String>> {
    let bytes = |texts: &[String]| texts.iter().map(|text| text.len() as u64).sum::<u64>();
    let (before, behind) = (left.len() as u64, right.len() as u64);
    let text_bytes = bytes(left) * behind + bytes(right) * before;
    if before * behind > limits::PREFIXES_MAX as u64 || text_bytes > TEXT_BYTES_MAX {
        return Err(too_many());
    }
    Ok(left.iter().flat_map(|left| right.iter().map(move |right| format!("{left}{right}"))).collect())
}

fn too_many() -> fuelrail_base::Error {
    let cause = format!("the braces of the URI expand to more than {} prefixes", limits::PREFIXES_MAX);
    usage(&cause, "leave them out where one prefix covers all, or name the objects in a manifest")
}

/// What the braces that `text` begins with stand for, and how long they are. `None` where they are part of the name.
fn group(text: &str, depth: usize) -> Result<Option<(Vec<String>, usize)>> {
    let (mut level, mut from, mut parts) = (0, 1, Vec::new());
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'{' => level += 1,
            b',' | b'}' if level == 1 => {
                parts.push(&text[from..at]);
                from = at + 1;
                if byte == b'}' {
                    break;
                }
            }
            b'}' => level -= 1,
            _ => {}
        }
    }
    if !text[..from].ends_with('}') {
        return Ok(None);
    }
    if let [inner] = parts[..] {
        return Ok(numbers(inner)?.map(|all| (all, from)));
    }
    let mut all = Vec::new();
    for part in parts {
        all.extend(alternatives(part, depth + 1)?);
        if all.len() > limits::PREFIXES_MAX {
            return Err(too_many());
        }
    }
    Ok(Some((all, from)))
}

/// `first..last`, both part of it.
fn numbers(text: &str) -> Result<Option<Vec<String>>> {
    let Some((first, last)) = text.split_once("..") else { return Ok(None) };
    let padded = |text: &str| text.len() > 1 && text.starts_with('0');
    let width = if padded(first) || padded(last) { first.len().max(last.len()) } else { 0 };
    let (Some(first), Some(last)) = (decimal(first.as_bytes()), decimal(last.as_bytes())) else { return Ok(None) };
    if first.abs_diff(last) >= limits::PREFIXES_MAX as u64 {
        return Err(too_many());
    }
    let text = |number: u64| format!("{number:0width$}");
    Ok(Some(if first <= last { (first..=last).map(text).collect() } else { (last..=first).rev().map(text).collect() }))
}
