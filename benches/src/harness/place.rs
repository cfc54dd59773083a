//! Where a contestant runs: on which cores, in which network namespace, in which cgroup.
//!
//! Owns the command line that gets it there. The steps are taken by a shell and `nsenter` and `taskset`, each replacing
//! itself by the next, so that the contestant's own process is in place before its first instruction.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::Command;

use super::account::Leaf;

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Place {
    /// The cores they may use; empty for all.
    pub cores: Vec<usize>,
    /// The network namespace they are in; none for that of this process.
    pub netns: Option<String>,
}

/// Folder in which `ip netns` keeps its namespaces.
const NETNS_FOLDER: &str = "/run/netns";

impl Place {
    /// The command that runs `program` here with `args`, in the cgroup if there is one.
    pub fn command(&self, leaf: Option<&Leaf>, program: &Path, args: &[OsString]) -> Command {
        let mut words: Vec<OsString> = Vec::new();
        let mut add = |parts: &[&OsStr]| words.extend(parts.iter().map(|part| (*part).to_owned()));
        if let Some(leaf) = leaf {
            let enter = "echo $$ > \"$0\" && exec \"$@\"";
            add(&["sh".as_ref(), "-c".as_ref(), enter.as_ref(), leaf.door().as_os_str()]);
        }
        if let Some(netns) = &self.netns {
            let file = format!("--net={NETNS_FOLDER}/{netns}");
            add(&["nsenter".as_ref(), file.as_ref(), "--".as_ref()]);
        }
        if !self.cores.is_empty() {
            let list: Vec<String> = self.cores.iter().map(ToString::to_string).collect();
            add(&["taskset".as_ref(), "--cpu-list".as_ref(), list.join(",").as_ref()]);
        }
        add(&[program.as_os_str()]);
        words.extend(args.iter().cloned());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_hands_over_to_the_next() {
        let words = |place: Place| {
            let command = place.command(None, Path::new("/bin/x"), &["--uri".into(), "u".into()]);
            let all = std::iter::once(command.get_program()).chain(command.get_args());
            all.map(|word| word.to_str().unwrap().to_owned()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(words(Place::default()), "/bin/x --uri u");
        let far = Place { cores: vec![1, 3], netns: Some("fr1".into()) };
        assert_eq!(words(far), "nsenter --net=/run/netns/fr1 -- taskset --cpu-list 1,3 /bin/x --uri u");
    }
}
