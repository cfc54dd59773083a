//! Members of a tar archive: ustar headers, and pax ones for names that are long or not ASCII, as Python's `tarfile` writes them.

use super::value::{Value, two_fields};
use crate::tar::{is_meta, split};
use crate::{shown, unsupported};
use fuelrail_base::Result;

const BLOCK_BYTES: usize = 512;
/// Two blocks of zeroes end an archive.
pub(super) const END_BYTES: usize = 2 * BLOCK_BYTES;
const NAME_BYTES_MAX: usize = 100;

/// Appends a record: a member for each field, named by key and field. A slash in a field's name becomes a dot.
pub(super) fn record(key: &str, fields: &[(&str, Value<'_>)], out: &mut Vec<u8>) -> Result<()> {
    if fields.is_empty() {
        return Err(unsupported(
            "it has no field",
            "an archive would lack it: leave it out of the source, or name other --fields",
        ));
    }
    let mut names: Vec<String> = Vec::with_capacity(fields.len());
    for (field, value) in fields {
        let name = field.replace('/', ".").to_lowercase();
        let path = format!("{key}.{name}");
        let is_read = !is_meta(path.as_bytes()) && split(path.as_bytes()) == Some((key.as_bytes(), name.as_bytes()));
        let outside = key.starts_with('/') || key.split('/').any(|part| part == "..") || path.contains('\0');
        if !is_read || outside {
            let cause = format!("its field cannot be a member '{}' of a tar archive", shown(path.as_bytes()));
            return Err(unsupported(
                cause,
                "the file name of a key has no dot and does not begin with __, and its path does not leave a folder",
            ));
        }
        if names.contains(&name) {
            return Err(two_fields(&name));
        }
        names.push(name);
        member(&path, &value.bytes(), out);
    }
    Ok(())
}

fn member(path: &str, content: &[u8], out: &mut Vec<u8>) {
    if !path.is_ascii() || path.len() > NAME_BYTES_MAX {
        let record = pax_record("path", path);
        block("././@PaxHeader", b'x', &record, out);
    }
    block(path, b'0', content, out);
}

/// `LENGTH KEY=VALUE\n`, the length that of the whole record, its own digits included.
fn pax_record(key: &str, value: &str) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let mut length = rest;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    format!("{length} {key}={value}\n").into_bytes()
}

/// A header, and the content filled up to a whole block.
fn block(name: &str, kind: u8, content: &[u8], out: &mut Vec<u8>) {
    let mut header = [0; BLOCK_BYTES];
    let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
    // What a reader without pax sees.
    let plain = name.bytes().map(|byte| if byte.is_ascii() { byte } else { b'?' });
    put(0, &plain.take(NAME_BYTES_MAX).collect::<Vec<u8>>());
    put(100, b"0000644\0");
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    put(124, format!("{:011o}\0", content.len()).as_bytes());
    put(136, b"00000000000\0");
    put(148, b"        ");
    put(156, &[kind]);
    put(257, b"ustar\x0000");
    put(329, b"0000000\0");
    put(337, b"0000000\0");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    out.extend_from_slice(&header);
    out.extend_from_slice(content);
    out.resize(out.len().next_multiple_of(BLOCK_BYTES), 0);
}
