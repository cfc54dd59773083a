//! What a loader says while it runs.

use super::eventually;
use fuelrail::LoaderBuilder;
use std::sync::{Arc, Mutex};

/// Lines that loaders have said.
#[derive(Clone, Default)]
pub struct Said(Arc<Mutex<Vec<String>>>);

impl Said {
    /// Lets a loader say them here.
    pub fn by(&self, builder: LoaderBuilder) -> LoaderBuilder {
        let lines = Arc::clone(&self.0);
        builder.on_stall(move |line| lines.lock().unwrap().push(line.to_owned()))
    }

    pub fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    /// How many lines have all these parts.
    pub fn count(&self, parts: &[&str]) -> usize {
        self.lines().iter().filter(|line| parts.iter().all(|part| line.contains(part))).count()
    }

    /// Waits for such a line.
    pub fn says(&self, parts: &[&str]) {
        eventually(&format!("a line with {parts:?}"), || self.count(parts) > 0);
    }
}
