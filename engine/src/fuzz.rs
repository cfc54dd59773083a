//! What must hold for any bytes at all that this crate reads. Fuzz targets and the corpus test run the same functions, and those of
//! [`fuelrail_wire::fuzz`] beside them.
//!
//! Each function panics when an invariant breaks and returns otherwise. Nothing here is for users of the crate.

use crate::audit::Audit;
use crate::config::{Config, Values};
use crate::credentials;
use crate::decode::{Decode, Dtype, Fit, PictureDecoder};
use crate::importance::Table;
use crate::state::State;
use fuelrail_base::{Kind, Result};
use fuelrail_flow::Listing;
use fuelrail_wire::fuzz::{TARGETS, Target};
use fuelrail_wire::kept::HEADER_BYTES;

/// The targets of this crate.
pub const OWN: [Target; 6] = [
    ("audit", audit),
    ("config", config),
    ("credentials", credentials::understood),
    ("listing", listing),
    ("picture", picture),
    ("saved", saved),
];

/// Every target there is.
pub fn targets() -> impl Iterator<Item = Target> {
    TARGETS.into_iter().chain(OWN)
}

fn usage<T>(read: Result<T>) -> Option<T> {
    read.inspect_err(|error| assert_eq!(error.kind(), Kind::Usage, "{error}")).ok()
}

/// A log that is understood can be joined, and where its run continues can be compared with where it began.
fn audit(bytes: &[u8]) {
    let Ok(text) = core::str::from_utf8(bytes) else { return };
    let Some(log) = usage(Audit::parse(text)) else { return };
    usage(log.last_state().check(log.start()));
    usage(Audit::join(&[log]));
}

/// Settings that are accepted are accepted as they are printed, and mean the same.
fn config(bytes: &[u8]) {
    let Some(text) = core::str::from_utf8(bytes).ok() else { return };
    let (Ok(table), Ok(values)) = (text.parse::<toml::Table>(), toml::from_str::<Values>(text)) else { return };
    // As a file has them, and as the environment does: all of it text.
    let texts = table.iter().filter_map(|(name, value)| Some((format!("FUELRAIL_{name}"), value.as_str()?.to_owned())));
    usage(Config::from_values(Values::new(), texts.collect::<Vec<_>>(), &[]));
    if let Some(config) = usage(Config::from_values(values, Vec::new(), &[])) {
        let printed = toml::to_string(&config).expect("settings can be printed");
        let read = toml::from_str(&printed).expect("what is printed is TOML");
        assert_eq!(Config::from_values(read, Vec::new(), &[]), Ok(config));
    }
}

/// A saved listing that is believed can be read, and is written as it stands. The first byte is how many objects it has, and its checksum fits.
fn listing(bytes: &[u8]) {
    let [objects, body @ ..] = bytes else { return };
    let header = [0; HEADER_BYTES];
    let mut file = [&header, body].concat();
    file.extend(crc32c::crc32c(&file).to_le_bytes());
    let Ok(listing) = Listing::of_file(file.clone(), u64::from(*objects)) else { return };
    assert!(listing.is_sorted() && listing.iter().count() == usize::from(*objects));
    let mut written = Vec::new();
    listing.write(&header, &mut written).expect("memory takes all");
    assert!(written == file);
}

/// A picture or a sound fills its sample or is an error. The first byte chooses the sample's shape.
fn picture(bytes: &[u8]) {
    let [choice, file @ ..] = bytes else { return };
    let fit = [Fit::Exact, Fit::CenterCrop, Fit::RandomCrop][usize::from(choice % 3)];
    let channels = if choice & 64 == 0 { 1 } else { 3 };
    let picture = Decode { fit, flip: choice & 128 != 0, ..Decode::exact(8, 8, channels) };
    let wanted = if choice & 32 == 0 { picture } else { Decode { height: 1, dtype: Dtype::F32, ..picture } };
    let mut out = vec![0; wanted.sample_bytes() as usize];
    if let Err(error) = PictureDecoder::new(wanted).decode(file, 0, &mut out) {
        assert_eq!(error.kind(), Kind::Undecodable);
    }
}

/// A state is written as it was read; scores belong to their state or are refused. A line of state, then scores.
fn saved(bytes: &[u8]) {
    let line = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
    let Ok(text) = core::str::from_utf8(&bytes[..line]) else { return };
    let Some(state) = usage(State::from_json(text)) else { return };
    assert_eq!(State::from_json(&state.to_json()), Ok(state.clone()));
    usage(Table::read(bytes.get(line + 1..).unwrap_or_default(), &state));
}
