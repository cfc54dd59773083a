//! Braces as shells read them: `{a,b}` and `{000..127}` stand for several URIs.

use super::usage;
use fuelrail_base::{Result, limits};

/// All URIs that `uri` stands for, in order. Alternatives may be empty and may hold braces themselves; numbers keep their width
/// when one of them begins with a zero, and may run backwards. Braces around anything else are part of the name.
///
/// # Errors
/// [`fuelrail_base::Kind::Usage`] for more than [`limits::PREFIXES_MAX`] of them, or a URI longer than any can be.
pub fn expand(uri: &str) -> Result<Vec<String>> {
    if uri.len() > limits::URI_BYTES_MAX {
        let cause = format!("the URI is longer than {} bytes", limits::URI_BYTES_MAX);
        return Err(usage(&cause, "name the objects in a manifest instead"));
    }
    alternatives(uri, 0)
}

/// Deepest nesting of braces.
const DEPTH_MAX: usize = 8;
/// Most text that braces stand for: a longest URI for every prefix would be.
const TEXT_BYTES_MAX: u64 = 64 << 20;

fn alternatives(text: &str, depth: usize) -> Result<Vec<String>> {
    if depth > DEPTH_MAX {
        return Err(usage(
            &format!("the braces of the URI nest deeper than {DEPTH_MAX}"),
            "write the alternatives out",
        ));
    }
    let mut parts: Vec<Vec<String>> = vec![vec![String::new()]];
    let mut rest = text;
    while let Some(open) = rest.find('{') {
        let (before, from) = rest.split_at(open);
        let Some(group) = Group::at(from) else {
            // No group: the brace stands for itself, but one may begin behind it.
            literal(&mut parts, &rest[..=open]);
            rest = &from[1..];
            continue;
        };
        literal(&mut parts, before);
        parts.push(group.expand(depth)?);
        rest = &from[group.len..];
    }
    literal(&mut parts, rest);
    product(&parts)
}

fn literal(parts: &mut Vec<Vec<String>>, text: &str) {
    match parts.last_mut() {
        Some(last) if last.len() == 1 => last[0].push_str(text),
        _ => parts.push(vec![text.to_owned()]),
    }
}

fn product(parts: &[Vec<String>]) -> Result<Vec<String>> {
    let count = parts.iter().try_fold(1_u64, |count, part| count.checked_mul(part.len() as u64));
    let longest: usize = parts.iter().map(|part| part.iter().map(String::len).max().unwrap_or(0)).sum();
    let few = |count: &u64| *count <= limits::PREFIXES_MAX as u64 && *count * longest as u64 <= TEXT_BYTES_MAX;
    let count = count.filter(few).ok_or_else(too_many)?;
    let texts = (0..count).map(|number| {
        let mut left = number;
        // The last part turns fastest: digits from the end, texts from the start.
        let mut digits: Vec<usize> = Vec::with_capacity(parts.len());
        for part in parts.iter().rev() {
            digits.push((left % part.len() as u64) as usize);
            left /= part.len() as u64;
        }
        parts.iter().zip(digits.iter().rev()).map(|(part, digit)| part[*digit].as_str()).collect()
    });
    Ok(texts.collect())
}

fn too_many() -> fuelrail_base::Error {
    let cause = format!("the braces of the URI stand for more than {} prefixes", limits::PREFIXES_MAX);
    usage(&cause, "leave them out where one prefix covers all, or name the objects in a manifest")
}

/// Braces that stand for something, from the first one on.
struct Group<'a> {
    inner: &'a str,
    commas: Vec<usize>,
    len: usize,
}

impl<'a> Group<'a> {
    fn at(text: &'a str) -> Option<Group<'a>> {
        let (mut depth, mut commas) = (0, Vec::new());
        for (at, byte) in text.bytes().enumerate() {
            match byte {
                b'{' => depth += 1,
                b',' if depth == 1 => commas.push(at - 1),
                b'}' if depth == 1 => {
                    let group = Group { inner: &text[1..at], commas, len: at + 1 };
                    return (!group.commas.is_empty() || Numbers::of(group.inner).is_some()).then_some(group);
                }
                b'}' => depth -= 1,
                _ => {}
            }
        }
        None
    }

    fn expand(&self, depth: usize) -> Result<Vec<String>> {
        if let (true, Some(numbers)) = (self.commas.is_empty(), Numbers::of(self.inner)) {
            return numbers.texts();
        }
        let mut all = Vec::new();
        let ends = self.commas.iter().copied().chain([self.inner.len()]);
        let mut from = 0;
        for end in ends {
            all.extend(alternatives(&self.inner[from..end], depth + 1)?);
            from = end + 1;
            if all.len() > limits::PREFIXES_MAX {
                return Err(too_many());
            }
        }
        Ok(all)
    }
}

/// `first..last`, both part of it.
struct Numbers {
    first: u64,
    last: u64,
    width: usize,
}

impl Numbers {
    fn of(text: &str) -> Option<Numbers> {
        let (first, last) = text.split_once("..")?;
        let number = |text: &str| {
            let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            plain.then(|| text.parse::<u64>().ok()).flatten()
        };
        let padded = |text: &str| text.len() > 1 && text.starts_with('0');
        let width = if padded(first) || padded(last) { first.len().max(last.len()) } else { 0 };
        Some(Numbers { first: number(first)?, last: number(last)?, width })
    }

    fn texts(&self) -> Result<Vec<String>> {
        let Numbers { first, last, width } = *self;
        if first.abs_diff(last) >= limits::PREFIXES_MAX as u64 {
            return Err(too_many());
        }
        let text = |number: u64| format!("{number:0width$}");
        Ok(if first <= last { (first..=last).map(text).collect() } else { (last..=first).rev().map(text).collect() })
    }
}
