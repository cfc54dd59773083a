//! `fuelrail train`: hands over to `fuelrail-train`, which needs libtorch and is therefore a program of its own.
//!
//! Owns the search for it. Never links torch.

mod demo;
pub mod ranks;

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::Args;
use fuelrail::{Error, Kind};

use crate::bench::this_program;
use crate::failure::{Failure, Outcome, usage};

const EXAMPLES: &str = "Examples:
  fuelrail train --demo
  fuelrail train -- http://127.0.0.1:9000/bucket/training/ --decode 28x28x1 --epochs 3 --checkpoint run1
  torchrun --no-python --nproc-per-node 2 --max-restarts 3 fuelrail train -- http://HOST/photos/train/ --model resnet18 \\
    --decode 224x224x3 --checkpoint run2 --checkpoint-every 500

fuelrail train -- --help shows all options of the trainer.";

/// Train a model from a bucket, alone or as one rank of many (needs fuelrail-train, which needs libtorch)
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Train {
    /// Show it: two ranks learn digits, one is killed on the way, both go on from the last checkpoint
    #[arg(long, conflicts_with = "arguments")]
    demo: bool,
    /// With --demo, where its checkpoints and logs go
    #[arg(long, value_name = "FOLDER", default_value = "target/demo/training", requires = "demo")]
    folder: PathBuf,
    /// Handed to the trainer as they are
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    arguments: Vec<OsString>,
}

pub(crate) fn run(args: &Train) -> Outcome {
    if !args.demo && args.arguments.is_empty() {
        return Err(usage("nothing to train from is given", "see fuelrail train --help"));
    }
    let path = folders(&std::env::var_os("PATH").unwrap_or_default());
    let program = find_trainer(None, &this_program()?, &path)?;
    if args.demo {
        return demo::run(&program, &args.folder).map(|()| ExitCode::SUCCESS);
    }
    // On success this process is the trainer: signals of launchers and schedulers reach it as they should.
    let error = Command::new(&program).args(&args.arguments).exec();
    Err(Failure::Error(Error::from_io(Kind::Environment, format_args!("starting {}", program.display()), error)))
}

/// The trainer's program.
pub const TRAINER: &str = "fuelrail-train";

/// The folders of a `PATH`.
#[must_use]
pub fn folders(path: &std::ffi::OsStr) -> Vec<PathBuf> {
    std::env::split_paths(path).filter(|folder| folder != Path::new("")).collect()
}

/// Finds the trainer: the one that was named, or one beside `beside`, or in one of `folders`.
///
/// # Errors
/// `Environment` with how to build it.
pub fn find_trainer(named: Option<&Path>, beside: &Path, folders: &[PathBuf]) -> fuelrail::Result<PathBuf> {
    let found = match named {
        Some(path) => path.is_file().then(|| path.to_owned()),
        None => {
            let here = beside.with_file_name(TRAINER);
            std::iter::once(here).chain(folders.iter().map(|folder| folder.join(TRAINER))).find(|path| path.is_file())
        }
    };
    // Ranks run in folders of their own.
    let found = found.and_then(|path| std::path::absolute(path).ok());
    found.ok_or_else(|| {
        let cause = match named {
            Some(path) => format!("there is no trainer {}", path.display()),
            None => format!("{TRAINER} is neither beside this program nor in PATH"),
        };
        Error::new(Kind::Environment, cause).with_hint(
            "build it where libtorch is: eval \"$(./scripts/libtorch)\" && cargo build --release -p fuelrail-tch",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trainer_is_beside_the_program_or_in_the_path_or_said_how_to_build() {
        let folder = tempfile::tempdir().unwrap();
        let (beside, elsewhere) = (folder.path().join("fuelrail"), folder.path().join("bin"));
        let folders = [elsewhere.clone()];
        let error = find_trainer(None, &beside, &folders).unwrap_err();
        assert!(error.kind() == Kind::Environment && error.to_string().contains("-p fuelrail-tch"), "{error}");
        std::fs::create_dir(&elsewhere).unwrap();
        std::fs::write(elsewhere.join(TRAINER), "").unwrap();
        assert_eq!(find_trainer(None, &beside, &folders).unwrap(), elsewhere.join(TRAINER));
        std::fs::write(folder.path().join(TRAINER), "").unwrap();
        assert_eq!(find_trainer(None, &beside, &folders).unwrap(), folder.path().join(TRAINER));
        let named = folder.path().join("absent");
        let error = find_trainer(Some(&named), &beside, &folders).unwrap_err();
        assert!(error.to_string().contains("absent"), "{error}");
    }
}
