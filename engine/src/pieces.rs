//! Reading a source a piece at a time. Owns nothing.

use std::io::{ErrorKind, Read, Result};

/// Some more bytes; none at the end. A signal that comes meanwhile is no end.
pub(crate) fn read_some(source: &mut (impl Read + ?Sized), piece: &mut [u8]) -> Result<usize> {
    loop {
        match source.read(piece) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            read => return read,
        }
    }
}
