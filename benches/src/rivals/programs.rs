//! From a rival to the contestant that the harness starts: which program, with which arguments, in which environment; or why
//! it cannot take part and how it could.
//!
//! Owns where programs are looked for. Never starts a contestant.

use std::ffi::OsString;
use std::path::PathBuf;

use fuelrail::Result;

use super::python::Python;
use super::roster::{Origin, Packing, Rival};
use crate::harness::{Contestant, Laid, ShapeName, Stop, Transport, Venue};

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

#[cfg(test)]
mod tests {
    use super::*;
    use fuelrail_cli::train::folders;
    use std::path::Path;

    fn programs(folder: &Path) -> Programs {
        Programs {
            natives: folder.join("fuelrail-rival"),
            python: Python { folder: folder.join("python") },
            path: folders(folder.as_os_str()),
        }
    }

    #[test]
    fn whoever_is_missing_says_why_and_what_to_do() {
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
}
