//! The functions of `include/fuelrail.h`, which is made of this file.
//!
//! Handles are boxes that C keeps, borrowed by every call and given back to be dropped; places to write to are references to what may hold
//! anything; null is `None`. What cannot be seen here, that an address is one of ours and not yet freed, is the caller's part, stated in the
//! header. Every call that can fail or panic goes through [`call`].
#![allow(clippy::missing_safety_doc, reason = "the rules are those of the header, the same for all")]

pub use crate::batch::Batch;
pub use crate::error::Error;
use crate::error::{c_text, usage};
pub use crate::loader::Loader;
use fuelrail::{Overrides, Result, Taken};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;
use std::{ptr, slice};

/// A setting as texts. `engine/docs/SETTINGS.md` lists them.
#[repr(C)]
pub struct Setting {
    /// Name or key, such as `batch_size`; a setting that is given twice is refused.
    pub name: *const c_char,
    /// Lists are separated by commas. NULL counts as not set.
    pub value: *const c_char,
}

/// What `fuelrail_loader_next` found.
#[repr(C)]
pub enum Next {
    /// It failed: see the error. A run that has failed is over, but for `budget`: release batches, and ask again.
    Error = -1,
    /// A batch.
    Batch = 0,
    /// It is not there yet.
    NotYet = 1,
    /// The run is over.
    Over = 2,
}

/// What the bytes of a decoded batch are: samples of `height` rows of `width` pixels of `channels` numbers, without gaps; or, where
/// `planes` is true, samples of `channels` planes of `height` rows of `width` numbers. A number has `number_bytes`: 1 of an integer
/// from 0 to 255, 2 or 4 of a floating-point number.
#[repr(C)]
#[expect(missing_docs, reason = "said above")]
pub struct Shape {
    pub samples: usize,
    pub height: usize,
    pub width: usize,
    pub channels: usize,
    pub number_bytes: usize,
    pub planes: bool,
}

/// The version of this library, such as `0.1.0`.
#[unsafe(no_mangle)]
pub extern "C" fn fuelrail_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// Opens a loader: reads `count` settings, lists the bucket, starts the threads. What is not set is read from `FUELRAIL_*`
/// variables. `state` is NULL, or what `fuelrail_loader_state` gave: the run goes on there.
///
/// NULL on errors: `usage` for a setting or a state, `budget` for a `memory_limit` that is too small (the hint says what is
/// needed), `network`, `not_found`, `denied` and others from the listing.
///
/// Any thread. Several loaders at a time are fine.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuelrail_open(
    settings: *const Setting,
    count: usize,
    state: *const c_char,
    error: Option<&mut MaybeUninit<Option<Box<Error>>>>,
) -> Option<Box<Loader>> {
    call(error, None, || {
        // SAFETY: the caller keeps settings and texts unchanged until this function returns.
        let (settings, state) = unsafe {
            let state = if state.is_null() { None } else { Some(text(state, "state")?) };
            (overrides(settings, count)?, state)
        };
        Ok(Some(Box::new(Loader::open(&settings, state)?)))
    })
}

/// Stops the threads and gives the memory back; where batches are held, which stay valid, with the last of them. NULL does nothing.
///
/// Any thread, once; no other call of this loader may be under way or follow.
#[unsafe(no_mangle)]
pub extern "C" fn fuelrail_close(loader: Option<Box<Loader>>) {
    free(loader);
}

/// The next batch, in order, into `*batch`, which is NULL where there is none. Waits for it at most `timeout_ms`: -1 waits
/// until there is one, 0 only looks. After a look that found none, the descriptor of `fuelrail_loader_eventfd` becomes readable
/// when it is time for the next look. Only a wait detects that the batches you keep leave no memory for the next one.
///
/// Any thread. Where several wait, each batch goes to one of them, and a call may take up to 100 ms longer than it is told.
#[unsafe(no_mangle)]
pub extern "C" fn fuelrail_loader_next(
    loader: Option<&Loader>,
    timeout_ms: c_int,
    batch: Option<&mut MaybeUninit<Option<Box<Batch>>>>,
    error: Option<&mut MaybeUninit<Option<Box<Error>>>>,
) -> Next {
    call(error, Next::Error, || {
        let place = given(batch, "batch")?.write(None);
        // A negative one is for ever.
        let patience = u64::try_from(timeout_ms).map_or(Duration::MAX, Duration::from_millis);
        Ok(match given(loader, "loader")?.next(patience)? {
            Taken::Batch(taken) => {
                *place = Some(Box::new(Batch::new(taken)));
                Next::Batch
            }
            Taken::NotYet => Next::NotYet,
            Taken::Over => Next::Over,
        })
    })
}

