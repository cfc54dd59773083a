//! Braces as shells read them: `{a,b}` and `{000..127}` stand for several URIs.

use super::usage;
use crate::range::decimal;
use fuelrail_base::{Result, limits};

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
            // The brace stands for itself, but a group may begin behind it.
            all = product(&all, &[rest[..=open].to_owned()])?;
            rest = &from[1..];
            continue;
        };
        all = product(&product(&all, &[before.to_owned()])?, &group)?;
        rest = &from[len..];
    }
    product(&all, &[rest.to_owned()])
}

/// Every text of `left` with every one of `right` behind it; the last turns fastest.
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
