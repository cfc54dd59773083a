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
    thread: Option<JoinHandle<fuelrail::Result<Option<Stats>>>>,
    stop: Arc<AtomicBool>,
    told: Arc<Mutex<Vec<String>>>,
}

impl Reading {
    pub fn start(builder: LoaderBuilder, dir: &Path, jobs: usize, wait: Duration) -> Reading {
        let sharing = builder.share_dir(dir).share(SharingOptions { jobs, wait }).unwrap();
        let (stop, told) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let (stopped, lines) = (Arc::clone(&stop), Arc::clone(&told));
        let thread = std::thread::spawn(move || {
            sharing.serve(&|| stopped.load(Ordering::Relaxed), &mut |line| lines.lock().unwrap().push(line.to_owned()))
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

    /// Ends by itself.
    pub fn end(mut self) -> (Stats, Vec<String>) {
        let thread = self.thread.take().unwrap();
        let begun = Instant::now();
        while !thread.is_finished() {
            assert!(begun.elapsed() < PATIENCE, "it never ended: {:?}", self.told());
            std::thread::sleep(Duration::from_millis(2));
        }
        let stats = thread.join().unwrap().unwrap().expect("it has read");
        (stats, self.told())
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