/// A file descriptor for poll(), select() or epoll: readable unless the latest call of `fuelrail_loader_next`, on any thread, had a
/// timeout of 0 and found no batch, and none has come since. The loader owns it: do not read from it or close it. -1 on errors.
///
/// Any thread. Waits up to 100 ms while another one waits for a batch.
#[unsafe(no_mangle)]
pub extern "C" fn fuelrail_loader_eventfd(
    loader: Option<&Loader>,
    error: Option<&mut MaybeUninit<Option<Box<Error>>>>,
) -> c_int {
    call(error, -1, || Ok(given(loader, "loader")?.engine()?.event()?.as_raw_fd()))
}

/// Where the run stands after the last batch taken, as JSON: the same on every rank, and for any number of ranks. NULL on
/// errors. Freed by `fuelrail_string_free`.
///
/// Any thread, without waiting.
#[unsafe(no_mangle)]
pub extern "C" fn fuelrail_loader_state(
    loader: Option<&Loader>,
    error: Option<&mut MaybeUninit<Option<Box<Error>>>>,
) -> *mut c_char {
    call(error, ptr::null_mut(), || Ok(c_text(&given(loader, "loader")?.state()?).into_raw()))
}

/// Counters and latencies so far, as JSON; names end in their unit. NULL on errors. Freed by `fuelrail_string_free`.
///
/// Any thread. Waits up to 100 ms while another one waits for a batch.
#[unsafe(no_mangle)]
pub extern "C" fn fuelrail_loader_stats(
    loader: Option<&Loader>,
    error: Option<&mut MaybeUninit<Option<Box<Error>>>>,
) -> *mut c_char {
    call(error, ptr::null_mut(), || Ok(c_text(&given(loader, "loader")?.stats()?).into_raw()))
}

/// Batches of this rank in this run, from where it started or resumed.
#[unsafe(no_mangle)]
pub extern "C" fn fuelrail_loader_batches(loader: Option<&Loader>) -> u64 {
    loader.map_or(0, |loader| loader.batches)
}

/// Samples in the data set.
#[unsafe(no_mangle)]
pub extern "C" fn fuelrail_loader_samples(loader: Option<&Loader>) -> u64 {
    loader.map_or(0, |loader| loader.samples)
}

/// The name of the class of this number, valid until the loader is closed; NULL beyond the last. Labels are such numbers.
#[unsafe(no_mangle)]
pub extern "C" fn fuelrail_loader_class(loader: Option<&Loader>, i: usize) -> *const c_char {
    loader.map_or(ptr::null(), |loader| at(&loader.classes, i))
}

/// A notice: something that is not as fast or as safe as it could be, with cause and cure, valid until the loader is closed; NULL
/// beyond the last.
#[unsafe(no_mangle)]
pub extern "C" fn fuelrail_loader_notice(loader: Option<&Loader>, i: usize) -> *const c_char {
    loader.map_or(ptr::null(), |loader| at(&loader.notices, i))
}

/// Samples of the batch: the last step of an epoch may hold fewer than `batch_size`, even none.
#[unsafe(no_mangle)]
pub extern "C" fn fuelrail_batch_len(batch: Option<&Batch>) -> usize {
    batch.map_or(0, |batch| batch.engine.len())
}

/// The epoch, from 0.
#[unsafe(no_mangle)]
pub extern "C" fn fuelrail_batch_epoch(batch: Option<&Batch>) -> u64 {
    batch.map_or(0, |batch| batch.engine.epoch())
}

/// The step in the epoch, or in what is left of it after a resume, from 0.
#[unsafe(no_mangle)]
pub extern "C" fn fuelrail_batch_step(batch: Option<&Batch>) -> u64 {
    batch.map_or(0, |batch| batch.engine.step())
}

/// Numbers of the samples in the data set's listing, one for each sample.
#[unsafe(no_mangle)]
pub extern "C" fn fuelrail_batch_ids(batch: Option<&Batch>) -> *const u64 {
    batch.map_or(ptr::null(), |batch| batch.engine.ids().as_ptr().cast())
}

/// Classes, one for each sample: -1 where it has none.
#[unsafe(no_mangle)]
pub extern "C" fn fuelrail_batch_labels(batch: Option<&Batch>) -> *const i32 {
    batch.map_or(ptr::null(), |batch| batch.engine.labels().as_ptr().cast())
}

/// What to multiply each sample's loss by: all 1 unless epochs are drawn by importance.
#[unsafe(no_mangle)]
pub extern "C" fn fuelrail_batch_weights(batch: Option<&Batch>) -> *const f32 {
    batch.map_or(ptr::null(), |batch| batch.engine.weights().as_ptr())
}

