//! Other people's clients and loaders: who there is, where each is found, and how it is run; or why it cannot take part and how it could.
//!
//! Owns the table of rivals, with the settings of their makers' manuals; and the folder of the Python ones. Never starts a contestant.

use core::str::FromStr;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use fuelrail::{Error, Kind, Result};

use crate::harness::tool::{run, write};
use crate::harness::{Contestant, Laid, ShapeName, Stop, Transport, Venue};

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
    Litdata,
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
    /// Whether it is told its number of connections.
    pub has_connections: bool,
}

const DROPS: Option<&str> = Some("drops the bytes");

/// All rivals, the cheapest kind first.
pub const RIVALS: &[Rival] = &[
    native("hyper", "hyper"),
    native("object-store", "object-store"),
    Rival { caveat: DROPS, args: &["--placing", "drop"], ..native("hyper-drop", "hyper") },
    Rival {
        origin: Origin::Command,
        caveat: Some("writes the bytes to /dev/null, starts anew in every pass"),
        ..native("curl", "curl")
    },
    Rival { origin: Origin::Command, caveat: Some("drops the bytes, runs for a time"), ..native("wrk", "wrk") },
    python("boto3", "boto3_loop.py", Packing::Objects),
    python("dataloader-boto3", "dataloader_boto3.py", Packing::Objects),
    python("s3torchconnector", "s3torchconnector_map.py", Packing::Objects),
    python("s3dlio", "s3dlio_get_many.py", Packing::Objects),
    python("webdataset", "webdataset_http.py", Packing::Tar),
    python("mosaicml-streaming", "mosaicml_s3.py", Packing::Mds),
    python("runai-model-streamer", "runai_streamer.py", Packing::Objects),
    python("obstore", "obstore_get.py", Packing::Objects),
    python("litdata", "litdata_s3.py", Packing::Litdata),
    // Not a rival: what all that costs from Python.
    python("fuelrail-python", "fuelrail_loader.py", Packing::Objects),
];

const fn native(name: &'static str, program: &'static str) -> Rival {
    Rival { name, origin: Origin::Native, program, caveat: None, args: &[], has_connections: true }
}

const fn python(name: &'static str, program: &'static str, packing: Packing) -> Rival {
    Rival { name, origin: Origin::Python(packing), program, caveat: None, args: &[], has_connections: false }
}

