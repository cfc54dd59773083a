//! The driver's own door for tests: settings, faults, reports. Exported functions on one side, [`Control`] on the other.
//!
//! Owns the `fuelrail_driver_*` functions and their C interface: a text goes into a buffer of the caller, the return value
//! is the length of the whole text, so a caller with too little room asks again.

use crate::driver::{State, changed, hold};
use crate::exports::{In, Out};
use crate::fault::Fault;
use crate::report::Report;
use crate::tables::pinned::Origin;
use libloading::Library;
use std::collections::BTreeMap;
use std::ffi::{CString, c_char};
use std::sync::OnceLock;

/// Changes a setting; 0, or -1 when name or text are no good (then nothing changed, and there is a violation).
#[unsafe(no_mangle)]
unsafe extern "C" fn fuelrail_driver_set(name: In<c_char>, text: In<c_char>) -> i32 {
    let (Ok(name), Ok(text)) = (name.text(), text.text()) else { return -1 };
    let mut held = hold();
    if let Err(complaint) = held.settings.set(&name, &text) {
        held.violation(format!("bad setting: {complaint}"));
        return -1;
    }
    match name.as_str() {
        "faults" => held.arm_faults(),
        // The streams that are made from here on draw the same delays as those of a fresh process.
        "seed" => held.streams_made = 0,
        _ => {}
    }
    changed();
    0
}

/// Lets copies that hang go on, and those that would until faults are set again.
#[unsafe(no_mangle)]
extern "C" fn fuelrail_driver_release() {
    hold().released = true;
    changed();
}

/// What is alive, one count a line.
#[unsafe(no_mangle)]
unsafe extern "C" fn fuelrail_driver_report(buffer: Out<c_char>, room: i32) -> i32 {
    let text = hold().report().to_text();
    give(buffer, room, &text)
}

/// The misuses seen, one a line.
#[unsafe(no_mangle)]
unsafe extern "C" fn fuelrail_driver_violations(buffer: Out<c_char>, room: i32) -> i32 {
    let text = hold().violations.join("\n");
    give(buffer, room, &text)
}

/// Forgets the misuses seen.
#[unsafe(no_mangle)]
extern "C" fn fuelrail_driver_forgive() {
    let mut held = hold();
    held.violations.clear();
    held.violation_count = 0;
}

/// The entry points that were called, with how often, one a line.
#[unsafe(no_mangle)]
unsafe extern "C" fn fuelrail_driver_calls(buffer: Out<c_char>, room: i32) -> i32 {
    let text: String = hold().calls.iter().map(|(name, count)| format!("{name} {count}\n")).collect();
    give(buffer, room, &text)
}

fn give(buffer: Out<c_char>, room: i32, text: &str) -> i32 {
    // Without room only the length is asked for.
    let _ = buffer.put_text(text, room);
    i32::try_from(text.len()).unwrap_or(i32::MAX)
}

impl State {
    fn report(&self) -> Report {
        let (allocations, allocated_bytes) = self.memory.held(None);
        Report {
            contexts: self.retained.values().filter(|n| **n > 0).count() as u64,
            streams: self.streams.iter().filter(|(handle, s)| s.is_users(**handle)).count() as u64,
            events: self.events.len() as u64,
            allocations,
            allocated_bytes,
            registrations: self.pinned.count(Origin::Registered),
            host_allocations: self.pinned.count(Origin::Allocated),
            pending: self.unfinished(),
            violations: self.violation_count,
        }
    }
}

/// The control functions of the driver that this process has loaded as `libcuda`. A device's driver has none: it takes no settings, and
/// reports nothing.
#[derive(Clone, Copy, Debug)]
pub struct Control {
    library: Option<&'static Library>,
}

type Ask = unsafe extern "C" fn(*mut c_char, i32) -> i32;
type Set = unsafe extern "C" fn(*const c_char, *const c_char) -> i32;
type Tell = unsafe extern "C" fn();