/// Where each sample starts in `fuelrail_batch_bytes`.
#[unsafe(no_mangle)]
pub extern "C" fn fuelrail_batch_offsets(batch: Option<&Batch>) -> *const usize {
    batch.map_or(ptr::null(), |batch| batch.engine.offsets().as_ptr())
}

/// Whether the batch is decoded; if so, `*shape` says what `fuelrail_batch_bytes` are.
#[unsafe(no_mangle)]
pub extern "C" fn fuelrail_batch_shape(batch: Option<&Batch>, shape: Option<&mut MaybeUninit<Shape>>) -> bool {
    let Some(found) = batch.and_then(|batch| batch.engine.shape()) else { return false };
    let fuelrail::Shape { samples, height, width, channels, dtype, layout } = found;
    let planes = layout == fuelrail::PixelLayout::Nchw;
    shape.map(|place| place.write(Shape { samples, height, width, channels, number_bytes: dtype.bytes(), planes }));
    true
}

/// The whole memory of the batch, its length into `*len`: of a decoded batch the samples and nothing else, of others also what
/// lies between them. NULL on errors.
#[unsafe(no_mangle)]
pub extern "C" fn fuelrail_batch_bytes(
    batch: Option<&Batch>,
    len: Option<&mut MaybeUninit<usize>>,
    error: Option<&mut MaybeUninit<Option<Box<Error>>>>,
) -> *const u8 {
    stretch(batch, len, error, |batch| Ok(Some(parts(batch.engine.bytes()))))
}

/// The bytes of sample `i`, their number into `*len`: without a copy. NULL on errors.
#[unsafe(no_mangle)]
pub extern "C" fn fuelrail_batch_sample(
    batch: Option<&Batch>,
    i: usize,
    len: Option<&mut MaybeUninit<usize>>,
    error: Option<&mut MaybeUninit<Option<Box<Error>>>>,
) -> *const u8 {
    stretch(batch, len, error, |batch| Ok(Some(parts(batch.sample(i)?))))
}

/// A field of sample `i`, such as `jpg` of a record of a tar archive, its length into `*len`: without a copy where it lies in the
/// batch as it is. NULL where the sample has no such field, with `decode` for all but those that the setting `fields` names, and on errors.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuelrail_batch_field(
    batch: Option<&Batch>,
    i: usize,
    name: *const c_char,
    len: Option<&mut MaybeUninit<usize>>,
    error: Option<&mut MaybeUninit<Option<Box<Error>>>>,
) -> *const u8 {
    // SAFETY: the caller keeps the name unchanged until this function returns.
    stretch(batch, len, error, |batch| batch.field(i, unsafe { text(name, "name")? }))
}

/// The key of sample `i`: of its record, or its object. NULL on errors.
#[unsafe(no_mangle)]
pub extern "C" fn fuelrail_batch_key(
    batch: Option<&Batch>,
    i: usize,
    error: Option<&mut MaybeUninit<Option<Box<Error>>>>,
) -> *const c_char {
    call(error, ptr::null(), || given(batch, "batch")?.key(i))
}

/// Gives the memory back: nothing read from the batch is valid any more. NULL does nothing. Also after the loader is closed.
///
/// Any thread, once; no other call of this batch may be under way or follow.
#[unsafe(no_mangle)]
pub extern "C" fn fuelrail_batch_release(batch: Option<Box<Batch>>) {
    free(batch);
}

/// Frees an error and its texts. NULL does nothing.
#[unsafe(no_mangle)]
pub extern "C" fn fuelrail_error_free(error: Option<Box<Error>>) {
    free(error);
}

/// Frees what `fuelrail_loader_state` or `fuelrail_loader_stats` gave. NULL does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuelrail_string_free(string: *mut c_char) {
    if !string.is_null() {
        // SAFETY: `CString::into_raw` made it, and the caller kept it, and left it unchanged, since; it is the caller's no longer.
        drop(unsafe { CString::from_raw(string) });
    }
}

/// Calls `warn` with each warning, which is valid during the call, and with `context`, on any thread; it must not throw. NULL prints
/// them to standard error, a line each. Without this call they are lost. The first call holds for the process.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuelrail_on_warning(
    warn: Option<unsafe extern "C" fn(text: *const c_char, context: *mut c_void)>,
    context: *mut c_void,
) {
    // A number goes to other threads.
    let context = context.expose_provenance();
    let warned = |warn: unsafe extern "C" fn(*const c_char, *mut c_void)| {
        // SAFETY: the caller lets every thread call `warn` with `context`, and keeps what it points to, as long as the process lives.
        move |text: &str| unsafe { warn(c_text(text).as_ptr(), ptr::with_exposed_provenance_mut(context)) }
    };
    call(None, (), || {
        warn.map_or_else(fuelrail::print_warnings, |warn| fuelrail::on_warning(warned(warn)));
        Ok(())
    });
}

