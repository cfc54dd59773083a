//! Finding the records of a data set: which ranges of its shards are read, and the scans they are given to.

use super::heads::{Begin, Read, read_apart};
use crate::listing::hash_object;
use fuelrail_base::{Error, Kind, Result};
use fuelrail_flow::{ByteRange, Listing};
use fuelrail_format::bytes::Dtype;
use fuelrail_format::{
    Field, Format, Index, IndexBuilder, Need, Place, Scan, Span, manifest, mds, objects, tar, tfrecord, tokens,
};
use fuelrail_wire::kept::SourceId;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::Xxh3;

/// What is asked of the records.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) format: Format,
    /// What [`content_of`] says of the objects.
    pub(crate) content: [u8; 16],
    /// The field that is the label.
    pub(crate) label: Option<String>,
    /// The field that is decoded, where it is named.
    pub(crate) picture: Option<String>,
    /// Of records that are decoded, the other fields that are wanted.
    pub(crate) wanted: Vec<String>,
    pub(crate) is_decoded: bool,
    /// Of tokens: how many make a record, from the begin of one to that of the next, bytes of a token, and the one that ends a document.
    pub(crate) tokens: (Option<u64>, Option<u64>, u32, Option<u64>),
    /// The file that lists the records.
    pub(crate) file: Option<PathBuf>,
    /// Extensions of side-cars.
    pub(crate) side_cars: Vec<String>,
}

/// Shards are read in pieces of this length, bytes.
const PIECE_BYTES: u64 = 4 << 20;

/// The index of all records, in the order of the listing.
pub(super) fn index(listing: &Listing, asked: &Asked, read: Read<'_>) -> Result<IndexBuilder> {
    let &Asked { format, content, tokens, ref file, ref side_cars, .. } = asked;
    let index = IndexBuilder::new(format, content, listing.len() as u32);
    match format {
        Format::Objects => of_objects(listing, side_cars, index, read),
        Format::WebDataset => {
            let begin = |object, size| Ok(Box::new(tar::Scan::new(object, size)) as Box<dyn Scan>);
            of_shards(listing, |key| key.ends_with(".tar"), &begin, index, read)
        }
        Format::TfRecord => {
            let begin = |object, size| Ok(Box::new(tfrecord::Scan::new(object, size)) as Box<dyn Scan>);
            // `fuelrail pack` leaves a manifest beside its shards.
            of_shards(listing, |key| in_folder(key).1 != "pack.json", &begin, index.without_keys(), read)
        }
        Format::Tokens => of_tokens(listing, tokens, index.without_keys(), read),
        Format::Mds => of_mds(listing, content, read),
        Format::Manifest => of_manifest(listing, file.as_deref(), index),
        Format::Parquet => unreachable!("rows have to be unpacked"),
    }
}

/// The records of shards, into `index`, which is empty.
fn of_shards(
    listing: &Listing,
    is_shard: fn(&str) -> bool,
    begin: Begin<'_>,
    mut index: IndexBuilder,
    read: Read<'_>,
) -> Result<IndexBuilder> {
    let shards: Vec<u32> = (0..listing.len() as u32).filter(|at| is_shard(listing.key(*at as usize))).collect();
    // Of an object without bytes nothing is read that its scan could refuse.
    for at in shards.iter().copied().filter(|at| listing.size(*at as usize) == 0) {
        let mut scan = begin(at, 0)?;
        if scan.need() != Need::Done {
            scan.give(&[], &mut index).map_err(|error| error.with_object(listing.key(at as usize)))?;
        }
    }
    let mut heads = read_apart(listing, shards.iter().copied(), PIECE_BYTES, (begin, &index), read)?;
    let whole = |at: &u32| ByteRange::pieces(*at, listing.size(*at as usize), PIECE_BYTES);
    let mut rest = &shards[..];
    while let Some(first) = rest.first() {
        if let Some((known, is_open)) = heads.remove(first) {
            let extended = Index::open(known).and_then(|known| index.extend(&known));
            extended.map_err(|error| error.with_object(listing.key(*first as usize)))?;
            if is_open {
                index.note_open_end(*first);
            }
            rest = &rest[1..];
            continue;
        }
        let (shards, behind) = rest.split_at(rest.iter().take_while(|at| !heads.contains_key(at)).count());
        index = scan(listing, shards.iter().flat_map(whole), begin, index, read)?;
        rest = behind;
    }
    Ok(index)
}

