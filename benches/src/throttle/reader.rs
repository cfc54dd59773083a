//! A process that reads from the bucket, and this process's hold on it.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fuelrail::{Config, Error, Kind, Loader, LoaderBuilder, Result, Taken};

/// How often a reader tells how far it is.
const TELLING: Duration = Duration::from_millis(50);

/// A reader, and what it has told. Ends when dropped.
pub(super) struct Reader {
    child: Child,
    orders: ChildStdin,
    served: Arc<AtomicU64>,
    ready: Arc<AtomicBool>,
}

impl Reader {
    pub(super) fn start(program: &Path, uri: &str, seed: usize, dir: Option<&Path>) -> Result<Reader> {
        let mut command = Command::new(program);
        command.args(["throttle-reader", uri, "--seed", &seed.to_string()]);
        if let Some(dir) = dir {
            command.arg("--share-dir").arg(dir);
        }
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.map_err(|error| environment("starting a reader", &error))?;
        let (orders, told) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        let (served, ready) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let reader = Reader { child, orders, served: Arc::clone(&served), ready: Arc::clone(&ready) };
        std::thread::spawn(move || {
            for line in BufReader::new(told).lines().map_while(std::result::Result::ok) {
                ready.store(true, Ordering::Relaxed);
                if let Ok(count) = line.parse() {
                    served.store(count, Ordering::Relaxed);
                }
            }
            // An end tells that it is ready, too: the books will show that nothing came.
            ready.store(true, Ordering::Relaxed);
        });
        Ok(reader)
    }

    pub(super) fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Relaxed)
    }

    /// Lets it begin.
    pub(super) fn go(&mut self) -> Result<()> {
        self.orders.write_all(b"go\n").map_err(|error| environment("starting a reader", &error))
    }

    /// Requests of it that were served, as far as it has told.
    pub(super) fn served(&self) -> u64 {
        self.served.load(Ordering::Relaxed)
    }

    /// It has not ended.
    pub(super) fn is_reading(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The other side: reads until it is killed, and tells how many of its requests were served.
///
/// # Errors
/// What the loader reports.
pub fn read_throttled(
    uri: &str,
    seed: u64,
    share_dir: Option<PathBuf>,
    orders: &mut dyn BufRead,
    out: &mut dyn Write,
) -> Result<()> {
    let config =
        Config { uri: uri.to_owned(), seed, share_dir, batch_size: 8, epochs: 1_000, shards: 1, ..Config::default() };
    // Batches are delivered in order: with much open at once, what was refused in the first moment holds up little.
    let config = Config { memory_limit_bytes: 64 << 20, pin: false, ..config };
    let mut loader: Loader = LoaderBuilder::new(config).build()?;
    let gone = |error: std::io::Error| environment("telling", &error);
    writeln!(out, "ready").and_then(|()| out.flush()).map_err(gone)?;
    orders.read_line(&mut String::new()).map_err(gone)?;
    let mut said = Instant::now();
    loop {
        match loader.next_batch_within(TELLING)? {
            Taken::Batch(batch) => drop(batch),
            Taken::NotYet => {}
            Taken::Over => return Ok(()),
        }
        if said.elapsed() >= TELLING {
            said = Instant::now();
            let stats = loader.stats();
            writeln!(out, "{}", stats.requests - stats.throttled).and_then(|()| out.flush()).map_err(gone)?;
        }
    }
}

fn environment(doing: &str, error: &std::io::Error) -> Error {
    Error::new(Kind::Environment, format!("{doing}: {error}"))
}
