//! What is alive in the driver, as a value and as text.
//!
//! Owns the names of the counts. The driver writes the text, tests read it.

/// What the driver holds at one moment. All zeros is how a program should leave it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Devices whose context is retained.
    pub contexts: u64,
    /// Streams that were made and not destroyed.
    pub streams: u64,
    /// Events that were made and not destroyed.
    pub events: u64,
    /// Allocations of device memory.
    pub allocations: u64,
    /// Their bytes.
    pub allocated_bytes: u64,
    /// Registered ranges of host memory.
    pub registrations: u64,
    /// Pinned host memory that the driver allocated.
    pub host_allocations: u64,
    /// Pieces of work that have not ended.
    pub pending: u64,
    /// Misuses seen.
    pub violations: u64,
}

impl Report {
    fn fields(&mut self) -> [(&'static str, &mut u64); 9] {
        [
            ("contexts", &mut self.contexts),
            ("streams", &mut self.streams),
            ("events", &mut self.events),
            ("allocations", &mut self.allocations),
            ("allocated_bytes", &mut self.allocated_bytes),
            ("registrations", &mut self.registrations),
            ("host_allocations", &mut self.host_allocations),
            ("pending", &mut self.pending),
            ("violations", &mut self.violations),
        ]
    }

    /// One count a line.
    pub(crate) fn to_text(mut self) -> String {
        self.fields().iter().map(|(name, value)| format!("{name} {value}\n")).collect()
    }

    /// Reads what [`Self::to_text`] wrote.
    pub(crate) fn from_text(text: &str) -> Option<Report> {
        let mut report = Report::default();
        for (name, value) in report.fields() {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
            *value = line.parse().ok()?;
        }
        Some(report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_survive_their_text() {
        let report = Report { allocations: 3, allocated_bytes: 4096, pending: 7, ..Report::default() };
        assert_eq!(Report::from_text(&report.to_text()), Some(report));
        assert_eq!(Report::from_text("streams 1"), None);
    }
}
