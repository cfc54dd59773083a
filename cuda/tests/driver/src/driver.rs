//! The one state of the driver behind its one lock, and the way in and out of every entry point.
//!
//! Owns the lock, the counting of calls, the list of violations and the loss of devices. What streams, memory and
//! events are is said next door; here they are tables.

use crate::code::{Code, Outcome};
use crate::fault::{Blow, Faults};
use crate::settings::Settings;
use crate::tables::event::Event;
use crate::tables::memory::DeviceMemory;
use crate::tables::pinned::Pinned;
use crate::tables::stream::{Capture, Stream, in_callback};
use crate::tables::work::Touch;
use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Handles begin here: an address that no processor can follow, as a driver's handles are not ours to read.
const HANDLES: u64 = 0x00fb_0000_0000_0000;
const HANDLE_STEP: u64 = 64;
/// Violations kept; more are counted, not kept.
const VIOLATIONS_KEPT: usize = 1000;

static STATE: LazyLock<Mutex<State>> = LazyLock::new(|| Mutex::new(State::new()));
static CHANGED: Condvar = Condvar::new();

/// Everything the driver knows.
pub(crate) struct State {
    pub(crate) settings: Settings,
    pub(crate) faults: Faults,
    /// Devices that are lost, each with what every call about it returns.
    pub(crate) lost: BTreeMap<u32, Code>,
    /// Streams that are being captured.
    pub(crate) captures: BTreeMap<u64, Capture>,
    /// Copies hang until this is set; arming faults takes it back.
    pub(crate) released: bool,
    /// Pieces of work that are being done at this moment.
    pub(crate) running: u64,
    pub(crate) initialised: bool,
    pub(crate) calls: BTreeMap<&'static str, u64>,
    pub(crate) violations: Vec<String>,
    pub(crate) violation_count: u64,
    /// How often each device's primary context is retained.
    pub(crate) retained: BTreeMap<u32, u32>,
    pub(crate) streams: BTreeMap<u64, Stream>,
    pub(crate) streams_made: u64,
    pub(crate) events: BTreeMap<u64, Event>,
    pub(crate) memory: DeviceMemory,
    pub(crate) pinned: Pinned,
    /// What each piece of work that has not ended will read or write.
    pub(crate) pending: BTreeMap<u64, Vec<Touch>>,
    pub(crate) work_made: u64,
    /// When each device's link to the host is free again.
    pub(crate) link_free: BTreeMap<u32, Instant>,
    next_handle: u64,
}

impl State {
    fn new() -> State {
        let (settings, complaint) = Settings::from_environment();
        let mut state = State {
            settings,
            faults: Faults::default(),
            lost: BTreeMap::new(),
            captures: BTreeMap::new(),
            released: false,
            running: 0,
            initialised: false,
            calls: BTreeMap::new(),
            violations: Vec::new(),
            violation_count: 0,
            retained: BTreeMap::new(),
            streams: BTreeMap::new(),
            streams_made: 0,
            events: BTreeMap::new(),
            memory: DeviceMemory::default(),
            pinned: Pinned::default(),
            pending: BTreeMap::new(),
            work_made: 0,
            link_free: BTreeMap::new(),
            next_handle: HANDLES,
        };
        state.arm_faults();
        if let Some(complaint) = complaint {
            state.violation(format!("bad setting: {complaint}"));
        }
        state
    }

    /// Takes the faults of the settings over.
    pub(crate) fn arm_faults(&mut self) {
        self.released = false;
        let now = self.faults.arm(&self.settings.faults);
        if let Some(code) = now {
            self.lost = (0..self.settings.devices).map(|device| (device, code)).collect();
        }
    }

    /// A handle that was never given out.
    pub(crate) fn new_handle(&mut self) -> u64 {
        self.next_handle += HANDLE_STEP;
        self.next_handle
    }

    /// Writes down a misuse.
    pub(crate) fn violation(&mut self, text: String) {
        self.violation_count += 1;
        if self.violations.len() < VIOLATIONS_KEPT {
            self.violations.push(text);
        }
    }

