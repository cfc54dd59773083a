//! The process that reads for others, on a thread of the test.

use super::PATIENCE;
use fuelrail::{LoaderBuilder, SharingOptions, Stats};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// It ends with the test.
pub struct Reading {
    thread: Option<JoinHandle<fuelrail::Result<Vec<Stats>>>>,
    stop: Arc<AtomicBool>,
    told: Arc<Mutex<Vec<String>>>,
}

impl Reading {
    pub fn start(builder: LoaderBuilder, dir: &Path, jobs: usize, wait: Duration) -> Reading {
        Reading::with(builder, dir, SharingOptions { jobs, wait, ..SharingOptions::default() })
    }

    pub fn with(builder: LoaderBuilder, dir: &Path, options: SharingOptions) -> Reading {
        let mut sharing = builder.share_dir(dir).share(options).unwrap();
        let (stop, told) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let (stopped, lines) = (Arc::clone(&stop), Arc::clone(&told));
        let thread = std::thread::spawn(move || {
            let mut tell = |line: &str| lines.lock().unwrap().push(line.to_owned());
            let mut ended = Vec::new();
            while let Some(stats) = sharing.serve(&|| stopped.load(Ordering::Relaxed), &mut tell)? {
                let from_disk = stats.disk.as_ref().filter(|disk| disk.adopted > 0).map_or(0, |disk| disk.hits);
                tell(&format!("a pass has ended, {from_disk} blocks came from disk"));
                ended.push(stats);
            }
            Ok(ended)
        });
        Reading { thread: Some(thread), stop, told }
    }

    pub fn said(&self, text: &str) -> bool {
        self.told().iter().any(|line| line.contains(text))
    }

    pub fn told(&self) -> Vec<String> {
        self.told.lock().unwrap().clone()
    }

    pub fn is_over(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Ends by itself, after one pass.
    pub fn end(self) -> (Stats, Vec<String>) {
        let (mut ended, told) = self.ends();
        assert_eq!(ended.len(), 1, "it has read once: {told:?}");
        (ended.remove(0), told)
    }

    /// Ends by itself. The counters of each pass, in the order of their ends.
    pub fn ends(mut self) -> (Vec<Stats>, Vec<String>) {
        let thread = self.thread.take().unwrap();
        let begun = Instant::now();
        while !thread.is_finished() {
            assert!(begun.elapsed() < PATIENCE, "it never ended: {:?}", self.told());
            std::thread::sleep(Duration::from_millis(2));
        }
        let ended = thread.join().unwrap().unwrap();
        (ended, self.told())
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
