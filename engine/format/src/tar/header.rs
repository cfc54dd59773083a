//! One header block of an archive, and what extended headers add to it.

/// Bytes of a header; contents are padded to a multiple of it.
pub(super) const BLOCK_BYTES: u64 = 512;
const NAME: core::ops::Range<usize> = 0..100;
const SIZE: core::ops::Range<usize> = 124..136;
const SUM: core::ops::Range<usize> = 148..156;
const KIND: usize = 156;
const MAGIC: core::ops::Range<usize> = 257..263;
const PREFIX: core::ops::Range<usize> = 345..500;

/// What a member is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Regular,
    /// Of old archives, whose directories are known by the slash that ends their name.
    Old,
    /// A link, directory, device or pipe: no content follows, whatever its size says.
    Empty,
    /// GNU: the name of the next member.
    LongName,
    /// GNU: the target of the next member, a link.
    LongLink,
    /// pax: of the next member.
    Local,
    /// pax: of all members that follow.
    Global,
    Sparse,
    /// Any other: skipped with its content.
    Other,
}

impl Kind {
    /// Whether it describes members, and then whether all that follow.
    pub(super) fn extended(self) -> Option<bool> {
        match self {
            Kind::LongName | Kind::LongLink | Kind::Local => Some(false),
            Kind::Global => Some(true),
            _ => None,
        }
    }

    pub(super) fn has_content(self) -> bool {
        self != Kind::Empty
    }
}

pub(super) struct Header<'a> {
    block: &'a [u8],
    pub(super) kind: Kind,
    pub(super) size: u64,
}

impl<'a> Header<'a> {
    /// Reads a block of [`BLOCK_BYTES`] and verifies its checksum.
    pub(super) fn parse(block: &'a [u8]) -> Result<Header<'a>, String> {
        let stored = number(&block[SUM]).ok_or("it is no tar header: the checksum is not a number")?;
        let sum = |add: fn(u8) -> i64| {
            let all: i64 = block.iter().map(|byte| add(*byte)).sum();
            let own: i64 = block[SUM].iter().map(|byte| add(*byte)).sum();
            all - own + SUM.len() as i64 * i64::from(b' ')
        };
        // Old programs took bytes as signed.
        let stored = i64::try_from(stored).unwrap_or(-1);
        if stored != sum(i64::from) && stored != sum(|byte| i64::from(byte as i8)) {
            return Err("it is no tar header: the checksum does not match".into());
        }
        let kind = match block[KIND] {
            b'0' | b'7' => Kind::Regular,
            0 => Kind::Old,
            b'1'..=b'6' => Kind::Empty,
            b'L' => Kind::LongName,
            b'K' => Kind::LongLink,
            b'x' | b'X' => Kind::Local,
            b'g' => Kind::Global,
            b'S' => Kind::Sparse,
            _ => Kind::Other,
        };
        let size = number(&block[SIZE]).ok_or("the size of the member is not a number")?;
        Ok(Header { block, kind, size })
    }

    pub(super) fn is_regular(&self) -> bool {
        let is_directory = self.kind == Kind::Old && until_nul(&self.block[NAME]).ends_with(b"/");
        matches!(self.kind, Kind::Regular | Kind::Old) && !is_directory
    }

    /// Its path; `room` is where the two parts that ustar divides it into are joined.
    pub(super) fn path<'b>(&'b self, room: &'b mut [u8; 256]) -> &'b [u8] {
        let (name, prefix) = (until_nul(&self.block[NAME]), until_nul(&self.block[PREFIX]));
        // GNU's magic goes on with a space; its headers have times in the place of a prefix.
        if &self.block[MAGIC] != b"ustar\0" || prefix.is_empty() {
            return name;
        }
        let len = prefix.len() + 1 + name.len();
        room[..prefix.len()].copy_from_slice(prefix);
        room[prefix.len()] = b'/';
        room[prefix.len() + 1..len].copy_from_slice(name);
        &room[..len]
    }
}

/// What extended headers say of members. Where two say the same of one member, the first counts, of all that follow the last, as in
/// Python's `tarfile`.
#[derive(Default, Debug)]
pub(super) struct Extended {
    pub(super) path: Option<Vec<u8>>,
    pub(super) size: Option<u64>,
    pub(super) is_sparse: bool,
}

impl Extended {
    pub(super) fn long_name(&mut self, content: &[u8]) {
        self.path.get_or_insert_with(|| until_nul(content).to_vec());
    }

    /// Reads the records of a pax header: `LENGTH KEY=VALUE\n`, the length that of the whole record.
    pub(super) fn read(&mut self, mut content: &[u8], of_all: bool) -> Result<(), String> {
        let mut own = Extended::default();
        // Some writers fill up with zeroes.
        while content.first().is_some_and(|byte| *byte != 0) {
            let (key, value, rest) = pax_record(content).ok_or("a malformed record of a pax header")?;
            content = rest;
            match key {
                b"path" => own.path = (!value.is_empty()).then(|| value.to_vec()),
                b"size" if value.is_empty() => own.size = None,
                b"size" => {
                    let size = core::str::from_utf8(value).ok().filter(|text| text.bytes().all(|b| b.is_ascii_digit()));
                    let size = size.and_then(|text| text.parse().ok());
                    own.size = Some(size.ok_or("the size in a pax header is not a number")?);
                }
                _ => own.is_sparse |= key.starts_with(b"GNU.sparse."),
            }
        }
        let (first, last) = if of_all { (&own, &*self) } else { (&*self, &own) };
        let path = first.path.as_ref().or(last.path.as_ref()).cloned();
        *self = Extended { path, size: first.size.or(last.size), is_sparse: first.is_sparse || last.is_sparse };
        Ok(())
    }
}

/// Key, value and what follows.
fn pax_record(content: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let space = content.iter().take(20).position(|byte| *byte == b' ')?;
    let length: usize = core::str::from_utf8(&content[..space]).ok()?.parse().ok()?;
    let record = content.get(space + 1..length)?.strip_suffix(b"\n")?;
    let equals = record.iter().position(|byte| *byte == b'=')?;
    Some((&record[..equals], &record[equals + 1..], &content[length..]))
}

pub(super) fn is_zero(block: &[u8]) -> bool {
    block.iter().all(|byte| *byte == 0)
}

fn until_nul(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len())]
}

/// An octal number up to a NUL, spaces around it, or a big-endian one after a byte 0x80. Empty is 0.
fn number(field: &[u8]) -> Option<u64> {
    if field[0] == 0x80 {
        let (high, low) = field.split_at(field.len().saturating_sub(8).max(1));
        let is_small = high[1..].iter().all(|byte| *byte == 0);
        return is_small.then(|| low.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)));
    }
    let digits = until_nul(field).trim_ascii();
    let digit = |byte: &u8| (b'0'..=b'7').contains(byte).then(|| u64::from(byte - b'0'));
    digits.iter().try_fold(0_u64, |number, byte| Some(number.checked_mul(8)? | digit(byte)?))
}