impl Control {
    /// Finds the driver; it stays loaded until the process ends.
    ///
    /// # Errors
    /// What is wrong: no `libcuda`, or one that is not this driver.
    pub fn find() -> Result<Control, String> {
        if crate::on_device() {
            return Ok(Control { library: None });
        }
        static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
        let library = LIBRARY.get_or_init(|| {
            // SAFETY: loading runs the library's initialisers; the test driver has none, and a real libcuda's are its own.
            let library = unsafe { Library::new("libcuda.so.1") }.map_err(|e| e.to_string())?;
            // SAFETY: only the address is looked at; it is called nowhere here.
            let ours = unsafe { library.get::<Tell>(b"fuelrail_driver_release\0") }.is_ok();
            if ours { Ok(library) } else { Err("libcuda.so.1 is not the test driver".to_owned()) }
        });
        library.as_ref().map(|library| Control { library: Some(library) }).map_err(Clone::clone)
    }

    /// Changes a setting.
    ///
    /// # Panics
    /// When there is no such setting or the text is no value for it.
    pub fn set(&self, name: &str, text: &str) {
        let Some(library) = self.library else { return };
        let (name, text) = (CString::new(name).unwrap_or_default(), CString::new(text).unwrap_or_default());
        // SAFETY: the symbol has this type in the driver; both texts live through the call.
        let result =
            unsafe { library.get::<Set>(b"fuelrail_driver_set\0").map(|set| set(name.as_ptr(), text.as_ptr())) };
        assert!(matches!(result, Ok(0)), "the driver refused {name:?} = {text:?}");
    }

    /// Replaces the faults to come; calls and copies are counted from here on.
    pub fn set_faults(&self, faults: &[Fault]) {
        let texts: Vec<String> = faults.iter().map(ToString::to_string).collect();
        self.set("faults", &texts.join("; "));
    }

    /// Lets copies that hang go on, and those that would until faults are set again.
    pub fn release(&self) {
        self.tell(b"fuelrail_driver_release\0");
    }

    /// Forgets the misuses seen so far: a test that provokes one ends clean.
    pub fn forgive(&self) {
        self.tell(b"fuelrail_driver_forgive\0");
    }

    /// What is alive.
    pub fn report(&self) -> Report {
        Report::from_text(&self.ask(b"fuelrail_driver_report\0")).unwrap_or_default()
    }

    /// The misuses seen.
    pub fn violations(&self) -> Vec<String> {
        self.ask(b"fuelrail_driver_violations\0").lines().map(str::to_owned).collect()
    }

    /// The entry points that were called, with how often.
    pub fn calls(&self) -> BTreeMap<String, u64> {
        let text = self.ask(b"fuelrail_driver_calls\0");
        text.lines()
            .filter_map(|line| line.split_once(' '))
            .filter_map(|(n, c)| Some((n.to_owned(), c.parse().ok()?)))
            .collect()
    }

    /// Panics unless nothing is alive and nothing was misused.
    ///
    /// # Panics
    /// With what is alive, and with every misuse.
    pub fn assert_clean(&self) {
        let (report, violations) = (self.report(), self.violations());
        assert!(report == Report::default(), "the driver is not clean: {report:?}\n{}", violations.join("\n"));
    }

    fn tell(&self, symbol: &[u8]) {
        let Some(library) = self.library else { return };
        // SAFETY: the symbols handed in here have this type in the driver, and nothing is handed over.
        let told = unsafe { library.get::<Tell>(symbol).map(|tell| tell()) };
        debug_assert!(told.is_ok());
    }

    fn ask(&self, symbol: &[u8]) -> String {
        let Some(library) = self.library else { return String::new() };
        let mut buffer: Vec<u8> = vec![0; 4096];
        loop {
            let room = i32::try_from(buffer.len()).unwrap_or(i32::MAX);
            // SAFETY: the symbols handed in here have this type in the driver; it writes at most `room` bytes.
            let length = unsafe { library.get::<Ask>(symbol).map(|ask| ask(buffer.as_mut_ptr().cast(), room)) };
            let length = length.map_or(0, |n| usize::try_from(n).unwrap_or(0));
            if length < buffer.len() {
                buffer.truncate(length);
                return String::from_utf8_lossy(&buffer).into_owned();
            }
            buffer.resize(length + 1024, 0);
        }
    }
}
