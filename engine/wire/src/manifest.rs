//! Manifests: the list of a data set's objects as a text file, for servers that cannot list.
//!
//! One object per line, either `key<TAB>size` or a JSON object with `key`, `size` and, if known, `etag`. A line that
//! starts with `{` is JSON. Keys that hold tabs or line ends, or start with `{`, need the JSON form.

use crate::escape::shown;
use crate::list::Entry;
use crate::range::decimal;
use fuelrail_base::{Error, Kind, Result, limits};

/// Parses a whole manifest, in the order of its lines. Blank lines, CRLF line ends and a byte-order mark are tolerated.
///
/// # Errors
/// [`Kind::Usage`] naming the line number and what is wrong with it; also when a key stands twice.
pub fn parse(text: &[u8]) -> Result<Vec<Entry>> {
    let text = text.strip_prefix(BOM.as_bytes()).unwrap_or(text);
    let mut entries = Vec::new();
    let mut line_numbers = Vec::new();
    for (index, line) in text.split(|byte| *byte == b'\n').enumerate() {
        let number = index + 1;
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.trim_ascii().is_empty() {
            continue;
        }
        let entry = parse_line(line).and_then(|entry| match entry.flaw() {
            None => Ok(entry),
            Some(flaw) => Err(flaw),
        });
        let entry = entry.map_err(|flaw| refusal(number, &flaw))?;
        if entries.len() as u64 == limits::SAMPLES_MAX {
            return Err(refusal(number, &format!("a data set holds at most {} objects", limits::SAMPLES_MAX)));
        }
        entries.push(entry);
        line_numbers.push(number);
    }
    refuse_repeats(&entries, &line_numbers)?;
    Ok(entries)
}

/// Appends the manifest of `entries`: tab-separated lines, or JSON lines when an entity tag or an unusual key needs them.
/// Parsing gives the entries back.
pub fn write(out: &mut Vec<u8>, entries: &[Entry]) {
    let json = entries.iter().any(|entry| entry.etag.is_some() || needs_json(&entry.key));
    for entry in entries {
        if json {
            serde_json::to_writer(&mut *out, entry)
                .expect("strings and numbers always fit JSON, memory always takes it");
        } else {
            out.extend_from_slice(entry.key.as_bytes());
            out.extend_from_slice(format!("\t{}", entry.size).as_bytes());
        }
        out.push(b'\n');
    }
}

const BOM: &str = "\u{FEFF}";

fn needs_json(key: &str) -> bool {
    key.starts_with(['{', '\u{FEFF}']) || key.contains(['\t', '\n', '\r'])
}

fn parse_line(line: &[u8]) -> Result<Entry, String> {
    if line.starts_with(b"{") {
        return serde_json::from_slice(line).map_err(|flaw| {
            // The parser counts lines within what it was given: always one.
            flaw.to_string().replace(" at line 1 column ", " at column ")
        });
    }
    let mut fields = line.split(|byte| *byte == b'\t');
    let (key, size) = match (fields.next(), fields.next(), fields.next()) {
        (Some(key), Some(size), None) => (key, size),
        (_, None, _) => return Err("there is no tab between key and size".into()),
        _ => return Err("there is more than one tab: a key with tabs needs the JSON form".into()),
    };
    let size = decimal(size).ok_or_else(|| format!("the size '{}' is not a number of bytes", shown(size, 64)))?;
    let key = core::str::from_utf8(key).map_err(|_| format!("the key '{}' is not UTF-8", shown(key, 64)))?;
    Ok(Entry { key: key.to_owned(), size, etag: None })
}

/// Sorts positions rather than hashing keys: the same cost, and no ambient randomness.
fn refuse_repeats(entries: &[Entry], line_numbers: &[usize]) -> Result<()> {
    let mut order: Vec<usize> = (0..entries.len()).collect();
    order.sort_by(|a, b| entries[*a].key.cmp(&entries[*b].key));
    let repeat = order.windows(2).find(|pair| entries[pair[0]].key == entries[pair[1]].key);
    let Some(&[first, second]) = repeat else { return Ok(()) };
    let flaw = format!("the key stands on line {} already", line_numbers[first]);
    Err(refusal(line_numbers[second], &flaw).with_object(&*entries[second].key))
}

fn refusal(line: usize, flaw: &str) -> Error {
    Error::new(Kind::Usage, format!("manifest line {line}: {flaw}"))
        .with_hint("write key<TAB>size, or {\"key\":\"…\",\"size\":…,\"etag\":\"…\"}, one object per line")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(key: &str, size: u64, etag: Option<&str>) -> Entry {
        Entry { key: key.into(), size, etag: etag.map(Into::into) }
    }

    #[test]
    fn reads_both_forms() {
        let text = "\u{FEFF}a/1.png\t10\r\n\n  \r\n{\"key\":\"tab\\tkey\",\"size\":0,\"etag\":\"\\\"x\\\"\"}\n b \t7";
        let expected = [entry("a/1.png", 10, None), entry("tab\tkey", 0, Some("\"x\"")), entry(" b ", 7, None)];
        assert_eq!(parse(text.as_bytes()).unwrap(), expected);
        assert_eq!(parse(b"").unwrap(), []);
    }

    #[test]
    fn refusals_name_line_and_flaw() {
        for (text, says) in [
            ("a\t1\nb", "line 2: there is no tab"),
            ("a\tb\t1", "line 1: there is more than one tab"),
            ("a\t1x", "line 1: the size '1x'"),
            ("a\t-1", "line 1: the size '-1'"),
            ("a\t99999999999999999999", "line 1: the size"),
            ("a\t9999999999999999", "above 5497558138880"),
            ("\t1", "line 1: the key is empty"),
            ("\n\na\t1\nb\t2\na\t1", "line 5: the key stands on line 3 already"),
            ("{\"key\":\"a\"}", "line 1: missing field `size`"),
            ("{\"key\":\"a\",\"size\":1,\"sise\":2}", "unknown field `sise`"),
            ("{\"key\":\"a\",\"size\":-1}", "line 1: invalid value"),
            ("{\"key\":\"a\",\"size\":1", "at column"),
            ("{\"key\":\"a\",\"size\":1,\"etag\":\"a\\r\\nX: y\"}", "header line"),
        ] {
            let error = parse(text.as_bytes()).unwrap_err();
            assert_eq!(error.kind(), Kind::Usage, "{text:?}");
            assert!(error.to_string().contains(says), "{text:?}: {error}");
        }
        assert!(parse(b"\xFF\t1").unwrap_err().to_string().contains("not UTF-8"));
        let long = format!("{}\t1", "k".repeat(limits::KEY_BYTES_MAX + 1));
        assert!(parse(long.as_bytes()).unwrap_err().to_string().contains("1025 bytes long"));
    }

    #[test]
    fn writes_the_plain_form_when_it_can() {
        let mut out = Vec::new();
        write(&mut out, &[entry("a b", 1, None), entry("c", 2, None)]);
        assert_eq!(out, b"a b\t1\nc\t2\n");
        out.clear();
        write(&mut out, &[entry("a", 1, None), entry("{b", 2, None)]);
        assert_eq!(out, b"{\"key\":\"a\",\"size\":1}\n{\"key\":\"{b\",\"size\":2}\n");
    }
}
