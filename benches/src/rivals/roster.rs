//! Who there is to be compared with, and with which settings each does best on which shape.
//!
//! Owns the table. Settings are those of the makers' manuals, and where those leave a choice, what measured cheapest in
//! processor time on two cores. Never starts anything.

use core::str::FromStr;

use fuelrail::{Error, Kind, Result};

use crate::harness::ShapeName;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// Compiled into the program `fuelrail-rival`.
    Native,
    /// A command that must be installed, driven by `fuelrail-rival`.
    Command,
    /// A script in the virtual environment that the harness installs.
    Python(Packing),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Packing {
    Objects,
    Tar,
    Mds,
}

#[derive(Debug)]
pub struct Rival {
    /// Its name here, on the command line and in results.
    pub name: &'static str,
    pub origin: Origin,
    /// Its subcommand of `fuelrail-rival`, the command it drives among them, or its script.
    pub program: &'static str,
    /// What it does with the bytes, where that is not what a trainer needs.
    pub caveat: Option<&'static str>,
    args: &'static [&'static str],
    /// Connections for large objects, and for the others. None where the client has no such setting.
    connections: Option<(u16, u16)>,
}

const DROPS: Option<&str> = Some("drops the bytes");

/// All rivals, the cheapest kind first.
pub const RIVALS: &[Rival] = &[
    native("hyper", "hyper", (1, 8)),
    native("object-store", "object-store", (1, 8)),
    Rival { caveat: DROPS, args: &["--placing", "drop"], ..native("hyper-drop", "hyper", (1, 8)) },
    Rival {
        origin: Origin::Command,
        caveat: Some("writes the bytes to /dev/null, starts anew in every pass"),
        ..native("curl", "curl", (1, 32))
    },
    Rival { origin: Origin::Command, caveat: Some("drops the bytes, runs for a time"), ..native("wrk", "wrk", (1, 8)) },
    python("boto3", "boto3_loop.py", Packing::Objects),
    python("dataloader-boto3", "dataloader_boto3.py", Packing::Objects),
    python("s3torchconnector", "s3torchconnector_map.py", Packing::Objects),
    python("s3dlio", "s3dlio_get_many.py", Packing::Objects),
    python("webdataset", "webdataset_http.py", Packing::Tar),
    python("mosaicml-streaming", "mosaicml_s3.py", Packing::Mds),
    python("runai-model-streamer", "runai_streamer.py", Packing::Objects),
];

const fn native(name: &'static str, program: &'static str, connections: (u16, u16)) -> Rival {
    Rival { name, origin: Origin::Native, program, caveat: None, args: &[], connections: Some(connections) }
}

const fn python(name: &'static str, program: &'static str, packing: Packing) -> Rival {
    Rival { name, origin: Origin::Python(packing), program, caveat: None, args: &[], connections: None }
}

impl Rival {
    pub fn args(&self, shape: ShapeName) -> Vec<String> {
        let large = matches!(shape, ShapeName::Large | ShapeName::Volumes);
        let mut args: Vec<String> = self.args.iter().map(|arg| (*arg).to_owned()).collect();
        if let Some((few, many)) = self.connections {
            args.extend(["--connections".to_owned(), if large { few } else { many }.to_string()]);
        }
        args
    }

    /// Whether it can be asked to hash what it got.
    pub fn hashes(&self) -> bool {
        !matches!(self.origin, Origin::Command) && self.caveat.is_none()
    }

    /// The most that Fuelrail's processor time may be of this rival's: what the project has promised itself.
    pub fn bar(&self, shape: ShapeName) -> Option<f64> {
        use ShapeName::{Large, Mid, Tiny, Volumes};
        let bar = match (self.name, shape) {
            ("object-store", Large | Volumes) => 0.70,
            ("object-store", Mid) => 0.55,
            ("object-store", Tiny) => 0.50,
            ("s3torchconnector", Large | Volumes) => 0.15,
            ("s3torchconnector" | "webdataset", Mid) => 0.20,
            ("boto3", Large | Volumes) => 0.40,
            ("dataloader-boto3", Mid) => 0.03,
            ("s3dlio", Large | Volumes) => 0.25,
            ("s3dlio", Mid) => 0.10,
            // Less than every native one whose bytes end where a trainer needs them.
            ("hyper", Large | Volumes | Mid | Tiny) => 1.0,
            _ => return None,
        };
        Some(bar)
    }
}

impl FromStr for &'static Rival {
    type Err = Error;

    fn from_str(text: &str) -> Result<&'static Rival> {
        RIVALS.iter().find(|rival| rival.name == text).ok_or_else(|| {
            let names: Vec<&str> = RIVALS.iter().map(|rival| rival.name).collect();
            Error::new(Kind::Usage, format!("unknown rival `{text}`")).with_hint(format!("use {}", names.join(", ")))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_follow_the_shape_and_bars_the_promises() {
        let hyper: &Rival = "hyper-drop".parse().unwrap();
        assert_eq!(hyper.args(ShapeName::Large), ["--placing", "drop", "--connections", "1"]);
        assert_eq!(hyper.args(ShapeName::Tiny), ["--placing", "drop", "--connections", "8"]);
        assert!(!hyper.hashes() && hyper.bar(ShapeName::Large).is_none());
        let store: &Rival = "object-store".parse().unwrap();
        let bars = [ShapeName::Large, ShapeName::Mid, ShapeName::Tiny, ShapeName::First].map(|shape| store.bar(shape));
        assert_eq!(bars, [Some(0.70), Some(0.55), Some(0.50), None]);
        assert!(store.hashes());
    }
}
