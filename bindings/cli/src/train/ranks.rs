//! The ranks of one job on this machine, as processes of their own with logs. What is still running ends with this.

use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use crate::failure::{Outcome, file};

/// Started ranks.
pub(super) struct Ranks {
    children: Vec<Child>,
    outputs: Vec<PathBuf>,
}

/// A port to meet at that is free now. Rank 0 takes it within milliseconds.
fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

impl Ranks {
    /// Starts `world` of them; each writes what it says to a file named after `name` in `folder`.
    pub(super) fn start(
        program: &Path,
        world: usize,
        folder: &Path,
        name: &str,
        arguments: &[String],
    ) -> Outcome<Ranks> {
        let port = free_port().map_err(|e| file("finding a free port for", Path::new("the ranks"), &e))?;
        let mut ranks = Ranks { children: Vec::new(), outputs: Vec::new() };
        for rank in 0..world {
            let path = folder.join(format!("{name}-rank{rank}.txt"));
            let output = File::create(&path).map_err(|e| file("writing", &path, &e))?;
            let both = output.try_clone().map_err(|e| file("writing", &path, &e))?;
            let mut command = Command::new(program);
            command.args(arguments).stdin(Stdio::null()).stdout(output).stderr(both);
            command
                .envs([("RANK", rank), ("LOCAL_RANK", rank), ("WORLD_SIZE", world)].map(|(k, v)| (k, v.to_string())));
            command.envs([("MASTER_ADDR", "127.0.0.1".to_owned()), ("MASTER_PORT", port.to_string())]);
            ranks.children.push(command.spawn().map_err(|e| file("starting", program, &e))?);
            ranks.outputs.push(path);
        }
        Ok(ranks)
    }

    /// Ends one rank as a power cut would.
    pub(super) fn kill(&mut self, rank: usize) {
        // One that has ended already is as dead as it can be.
        let _ = self.children[rank].kill();
    }

    /// Whether rank `rank` has ended.
    pub(super) fn has_ended(&mut self, rank: usize) -> bool {
        self.children[rank].try_wait().is_ok_and(|status| status.is_some())
    }

    /// Waits for all: how each ended, and what it said.
    pub(super) fn wait(mut self) -> Outcome<Vec<(ExitStatus, String)>> {
        let mut ended = Vec::new();
        for (child, path) in self.children.iter_mut().zip(&self.outputs) {
            let status = child.wait().map_err(|e| file("waiting for the rank of", path, &e))?;
            ended.push((status, std::fs::read_to_string(path).map_err(|e| file("reading", path, &e))?));
        }
        Ok(ended)
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
