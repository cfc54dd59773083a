//! A look at a footer before the library reads it, which recurses as deep as the schema is nested: Thrift's compact protocol, walked over.

use crate::bytes::{take, varint};

/// Most elements of a schema, columns and groups. A nest of so many is within any thread's stack.
pub(super) const ELEMENTS_MAX: u64 = 1 << 10;

/// How many elements the schema of a footer has. `None` where the footer is cut off, or nested like none.
pub(super) fn schema_elements(mut footer: &[u8]) -> Option<u64> {
    let (mut elements, mut last) = (0, 0);
    while let Some((id, kind)) = field(&mut footer, last)? {
        let mut list = footer;
        if id as i16 == SCHEMA {
            elements = elements.max(list_head(&mut list)?.0);
        }
        skip(&mut footer, kind, DEPTH_MAX)?;
        last = id;
    }
    Some(elements)
}

/// How deep values are nested, at most; those of Parquet's own are at most eight levels deep.
const DEPTH_MAX: u32 = 16;
/// The field of a footer that is the schema.
const SCHEMA: i16 = 2;

/// The number and type of a structure's next field, `last` being the number before. `Some(None)` at its end.
fn field(bytes: &mut &[u8], last: i64) -> Option<Option<(i64, u8)>> {
    Some(match take(bytes, 1)?[0] {
        0 => None,
        head if head >> 4 > 0 => Some((last.wrapping_add(i64::from(head >> 4)), head & 15)),
        head => {
            let id = varint(bytes)?;
            Some(((id >> 1) as i64 ^ -((id & 1) as i64), head))
        }
    })
}

/// How many elements a list has, and their type.
fn list_head(bytes: &mut &[u8]) -> Option<(u64, u8)> {
    let head = take(bytes, 1)?[0];
    Some((if head >> 4 == 15 { varint(bytes)? } else { u64::from(head >> 4) }, head & 15))
}

/// Goes over a value, of at most `depth` levels.
fn skip(bytes: &mut &[u8], kind: u8, depth: u32) -> Option<()> {
    let depth = depth.checked_sub(1)?;
    match kind {
        // A boolean is in its field's head.
        1 | 2 => {}
        3 => _ = take(bytes, 1)?,
        4..=6 => _ = varint(bytes)?,
        7 => _ = take(bytes, 8)?,
        8 => {
            let length = varint(bytes)?;
            take(bytes, length)?;
        }
        // Lists and sets; in them a boolean takes a byte.
        9 | 10 => {
            let (count, kind) = list_head(bytes)?;
            (0..count).try_for_each(|_| skip(bytes, kind.max(3), depth))?;
        }
        12 => {
            let mut last = 0;
            while let Some((id, kind)) = field(bytes, last)? {
                skip(bytes, kind, depth)?;
                last = id;
            }
        }
        // Nothing of Parquet is a map.
        _ => return None,
    }
    Some(())
}
