//! The Python rivals' own virtual environment: which folder it is in, whether it stands, how it is made, and the shards that
//! some of them read.
//!
//! Owns that folder. It is made on request only: it holds PyTorch and takes some 7 GB. Packages come from where the user's
//! `pip` takes them, by name, with versions pinned.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use fuelrail::Result;

use super::roster::Packing;
use crate::harness::tool::{run, write};
use crate::harness::{Laid, Stop};

/// The scripts, as they are in the sources of this program.
const SCRIPTS: &[(&str, &str)] = &[
    ("protocol.py", include_str!("../../rivals/python/protocol.py")),
    ("packing.py", include_str!("../../rivals/python/packing.py")),
    ("s3_client.py", include_str!("../../rivals/python/s3_client.py")),
    ("boto3_loop.py", include_str!("../../rivals/python/boto3_loop.py")),
    ("dataloader_boto3.py", include_str!("../../rivals/python/dataloader_boto3.py")),
    ("s3torchconnector_map.py", include_str!("../../rivals/python/s3torchconnector_map.py")),
    ("s3dlio_get_many.py", include_str!("../../rivals/python/s3dlio_get_many.py")),
    ("webdataset_http.py", include_str!("../../rivals/python/webdataset_http.py")),
    ("mosaicml_s3.py", include_str!("../../rivals/python/mosaicml_s3.py")),
    ("runai_streamer.py", include_str!("../../rivals/python/runai_streamer.py")),
];
/// What is installed, and the note that it was.
const REQUIREMENTS: &str = include_str!("../../rivals/python/requirements.txt");
const INSTALLED: &str = "installed.txt";

/// The virtual environment with the scripts beside it.
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
    use super::*;
    use crate::rivals::roster::{Origin, RIVALS};

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