/// What several threads may call at a time can be.
const _: () = {
    const fn send_and_sync<T: Send + Sync>() {}
    send_and_sync::<Loader>();
    send_and_sync::<Batch>();
};

impl Drop for Error {
    fn drop(&mut self) {
        for text in [self.kind, self.message, self.object, self.hint] {
            // SAFETY: each text is null, or `Error::new` got it from `CString::into_raw`. Nothing has changed it, and it is not used after this.
            unsafe { fuelrail_string_free(text.cast_mut()) };
        }
    }
}

/// Runs a call. What fails or panics becomes `*error`, else NULL; then `failed` is returned.
fn call<T>(error: Option<&mut MaybeUninit<Option<Box<Error>>>>, failed: T, act: impl FnOnce() -> Result<T>) -> T {
    let place = error.map(|place| place.write(None));
    let why = match catch_unwind(AssertUnwindSafe(act)) {
        Ok(Ok(found)) => return found,
        Ok(Err(why)) => Error::of(&why),
        Err(panic) => Error::bug(&*panic),
    };
    if let Some(place) = place {
        *place = Some(Box::new(why));
    }
    failed
}

/// Address and length of what is found in a batch.
fn stretch(
    batch: Option<&Batch>,
    len: Option<&mut MaybeUninit<usize>>,
    error: Option<&mut MaybeUninit<Option<Box<Error>>>>,
    find: impl FnOnce(&Batch) -> Result<Option<(*const u8, usize)>>,
) -> *const u8 {
    call(error, ptr::null(), || {
        let place = given(len, "len")?.write(0);
        let (bytes, found) = find(given(batch, "batch")?)?.unwrap_or((ptr::null(), 0));
        *place = found;
        Ok(bytes)
    })
}

fn parts(bytes: &[u8]) -> (*const u8, usize) {
    (bytes.as_ptr(), bytes.len())
}

/// Drops a handle. A panic in its destructor is printed to standard error by the panic hook; the call has no place for an error.
fn free<T>(handle: Option<Box<T>>) {
    call(None, (), || {
        drop(handle);
        Ok(())
    });
}

fn given<T>(what: Option<T>, name: &str) -> Result<T> {
    what.ok_or_else(|| usage(format!("{name} is NULL"), "check whether the call that returned it failed"))
}

fn at(texts: &[CString], i: usize) -> *const c_char {
    texts.get(i).map_or(ptr::null(), |text| text.as_ptr())
}

/// # Safety
/// `text` is null, or ends in a NUL and stays unchanged as long as what is returned is used.
unsafe fn text<'a>(text: *const c_char, name: &str) -> Result<&'a str> {
    given((!text.is_null()).then_some(()), name)?;
    // SAFETY: the caller keeps it.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| usage(format!("{name} is not UTF-8"), "give text in UTF-8"))
}

/// # Safety
/// `settings` is null or points to `count` of them, whose texts are null or end in a NUL.
unsafe fn overrides(settings: *const Setting, count: usize) -> Result<Overrides> {
    given((count == 0 || !settings.is_null()).then_some(()), "settings")?;
    // SAFETY: the caller keeps them; none are read at a null address.
    let settings = if count == 0 { &[] } else { unsafe { slice::from_raw_parts(settings, count) } };
    let set = settings.iter().filter(|set| !set.value.is_null());
    // SAFETY: the caller keeps their texts.
    set.map(|set| unsafe {
        Ok((text(set.name, "a setting's name")?.into(), text(set.value, "a setting's value")?.into()))
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_of_kind_bug() {
        let mut error = MaybeUninit::uninit();
        assert_eq!(call(Some(&mut error), -1, || panic!("a fault of {}", "ours")), -1);
        assert_eq!(call(None, -1, || panic!("the caller passed no place for the error")), -1);
        // SAFETY: `call` has written it, and its texts live as long as it does.
        let text = unsafe {
            let error = error.assume_init().unwrap();
            [error.kind, error.message].map(|text| CStr::from_ptr(text).to_str().unwrap().to_owned()).join(": ")
        };
        assert!(text.starts_with("bug: fuelrail panicked: a fault of ours; "), "{text}");
    }
}
