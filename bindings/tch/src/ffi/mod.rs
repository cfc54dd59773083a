//! The boundary to C++: the only place of this crate with `unsafe`. Everything it exports is safe to call.
//!
//! Owns the declarations of the shim (`shim/*.cpp`) and the handles it gives out. Never decides anything.

mod group;
mod tensor;

use std::any::Any;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;

use fuelrail_base::{Error, Kind, Result};
use tch::{Kind as Element, Tensor};

pub use self::group::{Backend, Group, Reducer};
pub(crate) use self::group::{LOST, over_nccl};
pub use self::tensor::tensor_of_bytes;
pub(crate) use self::tensor::{
    Later, add_scaled, batch_tensor, bytes_of, device_tensors, feed_stream, floats_of, moved,
};

unsafe extern "C" {
    fn fr_text_free(text: *mut c_char);
}

/// The result of a call of the shim: `text` is null, or says why it failed.
fn check(doing: &str, text: *mut c_char) -> Result<()> {
    match text_of(text) {
        None => Ok(()),
        Some(why) => Err(Error::new(Kind::Environment, format!("{doing}: {}", first_lines(&why)))),
    }
}

/// Takes a text that the shim allocated.
fn text_of(text: *mut c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: the shim hands out null or a text ending in a zero byte, which is ours from now on; it is freed once, here, after the
    // copy has been made.
    unsafe {
        let copy = CStr::from_ptr(text).to_string_lossy().into_owned();
        fr_text_free(text);
        Some(copy)
    }
}

/// Torch's number of an element kind (`c10::ScalarType`), which tch keeps to itself.
fn code_of(kind: tch::Kind) -> c_int {
    match kind {
        tch::Kind::Uint8 => 0,
        tch::Kind::Int8 => 1,
        tch::Kind::Int16 => 2,
        tch::Kind::Int => 3,
        tch::Kind::Int64 => 4,
        tch::Kind::Half => 5,
        tch::Kind::Float => 6,
        tch::Kind::Double => 7,
        tch::Kind::Bool => 11,
        tch::Kind::BFloat16 => 15,
        other => unreachable!("no tensor of ours has elements of {other:?}"),
    }
}

/// Torch's message, without its stack trace.
fn first_lines(why: &str) -> String {
    let trace = |line: &&str| line.starts_with("Exception raised from") || line.starts_with("frame #");
    let text: Vec<&str> = why.lines().take_while(|line| !trace(line)).take(4).collect();
    text.join(" ").trim().to_owned()
}

unsafe extern "C" {
    fn fr_torch_version() -> *mut c_char;
    fn fr_load_cuda() -> *mut c_char;
    fn fr_random_state(cuda: c_int, out: *mut *mut c_void) -> *mut c_char;
    fn fr_random_state_set(cuda: c_int, state: *const c_void) -> *mut c_char;
    fn fr_autocast_on(cuda: c_int, kind: c_int) -> *mut c_char;
    fn fr_autocast_off(cuda: c_int);
}

/// The version of the libtorch this was compiled against.
pub fn torch_version() -> String {
    // SAFETY: no arguments; the text is ours.
    text_of(unsafe { fr_torch_version() }).unwrap_or_default()
}

/// Loads torch's CUDA part. Call it before any other use of CUDA in torch.
///
/// # Errors
/// `Environment` where this installation has none, or it does not load.
pub fn load_cuda() -> Result<()> {
    // SAFETY: loads a library by name; torch's initialisers run and nothing of ours is touched.
    check("torch's CUDA part", unsafe { fr_load_cuda() })
}

/// Runs what calls torch through `tch`, which makes panics of torch's exceptions, and makes errors of them. Other panics go on.
///
/// # Errors
/// Those of `act`; `Program` for an exception, with a hint where memory is short.
pub fn caught<T>(act: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(act)).unwrap_or_else(|panic| match exception_in(&*panic) {
        None => resume_unwind(panic),
        Some(why) => {
            let memory = ["out of memory", "not enough memory", "can't allocate memory"];
            let hint = if memory.iter().any(|words| why.contains(words)) {
                "lower the batch size (with --accumulate the step stays as large), or --precision bf16"
            } else {
                "look at the model: the shapes and types that it was given"
            };
            Err(Error::new(Kind::Program, format!("torch: {why}")).with_hint(hint))
        }
    })
}