/// Every object is a record, but for side-cars, which are fields of the record that their key is but for the extension. Those of no object are
/// records without a range, after all others.
fn of_objects(
    listing: &Listing,
    extensions: &[String],
    mut index: IndexBuilder,
    read: Read<'_>,
) -> Result<IndexBuilder> {
    let is_side_car =
        |extension: &str| extensions.iter().any(|name| name.trim_start_matches('.').eq_ignore_ascii_case(extension));
    let split = (0..listing.len()).filter_map(|at| objects::split(listing.key(at)).map(|split| (at, split)));
    let (side_cars, own): (Vec<_>, Vec<_>) = split.partition(|(_, (_, extension))| is_side_car(extension));
    let mut beside: BTreeMap<&str, Vec<(String, Vec<u8>)>> = BTreeMap::new();
    let whole = |(at, _): &(usize, _)| ByteRange { object: *at as u32, first: 0, len: listing.size(*at) };
    let ranges = side_cars.iter().map(whole).collect();
    let mut side_cars = side_cars.into_iter();
    read(ranges, &mut |_, bytes| {
        if let Some((_, (stem, extension))) = side_cars.next() {
            beside.entry(stem).or_default().push((extension, bytes.to_vec()));
        }
        Ok(())
    })?;
    let mut owners = BTreeMap::new();
    for (at, (stem, _)) in own.iter().filter(|(_, (stem, _))| beside.contains_key(*stem)) {
        if let Some(other) = owners.insert(*stem, *at) {
            let cause = format!("it has the same side-cars as '{}'", listing.key(other).escape_debug());
            let error = Error::new(Kind::Usage, cause).with_object(listing.key(*at));
            return Err(error.with_hint("rename one of the two, or name its extension in side_cars"));
        }
    }
    let push = |index: &mut IndexBuilder, stem: &str, own: Option<(usize, Field<'_>)>, sides: &[(String, Vec<u8>)]| {
        let mut fields: Vec<_> = own.into_iter().collect();
        for (name, bytes) in sides {
            fields.push((index.field(name, Place::Value)?, Field::Value(bytes)));
        }
        index.push(stem.as_bytes(), &fields)
    };
    for (at, (stem, extension)) in own {
        let known = (0..index.field_count()).find(|field| index.field_name(*field) == extension);
        let place = if index.field_count() == 0 { Place::Near } else { Place::SideCar };
        let named = |error: Error| error.with_object(listing.key(at));
        let field = known.map_or_else(|| index.field(&extension, place), Ok).map_err(named)?;
        let span = Span { object: at as u32, offset: 0, length: listing.size(at) };
        let sides = beside.remove(stem).unwrap_or_default();
        push(&mut index, stem, Some((field, Field::Span(span))), &sides).map_err(named)?;
    }
    for (stem, sides) in beside {
        push(&mut index, stem, None, &sides).map_err(|error| error.with_object(stem))?;
    }
    Ok(index)
}

/// Windows over arrays of tokens, or all of each. None goes over the end of an object, and what is left there is no sample; nor over the end of a
/// document, where those are told apart, and there it is.
fn of_tokens(
    listing: &Listing,
    (window, stride, bytes, document_end): (Option<u64>, Option<u64>, u32, Option<u64>),
    mut index: IndexBuilder,
    read: Read<'_>,
) -> Result<IndexBuilder> {
    let bytes = u64::from(bytes);
    let is_sound = [window, stride].iter().flatten().all(|tokens| (1..=TOKENS_MAX).contains(tokens));
    if !is_sound || !(1..=8).contains(&bytes) {
        let show = |tokens: Option<u64>| tokens.map_or("none".into(), |tokens| tokens.to_string());
        let cause = format!("token_window is {}, token_stride {} and token_bytes {bytes}", show(window), show(stride));
        return Err(Error::new(Kind::Usage, cause)
            .with_hint("set a window and a stride of at least 1, and 2 bytes for uint16 or 4 for uint32"));
    }
    let field = index.field("tokens", Place::Near)?;
    let Some(window) = window else { return of_documents(listing, (bytes, document_end), index, read) };
    let files = IndexBuilder::new(Format::Tokens, [0; 16], listing.len() as u32).without_keys();
    let files = of_documents(listing, (bytes, document_end), files, read)?;
    // Counted in bytes, tokens may be of any length.
    let (length, stride) = (window * bytes, stride.unwrap_or(window) * bytes);
    for document in Index::open(files.to_bytes())?.iter().filter_map(|record| record.field(0)) {
        let Field::Span(document) = document else { continue };
        for span in tokens::windows(document, length, stride, document_end.is_some()) {
            index.push(&[], &[(field, Field::Span(span))])?;
        }
    }
    Ok(index)
}

