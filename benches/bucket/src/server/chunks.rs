//! Chunked coding, taken off a body: HTTP's own, and `aws-chunked`, which puts a signature behind each size.

use bytes::{Bytes, BytesMut};

/// Longest line of a size or a trailer.
const LINE_BYTES_MAX: usize = 8 << 10;

/// What comes next of a chunked body.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Next {
    Data(Bytes),
    /// Nothing before more bytes have come.
    More,
    End,
    Malformed,
}

/// How far a chunked body is read.
#[derive(Default, Debug)]
pub(super) struct Chunks {
    place: Place,
    /// What stands behind the last chunk.
    pub(super) trailers: Vec<(String, String)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum Place {
    #[default]
    Size,
    Data(u64),
    Trailers,
    End,
}

impl Chunks {
    /// Takes the next bytes of the body from those that came.
    pub(super) fn next(&mut self, from: &mut BytesMut) -> Next {
        loop {
            match self.place {
                Place::End => return Next::End,
                Place::Data(left) if left > 0 => {
                    if from.is_empty() {
                        return Next::More;
                    }
                    let bytes = left.min(from.len() as u64);
                    self.place = Place::Data(left - bytes);
                    return Next::Data(from.split_to(bytes as usize).freeze());
                }
                _ => {}
            }
            let Some(end) = from.iter().position(|&byte| byte == b'\n') else {
                return if from.len() > LINE_BYTES_MAX { Next::Malformed } else { Next::More };
            };
            let line = from.split_to(end + 1);
            let Some(place) = core::str::from_utf8(&line).ok().and_then(|line| self.behind(line.trim())) else {
                return Next::Malformed;
            };
            self.place = place;
        }
    }

    /// The place behind a line.
    fn behind(&mut self, line: &str) -> Option<Place> {
        match self.place {
            Place::Size => {
                let size = line.split(';').next().unwrap_or_default();
                let size = u64::from_str_radix(size.trim(), 16).ok()?;
                Some(if size == 0 { Place::Trailers } else { Place::Data(size) })
            }
            Place::Data(_) => line.is_empty().then_some(Place::Size),
            Place::Trailers if line.is_empty() => Some(Place::End),
            _ => {
                let (name, value) = line.split_once(':')?;
                self.trailers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
                Some(Place::Trailers)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_come_off_wherever_the_bytes_are_cut() {
        let coded = "5;chunk-signature=ab\r\nhello\r\n6\r\n world\r\n0\r\nx-amz-checksum-crc32c:AAAAAA==\r\n\r\n";
        for step in 1..coded.len() {
            let (mut chunks, mut from, mut body) = (Chunks::default(), BytesMut::new(), Vec::new());
            for piece in coded.as_bytes().chunks(step) {
                from.extend_from_slice(piece);
                while let Next::Data(bytes) = chunks.next(&mut from) {
                    body.extend_from_slice(&bytes);
                }
            }
            assert_eq!((body.as_slice(), chunks.next(&mut from)), (b"hello world".as_slice(), Next::End), "{step}");
            assert_eq!(chunks.trailers, [("x-amz-checksum-crc32c".into(), "AAAAAA==".into())]);
        }
        for bad in ["x\r\n", "1\r\nab\r\n", "0\r\nno trailer\r\n"] {
            let (mut chunks, mut from) = (Chunks::default(), BytesMut::from(bad));
            let end = core::iter::repeat_with(|| chunks.next(&mut from)).find(|next| !matches!(next, Next::Data(_)));
            assert_eq!(end, Some(Next::Malformed), "{bad}");
        }
    }
}