impl Rival {
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

#[derive(Clone, Debug)]
pub struct Programs {
    /// `fuelrail-rival`, which holds the native rivals and drives the commands.
    pub natives: PathBuf,
    pub python: Python,
    /// Folders in which commands are looked for, as in `PATH`.
    pub path: Vec<PathBuf>,
}

/// Why a rival is not there: what it is in two or three words for a table; and the reason, with what to do.
pub type Absent = (&'static str, String);

const NOT_INSTALLED: &str = "not installed";

/// glibc's allocator gives freed memory back to the kernel and pays for the pages again; clients that allocate their buffers
/// do better when it keeps them, and a rival is run as well as it can be.
const ALLOCATOR: [(&str, &str); 3] =
    [("MALLOC_MMAP_MAX_", "0"), ("MALLOC_TRIM_THRESHOLD_", "17179869184"), ("MALLOC_TOP_PAD_", "67108864")];

impl Programs {
    pub fn find(&self, rival: &Rival, transport: Transport) -> Result<(), Absent> {
        let absent = |word, reason: String| Err((word, reason));
        match rival.origin {
            Origin::Native | Origin::Command if !self.natives.is_file() => {
                let cure = "cargo build --release -p fuelrail-rivals, or name it with --rival-program";
                absent(NOT_INSTALLED, format!("{} is not there; {cure}", self.natives.display()))
            }
            Origin::Command if !self.path.iter().any(|folder| folder.join(rival.program).is_file()) => {
                let program = rival.program;
                absent(NOT_INSTALLED, format!("{program} is not in PATH; apt-get install {program}"))
            }
            Origin::Python(_) if transport == Transport::Tls => {
                let reason = "it has no adapter for TLS with an authority of one's own; leave out --tls";
                absent("not for TLS", reason.to_owned())
            }
            Origin::Python(_) if !self.python.stands() => {
                let folder = self.python.folder.display();
                let cure = "--python installs it: some 7 GB, minutes";
                absent(NOT_INSTALLED, format!("its environment is not installed in {folder}; {cure}"))
            }
            _ => Ok(()),
        }
    }

    /// The contestant for a rival that [`Programs::find`] has found, with so many connections where it is told. Packs
    /// shards where the rival reads them.
    pub fn contestant(
        &self,
        rival: &Rival,
        connections: Option<u16>,
        laid: &Laid,
        venue: &Venue,
        stop: &Stop,
    ) -> Result<Contestant> {
        let connections = connections.map(|count| ["--connections".into(), count.to_string().into()]);
        let args = rival.args.iter().map(OsString::from).chain(connections.into_iter().flatten());
        let mut contestant = match rival.origin {
            Origin::Native | Origin::Command => {
                let program = [OsString::from(rival.program)].into_iter().chain(args);
                let mut native = Contestant::new(rival.name, &self.natives, program);
                if let Some(authority) = &venue.authority {
                    native.args.extend(["--ca-file".into(), authority.into()]);
                }
                native.env = ALLOCATOR.map(|(name, value)| (name.into(), value.into())).to_vec();
                native
            }
            Origin::Python(packing) => {
                let program = [self.python.script(rival.program).into_os_string()].into_iter().chain(args);
                let mut script = Contestant::new(rival.name, self.python.interpreter(), program);
                if packing != Packing::Objects {
                    let prefix = self.python.pack(packing, laid, venue.folder(), stop)?;
                    let packed = venue.uri(&Laid { prefix, ..laid.clone() }, Transport::Plain)?;
                    script.args.extend(["--packed".into(), packed.into()]);
                }
                script.env = vec![("PYTHONDONTWRITEBYTECODE".into(), "1".into())];
                script
            }
        };
        if rival.hashes() {
            contestant = contestant.proved_by(["--hash"]);
        }
        Ok(contestant)
    }
}

/// The scripts, as they are in the sources of this program.
const SCRIPTS: &[(&str, &str)] = &[
    ("protocol.py", include_str!("../rivals/python/protocol.py")),
    ("packing.py", include_str!("../rivals/python/packing.py")),
    ("s3_client.py", include_str!("../rivals/python/s3_client.py")),
    ("boto3_loop.py", include_str!("../rivals/python/boto3_loop.py")),
    ("dataloader_boto3.py", include_str!("../rivals/python/dataloader_boto3.py")),
    ("s3torchconnector_map.py", include_str!("../rivals/python/s3torchconnector_map.py")),
    ("s3dlio_get_many.py", include_str!("../rivals/python/s3dlio_get_many.py")),
    ("webdataset_http.py", include_str!("../rivals/python/webdataset_http.py")),
    ("mosaicml_s3.py", include_str!("../rivals/python/mosaicml_s3.py")),
    ("runai_streamer.py", include_str!("../rivals/python/runai_streamer.py")),
    ("obstore_get.py", include_str!("../rivals/python/obstore_get.py")),
    ("litdata_s3.py", include_str!("../rivals/python/litdata_s3.py")),
    ("fuelrail_loader.py", include_str!("../rivals/python/fuelrail_loader.py")),
];
/// What is installed, and the note that it was.
const REQUIREMENTS: &str = include_str!("../rivals/python/requirements.txt");
const INSTALLED: &str = "installed.txt";

/// The Python rivals' own virtual environment with the scripts beside it. It is made on request only: it holds PyTorch and takes some 7 GB.
/// Packages come from where the user's `pip` takes them, by name, with versions pinned.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Python {
    /// It need not be there yet.
    pub folder: PathBuf,
}

impl Python {
    /// Whether everything is installed in the versions this program wants.
    pub fn stands(&self) -> bool {
        fs::read_to_string(self.folder.join(INSTALLED)).is_ok_and(|text| text == REQUIREMENTS)
    }

    pub fn interpreter(&self) -> PathBuf {
        self.folder.join("venv/bin/python")
    }

    /// A script of the rivals. There after [`Python::write_scripts`].
    pub fn script(&self, name: &str) -> PathBuf {
        self.folder.join("scripts").join(name)
    }

    /// Writes this program's scripts, so that they are never those of another version.
    pub fn write_scripts(&self) -> Result<()> {
        SCRIPTS.iter().try_for_each(|(name, text)| write(&self.script(name), text))
    }