/// Every object is a range of the index; where the token that ends documents is known, every document in one.
fn of_documents(
    listing: &Listing,
    (bytes, end): (u64, Option<u64>),
    mut index: IndexBuilder,
    read: Read<'_>,
) -> Result<IndexBuilder> {
    let dtype = match bytes {
        1 => Some(Dtype::U8),
        2 => Some(Dtype::U16),
        4 => Some(Dtype::U32),
        8 => Some(Dtype::U64),
        _ => None,
    };
    if end.is_some() && dtype.is_none() {
        let cause = format!("token_document_end with token_bytes = {bytes}");
        return Err(Error::new(Kind::Usage, cause).with_hint("tokens of 1, 2, 4 or 8 bytes have documents"));
    }
    // `fuelrail pack` leaves a manifest beside its shards.
    let is_shard = |at: &u32| in_folder(listing.key(*at as usize)).1 != "pack.json";
    let objects: Vec<(u32, u64)> =
        (0..listing.len() as u32).filter(is_shard).map(|at| (at, listing.size(at as usize))).collect();
    if let Some((object, size)) = objects.iter().find(|(_, size)| !size.is_multiple_of(bytes)) {
        let cause = format!("its {size} bytes are no whole number of tokens of {bytes}");
        let error = Error::new(Kind::Undecodable, cause).with_object(listing.key(*object as usize));
        return Err(error.with_hint("check token_bytes, and what the prefix holds"));
    }
    let Some((end, dtype)) = end.zip(dtype) else {
        for (object, size) in objects.into_iter().filter(|(_, size)| *size > 0) {
            index.push_range(object, 0, size)?;
        }
        return Ok(index);
    };
    let begin = |object, size| Ok(Box::new(tokens::Scan::new(object, size, dtype, end as i64)?) as Box<dyn Scan>);
    let pieces = objects.into_iter().flat_map(|(at, size)| ByteRange::pieces(at, size, PIECE_BYTES));
    scan(listing, pieces, begin, index, read)
}

/// The records that a local file lists, in its order.
fn of_manifest(listing: &Listing, file: Option<&Path>, mut index: IndexBuilder) -> Result<IndexBuilder> {
    let Some(path) = file else {
        let error = Error::new(Kind::Usage, "format is manifest, and record_file is not set");
        return Err(
            error.with_hint("set record_file to a CSV or JSONL file of key, offset, length and any other fields")
        );
    };
    let failed = |error| Error::from_io(Kind::File, format_args!("cannot read {}", path.display()), error);
    let is_csv = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("csv"));
    let syntax = if is_csv { manifest::Syntax::Csv } else { manifest::Syntax::Jsonl };
    let file = File::open(path).map_err(failed)?;
    let size = file.metadata().map_err(failed)?.len();
    let object = |key: &str| find(listing, key).map(|at| (at, listing.size(at as usize)));
    let (mut scan, mut bytes) = (manifest::Scan::new(syntax, size, object), Vec::new());
    while let Need::Read { offset, at_least } = scan.need() {
        bytes.resize(at_least.max(PIECE_BYTES).min(size - offset) as usize, 0);
        file.read_exact_at(&mut bytes, offset).map_err(failed)?;
        scan.give(&bytes, &mut index).map_err(|error| error.within(path.display()))?;
    }
    Ok(index)
}

/// Longest window and stride, tokens: bytes of both and of an object can be added up.
const TOKENS_MAX: u64 = 1 << 37;

