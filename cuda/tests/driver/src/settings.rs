//! How the driver behaves: one set of settings, written by tests as a value, carried by the environment as text.
//!
//! Owns the names and texts of the settings. The library reads `FUELRAIL_DRIVER_<NAME>` when it is first used; the same
//! names and texts go through [`crate::Control::set`] later.

use crate::fault::{Fault, parse_faults};
use std::ops::RangeInclusive;

/// What every variable of the environment begins with.
pub(crate) const PREFIX: &str = "FUELRAIL_DRIVER_";

/// How the driver behaves. Start from the default and change what the test needs.
#[derive(Clone, PartialEq, Debug)]
pub struct Settings {
    /// Devices there are.
    pub devices: u32,
    /// Memory of each device, in bytes.
    pub memory: u64,
    /// Bytes of device memory (on each device) above which allocations fail.
    pub memory_limit: u64,
    /// Bytes of pinned host memory, registered or allocated, above which pinning fails.
    pub pinned_limit: u64,
    /// Where the random delays begin. Set it before the first stream is made.
    pub seed: u64,
    /// How long each piece of work waits before it runs, in microseconds.
    pub delay_us: RangeInclusive<u64>,
    /// Bandwidth of each device's link to the host, in GB/s; 0 is unlimited.
    pub gbps: f64,
    /// Copy from or to host memory that is not pinned is a violation, not merely slow.
    pub forbid_pageable: bool,
    /// Compare the source of each copy at submission with the source when the copy runs.
    pub watch_sources: bool,
    /// Memory can be registered for devices that only read it.
    pub read_only: bool,
    /// What goes wrong, and when.
    pub faults: Vec<Fault>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            devices: 1,
            memory: 12 << 30,
            memory_limit: u64::MAX,
            pinned_limit: u64::MAX,
            seed: 1,
            delay_us: 0..=0,
            gbps: 0.0,
            forbid_pageable: false,
            watch_sources: false,
            read_only: false,
            faults: Vec::new(),
        }
    }
}

impl Settings {
    /// Each setting's name and text.
    pub fn pairs(&self) -> Vec<(&'static str, String)> {
        let faults: Vec<String> = self.faults.iter().map(ToString::to_string).collect();
        vec![
            ("devices", self.devices.to_string()),
            ("memory", self.memory.to_string()),
            ("memory_limit", self.memory_limit.to_string()),
            ("pinned_limit", self.pinned_limit.to_string()),
            ("seed", self.seed.to_string()),
            ("delay_us", format!("{}..={}", self.delay_us.start(), self.delay_us.end())),
            ("gbps", self.gbps.to_string()),
            ("forbid_pageable", self.forbid_pageable.to_string()),
            ("watch_sources", self.watch_sources.to_string()),
            ("read_only", self.read_only.to_string()),
            ("faults", faults.join("; ")),
        ]
    }

    /// Changes one setting.
    ///
    /// # Errors
    /// What is wrong with the name or the text.
    pub fn set(&mut self, name: &str, text: &str) -> Result<(), String> {
        match name {
            "devices" => self.devices = number(name, text)?,
            "memory" => self.memory = number(name, text)?,
            "memory_limit" => self.memory_limit = number(name, text)?,
            "pinned_limit" => self.pinned_limit = number(name, text)?,
            "seed" => self.seed = number(name, text)?,
            "delay_us" => {
                let (low, high) = pair(name, text, "..=")?;
                self.delay_us = low..=high;
            }
            "gbps" => self.gbps = number(name, text)?,
            "forbid_pageable" => self.forbid_pageable = number(name, text)?,
            "watch_sources" => self.watch_sources = number(name, text)?,
            "read_only" => self.read_only = number(name, text)?,
            "faults" => self.faults = parse_faults(text)?,
            _ => return Err(format!("there is no setting '{name}'")),
        }
        Ok(())
    }

    /// The settings that the environment carries; the first complaint besides, if one of them is no good.
    pub(crate) fn from_environment() -> (Settings, Option<String>) {
        let mut settings = Settings::default();
        let mut complaint = None;
        for (name, _) in Settings::default().pairs() {
            let variable = format!("{PREFIX}{}", name.to_uppercase());
            if let Ok(text) = std::env::var(&variable)
                && let Err(error) = settings.set(name, &text)
            {
                complaint.get_or_insert(format!("{variable}: {error}"));
            }
        }
        (settings, complaint)
    }
}

fn number<T: std::str::FromStr>(name: &str, text: &str) -> Result<T, String> {
    text.trim().parse().map_err(|_| format!("'{text}' is no value for '{name}'"))
}

fn pair<T: std::str::FromStr>(name: &str, text: &str, between: &str) -> Result<(T, T), String> {
    let (low, high) = text.split_once(between).ok_or(format!("'{name}' takes two numbers with '{between}' between"))?;
    Ok((number(name, low)?, number(name, high)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Code, When};

    #[test]
    fn settings_survive_their_text() {
        let lost = Fault::Lose { when: When::Call("cuEventRecord".to_owned(), 3), code: Code::ECC_UNCORRECTABLE };
        let all = Settings {
            devices: 4,
            memory: 1 << 20,
            memory_limit: 7,
            pinned_limit: 9,
            seed: 99,
            delay_us: 5..=500,
            gbps: 2.5,
            forbid_pageable: true,
            watch_sources: true,
            read_only: true,
            faults: vec![Fault::Hang { copy: 2 }, lost],
        };
        let mut read = Settings::default();
        for (name, text) in all.pairs() {
            read.set(name, &text).unwrap();
        }
        assert_eq!(read, all);
    }

    #[test]
    fn bad_settings_are_refused_with_their_name() {
        let mut settings = Settings::default();
        assert_eq!(settings.set("colour", "red").unwrap_err(), "there is no setting 'colour'");
        assert_eq!(settings.set("devices", "red").unwrap_err(), "'red' is no value for 'devices'");
        assert!(settings.set("delay_us", "5").is_err());
        assert_eq!(settings, Settings::default());
    }
}