    /// Installs everything unless it stands. `watch` hears of each step; the longest takes minutes.
    pub fn install(&self, watch: &mut dyn FnMut(&str)) -> Result<()> {
        if self.stands() {
            return Ok(());
        }
        let list = self.folder.join("requirements.txt");
        write(&list, REQUIREMENTS)?;
        watch("making a virtual environment");
        let venv = self.folder.join("venv");
        let cure = "install Python 3.10 or newer with venv (Debian: python3-venv)";
        run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&venv), "python3 -m venv", cure)?;
        watch("installing PyTorch and the rivals with pip: some 7 GB, minutes");
        let mut pip = Command::new(self.interpreter());
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement"]).arg(&list);
        run(&mut pip, "pip install", "see whether pip reaches its index and the folder has room")?;
        write(&self.folder.join(INSTALLED), REQUIREMENTS)
    }

    /// Packs what was laid into shards beside it, unless that was done before. `folder` is the venue's, whose `root` is
    /// served. Returns the prefix of the shards.
    pub fn pack(&self, packing: Packing, laid: &Laid, folder: &Path, stop: &Stop) -> Result<String> {
        let kind = match packing {
            Packing::Objects => return Ok(laid.prefix.clone()),
            Packing::Tar => "tar",
            Packing::Mds => "mds",
            Packing::Litdata => "litdata",
        };
        stop.check()?;
        let name = laid.prefix.trim_end_matches('/');
        // The hash tells one scale of a shape from another.
        let packed = format!("{name}-{kind}-{}", &laid.hash[..laid.hash.len().min(8)]);
        let root = folder.join("root");
        let mut command = Command::new(self.interpreter());
        command.env("PYTHONDONTWRITEBYTECODE", "1").arg(self.script("packing.py")).arg(kind);
        command.arg(&laid.manifest).arg(root.join(name)).arg(root.join(&packed));
        run(&mut command, "packing shards", "run it by hand with the same arguments")?;
        Ok(format!("{packed}/"))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use fuelrail_cli::train::folders;

    use super::*;

    #[test]
    fn bars_are_the_promises() {
        let hyper: &Rival = "hyper-drop".parse().unwrap();
        assert!(!hyper.hashes() && hyper.bar(ShapeName::Large).is_none());
        let store: &Rival = "object-store".parse().unwrap();
        let bars = [ShapeName::Large, ShapeName::Mid, ShapeName::Tiny, ShapeName::First].map(|shape| store.bar(shape));
        assert_eq!(bars, [Some(0.70), Some(0.55), Some(0.50), None]);
        assert!(store.hashes());
    }

    fn programs(folder: &Path) -> Programs {
        Programs {
            natives: folder.join("fuelrail-rival"),
            python: Python { folder: folder.join("python") },
            path: folders(folder.as_os_str()),
        }
    }

    #[test]
    fn a_missing_rival_says_why_and_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let programs = programs(folder.path());
        let find =
            |name: &str, transport| programs.find(name.parse().unwrap(), transport).map_err(|(_, reason)| reason);
        let plain = |name: &str| find(name, Transport::Plain);
        assert!(plain("hyper").unwrap_err().contains("cargo build --release -p fuelrail-rivals"));
        assert!(plain("s3dlio").unwrap_err().contains("--python installs it"));
        std::fs::write(folder.path().join("fuelrail-rival"), "").unwrap();
        assert_eq!(plain("hyper"), Ok(()));
        assert_eq!(plain("wrk").unwrap_err(), "wrk is not in PATH; apt-get install wrk");
        std::fs::write(folder.path().join("wrk"), "").unwrap();
        assert_eq!(plain("wrk"), Ok(()));
        assert!(find("boto3", Transport::Tls).unwrap_err().contains("leave out --tls"));
    }

    #[test]
    fn every_python_rival_has_its_script() {
        let folder = tempfile::tempdir().unwrap();
        let python = Python { folder: folder.path().join("deep/er") };
        python.write_scripts().unwrap();
        for rival in RIVALS {
            let written = python.script(rival.program).is_file();
            assert_eq!(written, matches!(rival.origin, Origin::Python(_)), "{}", rival.name);
        }
    }

    #[test]
    fn an_environment_of_another_version_does_not_stand() {
        let folder = tempfile::tempdir().unwrap();
        let python = Python { folder: folder.path().into() };
        assert!(!python.stands());
        fs::write(folder.path().join(INSTALLED), "torch==1.0.0\n").unwrap();
        assert!(!python.stands());
        fs::write(folder.path().join(INSTALLED), REQUIREMENTS).unwrap();
        assert!(python.stands());
    }
}