/// A shard of MDS that is listed, as it is or compressed.
#[derive(Debug)]
pub(crate) struct MdsShard {
    pub(crate) object: u32,
    pub(crate) shard: mds::Shard,
    /// Of the object.
    pub(crate) compression: Option<mds::Compression>,
}

/// The shards that every `index.json` of the listing names, in the order of the listing, and what all of them have in common.
pub(crate) fn mds_shards(listing: &Listing, read: Read<'_>) -> Result<(mds::DataSet, Vec<MdsShard>)> {
    let names: Vec<u32> =
        (0..listing.len() as u32).filter(|at| in_folder(listing.key(*at as usize)).1 == "index.json").collect();
    let whole = |object: u32| ByteRange { object, first: 0, len: listing.size(object as usize) };
    let mut sets = Vec::new();
    read(names.into_iter().map(whole).collect(), &mut |document, bytes| {
        let key = listing.key(document.object as usize);
        sets.push((in_folder(key).0, mds::DataSet::parse(bytes).map_err(|error| error.with_object(key))?));
        Ok(())
    })?;
    let Some((_, first)) = sets.iter().find(|(_, set)| !set.shards.is_empty()).or(sets.first()) else {
        let error = Error::new(Kind::Usage, "no object of the data set is named index.json");
        return Err(error.with_hint("name the folder that MDSWriter wrote, or another format"));
    };
    let common = mds::DataSet { shards: Vec::new(), ..first.clone() };
    let mut shards = Vec::new();
    for (folder, set) in sets {
        // A writer that was given no sample knows no columns.
        if set.columns != common.columns && !set.shards.is_empty() {
            let error = Error::new(Kind::Usage, format!("'{folder}index.json' has other columns than the first one"));
            return Err(error.with_hint("read the two as two data sets"));
        }
        for shard in set.shards {
            let find = |name: &str| find(listing, &format!("{folder}{name}"));
            let (object, compression) = match find(&shard.raw.basename) {
                Some(object) => (Some(object), None),
                None => (shard.zip.as_ref().and_then(|zip| find(&zip.basename)), set.compression),
            };
            let object = object.ok_or_else(|| {
                let cause = format!("index.json names a shard '{}' that is not there", shard.stored().basename);
                Error::new(Kind::NotFound, cause).with_object(format!("{folder}{}", shard.stored().basename))
            })?;
            shards.push(MdsShard { object, shard, compression });
        }
    }
    // The order of samples is that of the listing, as with every format.
    shards.sort_unstable_by_key(|shard| shard.object);
    // An index of a folder may name again the shards that those of the folders below name.
    shards.dedup_by_key(|shard| shard.object);
    Ok((common, shards))
}

/// The samples of all shards of MDS, none of which is compressed.
fn of_mds(listing: &Listing, content: [u8; 16], read: Read<'_>) -> Result<IndexBuilder> {
    let (set, shards) = mds_shards(listing, read)?;
    // A shard begins with its number of samples and their offsets.
    let heads = shards.iter().map(|MdsShard { object, shard, .. }| {
        let len = (4 * (u64::from(shard.samples) + 2)).min(listing.size(*object as usize));
        ByteRange { object: *object, first: 0, len }
    });
    let scanned = |object: u32, size| {
        let at = shards.binary_search_by_key(&object, |shard| shard.object).expect("only heads of shards are read");
        Ok(Box::new(mds::Scan::new(object, size, &shards[at].shard, &set.columns)?) as Box<dyn Scan>)
    };
    scan(listing, heads, scanned, set.index(content, listing.len() as u32), read)
}

/// The error for a data set without a record.
pub(super) fn nothing(listing: &Listing, format: Format) -> Error {
    const COMPRESSED: [&str; 5] = [".tar.gz", ".tgz", ".tar.zst", ".tar.bz2", ".tar.xz"];
    let cause = format!("no record of {format} is in the {} objects of the data set", listing.len());
    let mut keys = (0..listing.len()).map(|at| listing.key(at)).filter(|_| format == Format::WebDataset);
    match keys.find(|key| COMPRESSED.iter().any(|end| key.ends_with(end))) {
        Some(key) => {
            let cause =
                format!("{cause}; '{}' is a compressed archive, of which no ranges can be read", key.escape_debug());
            Error::new(Kind::Usage, cause).with_hint("unpack it to a plain .tar, or write shards without compression")
        }
        None => Error::new(Kind::Usage, cause).with_hint("check the prefix and the format"),
    }
}