/// What torch said, where a panic of `tch` is about it.
pub(crate) fn exception_in(panic: &(dyn Any + Send)) -> Option<String> {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied())?;
    let (_, rest) = text.split_once("Torch(\"")?;
    let said = rest.trim_end_matches("\")").replace("\\n", "\n").replace("\\\"", "\"");
    Some(first_lines(&said))
}

fn device(cuda: Option<usize>) -> c_int {
    cuda.map_or(-1, |device| c_int::try_from(device).unwrap_or(-1))
}

/// The random state of the CPU, or of a CUDA device: a byte tensor.
pub(crate) fn random_state(cuda: Option<usize>) -> Result<Tensor> {
    let mut made = ptr::null_mut();
    // SAFETY: writes one pointer to an owned tensor, which tch frees.
    unsafe {
        check("reading the random state", fr_random_state(device(cuda), &raw mut made))?;
        Ok(Tensor::from_ptr(made.cast()))
    }
}

/// Restores a state of [`random_state`].
pub(crate) fn set_random_state(cuda: Option<usize>, state: &Tensor) -> Result<()> {
    // SAFETY: the tensor is read during the call only.
    check("setting the random state", unsafe { fr_random_state_set(device(cuda), state.as_ptr().cast()) })
}

/// Operations run in a narrower kind where torch considers it safe, as long as this lives. Belongs to the thread that made it.
#[derive(Debug)]
pub(crate) struct Autocast {
    cuda: c_int,
    on_one_thread: std::marker::PhantomData<*mut ()>,
}

impl Autocast {
    /// Turns it on.
    pub(crate) fn new(cuda: bool, kind: Element) -> Result<Autocast> {
        let cuda = c_int::from(cuda);
        // SAFETY: plain numbers; turned off again by the drop.
        check("turning autocast on", unsafe { fr_autocast_on(cuda, code_of(kind)) })?;
        Ok(Autocast { cuda, on_one_thread: std::marker::PhantomData })
    }
}

impl Drop for Autocast {
    fn drop(&mut self) {
        // SAFETY: undoes `fr_autocast_on` on the same thread: the type is not Send.
        unsafe { fr_autocast_off(self.cuda) }
    }
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::{first_lines, *};

    #[test]
    fn stack_traces_are_left_out() {
        let text =
            "Connection closed by peer\nException raised from recv at x.cpp:1 (most recent call first):\nframe #0";
        assert_eq!(first_lines(text), "Connection closed by peer");
        assert_eq!(
            first_lines("Error code 12 (Cannot allocate memory)\nframe #0: f()"),
            "Error code 12 (Cannot allocate memory)"
        );
    }

    #[test]
    fn a_random_state_set_again_gives_the_same_numbers() {
        tch::manual_seed(3);
        let state = random_state(None).unwrap();
        let first = Tensor::rand(&[16], (Element::Float, Device::Cpu));
        set_random_state(None, &state).unwrap();
        assert_eq!(first, Tensor::rand(&[16], (Element::Float, Device::Cpu)));
        set_random_state(None, &Tensor::zeros(&[3], (Element::Uint8, Device::Cpu))).unwrap_err();
    }

    #[test]
    fn autocast_ends_with_its_guard() {
        let (a, b) = (
            Tensor::ones(&[4, 4], (Element::Float, Device::Cpu)),
            Tensor::ones(&[4, 4], (Element::Float, Device::Cpu)),
        );
        let guard = Autocast::new(false, Element::BFloat16).unwrap();
        assert_eq!(a.matmul(&b).kind(), Element::BFloat16);
        drop(guard);
        assert_eq!(a.matmul(&b).kind(), Element::Float);
        assert!(torch_version().contains('.'));
    }
}