    /// What to answer for a handle that is none: tells one that died from one that never was.
    pub(crate) fn bad_handle(&mut self, call: &str, kind: &str, handle: u64) -> Code {
        let given = handle > HANDLES && handle <= self.next_handle && (handle - HANDLES).is_multiple_of(HANDLE_STEP);
        let fate = if given { "was destroyed" } else { "never existed" };
        self.violation(format!("{call}: {kind} {handle:#x} {fate}"));
        Code::INVALID_HANDLE
    }
}

/// The state, locked.
pub(crate) struct Held {
    guard: Option<MutexGuard<'static, State>>,
}

/// Locks the state.
pub(crate) fn hold() -> Held {
    Held { guard: Some(STATE.lock().unwrap_or_else(PoisonError::into_inner)) }
}

/// Wakes everybody who waits for a change.
pub(crate) fn changed() {
    CHANGED.notify_all();
}

impl Held {
    /// Lets go of the state until somebody changed it.
    pub(crate) fn wait(&mut self) {
        self.guard = self.guard.take().map(|guard| CHANGED.wait(guard).unwrap_or_else(PoisonError::into_inner));
    }

    /// Waits until nothing is being done: a lost device touches no memory any more once somebody has heard of the loss.
    fn settle(&mut self) {
        while self.running > 0 {
            self.wait();
        }
    }

    /// Waits until a condition holds or the device is lost.
    ///
    /// # Errors
    /// The code of the loss.
    pub(crate) fn wait_until(&mut self, device: u32, mut holds: impl FnMut(&State) -> bool) -> Outcome {
        loop {
            if let Some(&code) = self.lost.get(&device) {
                self.settle();
                return Err(code);
            }
            if holds(self) {
                return Ok(());
            }
            self.wait();
        }
    }
}

impl Deref for Held {
    type Target = State;
    fn deref(&self) -> &State {
        self.guard.as_deref().expect("the guard is away only inside wait()")
    }
}

impl DerefMut for Held {
    fn deref_mut(&mut self) -> &mut State {
        self.guard.as_deref_mut().expect("the guard is away only inside wait()")
    }
}

/// What an entry point asks for before it runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needs {
    /// Nothing, not even `cuInit`; it works when the devices are lost.
    Nothing,
    /// `cuInit` before it.
    Init,
    /// `cuInit`, and a context that is current on the calling thread, whose device is not lost.
    Context,
    /// The same, and it runs even when the device is lost (whose code it then returns): it lets go of something.
    Release,
}

/// Calls that no thread may make while a stream is captured in the global mode, unless the thread has another one.
const UNSAFE_IN_CAPTURE: [&str; 9] = [
    "cuEventQuery",
    "cuEventSynchronize",
    "cuStreamSynchronize",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
];

/// Runs an entry point: counts the call, lets the faults have their say, locks the state for the body.
pub(crate) fn enter(name: &'static str, needs: Needs, body: impl FnOnce(&mut Held) -> Outcome) -> i32 {
    let mut held = hold();
    *held.calls.entry(name).or_insert(0) += 1;
    if in_callback() && needs != Needs::Nothing {
        held.violation(format!("{name} was called from a host function of a stream, where no call is allowed"));
        return Code::NOT_PERMITTED.0;
    }
    match held.faults.at_call(name) {
        Some(Blow::Fail(code)) => return code.0,
        Some(Blow::Lose(code)) => {
            let device = held.held_device().unwrap_or(0);
            held.lost.insert(device, code);
            changed();
        }
        Some(Blow::Hang) | None => {}
    }
    if needs != Needs::Nothing && !held.initialised && name != "cuInit" {
        return Code::NOT_INITIALIZED.0;
    }
    if matches!(needs, Needs::Context | Needs::Release) {
        let Ok(device) = held.held_device() else { return Code::INVALID_CONTEXT.0 };
        if let Some(&code) = held.lost.get(&device) {
            held.settle();
            if needs == Needs::Release {
                let _ = body(&mut held);
            }
            return code.0;
        }
        if UNSAFE_IN_CAPTURE.contains(&name) && held.breaks_capture() {
            return Code::STREAM_CAPTURE_UNSUPPORTED.0;
        }
    }
    body(&mut held).err().unwrap_or(Code::SUCCESS).0
}