/// What the notice of archives that may have been cut begins with.
pub const OPEN_END: &str = "archives that end without an end-of-archive mark";
/// Archives that it names.
const NAMED_MAX: usize = 3;

/// The notice of these objects, if there are any.
pub(super) fn open_ends(listing: &Listing, objects: &[u32]) -> Option<String> {
    let name = |at: &u32| format!("'{}'", listing.key(*at as usize).escape_debug());
    let named: Vec<String> = objects.iter().take(NAMED_MAX).map(name).collect();
    let more = objects.len() - named.len();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let cure = "they may have been cut between two records: compare their sizes with the source, or write them again";
    (!named.is_empty()).then(|| format!("{OPEN_END}: {}{more}; {cure}", named.join(", ")))
}

/// A key's folder with its slash, and the name in it.
fn in_folder(key: &str) -> (&str, &str) {
    key.split_at(key.rfind('/').map_or(0, |slash| slash + 1))
}

/// An object by its key: listings are sorted.
fn find(listing: &Listing, key: &str) -> Option<u32> {
    let at = listing.first_from(key);
    (at < listing.len() && listing.key(at) == key).then_some(at as u32)
}

/// Scans the objects whose pieces these are, in their order.
fn scan(
    listing: &Listing,
    pieces: impl Iterator<Item = ByteRange>,
    mut begin: impl FnMut(u32, u64) -> Result<Box<dyn Scan>>,
    mut index: IndexBuilder,
    read: Read<'_>,
) -> Result<IndexBuilder> {
    let mut scanning: Option<Scanning> = None;
    read(pieces.collect(), &mut |piece, bytes| {
        let named = |error: Error| error.with_object(listing.key(piece.object as usize));
        if scanning.as_ref().is_none_or(|scanning| scanning.object != piece.object) {
            let scan = begin(piece.object, listing.size(piece.object as usize)).map_err(named)?;
            scanning = Some(Scanning { object: piece.object, scan, begun: Vec::new() });
        }
        let scanned = scanning.as_mut().map_or(Ok(()), |scanning| scanning.take(piece.first, bytes, &mut index));
        scanned.map_err(named)
    })?;
    Ok(index)
}

/// The scan of one shard that comes in pieces.
struct Scanning {
    object: u32,
    scan: Box<dyn Scan>,
    /// The begin of what the scan needs, where that goes beyond a piece.
    begun: Vec<u8>,
}

impl Scanning {
    /// Takes a piece from byte `first` of the object on; pieces come in order, and all of them.
    fn take(&mut self, first: u64, bytes: &[u8], index: &mut IndexBuilder) -> Result<()> {
        while let Need::Read { offset, at_least } = self.scan.need() {
            let from = (offset + self.begun.len() as u64).saturating_sub(first) as usize;
            let Some(there) = bytes.get(from..).filter(|there| !there.is_empty()) else { return Ok(()) };
            let missing = at_least as usize - self.begun.len();
            if there.len() < missing || !self.begun.is_empty() {
                self.begun.extend_from_slice(&there[..missing.min(there.len())]);
                if there.len() < missing {
                    return Ok(());
                }
                self.scan.give(&std::mem::take(&mut self.begun), index)?;
            } else {
                self.scan.give(there, index)?;
            }
        }
        Ok(())
    }
}

/// What tells one content of a data set from another: a hash of where it is, whether its server was verified, keys, sizes and entity tags,
/// and the fields that are read, or are side-cars. `None` where an object has no tag: nothing tells then whether it changed.
pub(crate) fn content_of<'n>(
    id: SourceId,
    listing: &Listing,
    fields: impl Iterator<Item = &'n String>,
) -> Option<[u8; 16]> {
    let mut hash = Xxh3::new();
    hash.update(&id.0);
    for at in 0..listing.len() {
        let (key, tag) = (listing.key(at), listing.etag(at)?);
        hash_object(&mut hash, key, &tag, listing.size(at));
    }
    fields.for_each(|field| hash.update(format!("{field}\n").as_bytes()));
    Some(hash.digest128().to_le_bytes())
}
