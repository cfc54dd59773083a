//! From a rival to the contestant that the harness starts: which program, with which arguments, in which environment; or why
//! it cannot take part and how it could.
//!
//! Owns where programs are looked for. Never starts a contestant.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use fuelrail::Result;

use super::python::Python;
use super::roster::{Origin, Packing, Rival};
use crate::harness::{Contestant, Laid, ShapeName, Stop, Transport, Venue, VenueKind};

/// What rivals are run with.
#[derive(Clone, Debug)]
pub struct Programs {
    /// `fuelrail-rival`, which holds the native rivals and drives the commands.
    pub natives: PathBuf,
    pub python: Python,
    /// Folders in which commands are looked for, as in `PATH`.
    pub path: Vec<PathBuf>,
}

/// Why a rival is not there, and how to bring it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Absent {
    /// What it is, in two or three words for a table.
    pub word: &'static str,
    pub reason: String,
    pub cure: String,
}

impl core::fmt::Display for Absent {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}; {}", self.reason, self.cure)
    }
}

fn absent<T>(word: &'static str, reason: impl Into<String>, cure: impl Into<String>) -> Result<T, Absent> {
    Err(Absent { word, reason: reason.into(), cure: cure.into() })
}

const NOT_INSTALLED: &str = "not installed";

/// glibc's allocator gives freed memory back to the kernel and pays for the pages again; clients that allocate their buffers
/// do better when it keeps them, and a rival is run as well as it can be.
const ALLOCATOR: [(&str, &str); 3] =
    [("MALLOC_MMAP_MAX_", "0"), ("MALLOC_TRIM_THRESHOLD_", "17179869184"), ("MALLOC_TOP_PAD_", "67108864")];

impl Programs {
    /// Whether a rival can take part at this venue.
    pub fn find(&self, rival: &Rival, transport: Transport, venue: VenueKind) -> Result<(), Absent> {
        match rival.origin {
            Origin::Native | Origin::Command if !self.natives.is_file() => {
                let reason = format!("{} is not there", self.natives.display());
                absent(
                    NOT_INSTALLED,
                    reason,
                    "cargo build --release -p fuelrail-rivals, or name it with --rival-program",
                )
            }
            Origin::Native => Ok(()),
            Origin::Command if !self.path.iter().any(|folder| folder.join(rival.program).is_file()) => {
                let reason = format!("{} is not in PATH", rival.program);
                absent(NOT_INSTALLED, reason, format!("apt-get install {}", rival.program))
            }
            Origin::Command => Ok(()),
            Origin::Python(_) if transport == Transport::Tls => {
                absent("not for TLS", "it has no adapter for TLS with an authority of one's own", "leave out --tls")
            }
            Origin::Python(Packing::Tar | Packing::Mds) if venue == VenueKind::External => absent(
                "not for buckets",
                "it reads shards, which are not put into other people's buckets",
                "leave out --uri",
            ),
            Origin::Python(_) if !self.python.stands() => absent(
                NOT_INSTALLED,
                format!("its environment is not installed in {}", self.python.folder().display()),
                "--python installs it: some 7 GB, minutes",
            ),
            Origin::Python(_) => Ok(()),
        }
    }

    /// The contestant for a rival that [`Programs::find`] has found. Packs shards where the rival reads them.
    pub fn contestant(
        &self,
        rival: &Rival,
        shape: ShapeName,
        laid: &Laid,
        venue: &Venue,
        stop: &Stop,
    ) -> Result<Contestant> {
        let args = rival.args(shape).into_iter().map(OsString::from);
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

/// The folders of a `PATH`.
pub fn folders(path: &std::ffi::OsStr) -> Vec<PathBuf> {
    std::env::split_paths(path).filter(|folder| folder != Path::new("")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn programs(folder: &Path) -> Programs {
        Programs {
            natives: folder.join("fuelrail-rival"),
            python: Python::in_folder(folder.join("python")),
            path: folders(folder.as_os_str()),
        }
    }

    #[test]
    fn whoever_is_missing_says_why_and_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let programs = programs(folder.path());
        let find = |name: &str, transport, venue| {
            programs.find(name.parse().unwrap(), transport, venue).map_err(|absent| absent.to_string())
        };
        let plain = |name: &str| find(name, Transport::Plain, VenueKind::Loopback);
        assert!(plain("hyper").unwrap_err().contains("cargo build --release -p fuelrail-rivals"));
        assert!(plain("s3dlio").unwrap_err().contains("--python installs it"));
        std::fs::write(folder.path().join("fuelrail-rival"), "").unwrap();
        assert_eq!(plain("hyper"), Ok(()));
        assert_eq!(plain("wrk").unwrap_err(), "wrk is not in PATH; apt-get install wrk");
        std::fs::write(folder.path().join("wrk"), "").unwrap();
        assert_eq!(plain("wrk"), Ok(()));
        assert!(find("boto3", Transport::Tls, VenueKind::Loopback).unwrap_err().contains("leave out --tls"));
        assert!(find("webdataset", Transport::Plain, VenueKind::External).unwrap_err().contains("shards"));
    }
}
