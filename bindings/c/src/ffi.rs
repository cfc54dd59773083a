//! The functions of `include/fuelrail.h`, which is made of this file.
//!
//! Every one catches panics, and checks what can be checked of what it is handed: a null address or a text that is not UTF-8 is an error of
//! kind `usage`. That an address that is not null is one of ours, and not yet freed, is the caller's part, stated in the header.
#![allow(clippy::missing_safety_doc, reason = "the rules are those of the header, the same for all")]

pub use crate::batch::Batch;
pub use crate::error::Error;
use crate::error::{c_text, usage};
pub use crate::loader::Loader;
use fuelrail::{Overrides, Result, Taken};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::fd::AsRawFd as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;
use std::{ptr, slice};

/// A setting by its name, such as `batch_size`, and its value as text. `engine/docs/SETTINGS.md` lists them.
#[repr(C)]
pub struct Setting {
    /// Of a setting of SETTINGS.md.
    pub name: *const c_char,
    /// Lists are separated by commas. NULL counts as not set.
    pub value: *const c_char,
}

/// What `fuelrail_loader_next` found.
#[repr(C)]
pub enum Next {
    /// The run has failed: see the error. Calls from here on find that it is over.
    Error = -1,
    /// A batch.
    Batch = 0,
    /// It is not there yet.
    NotYet = 1,
    /// The run is over.
    Over = 2,
}

/// What the bytes of a decoded batch are: samples of rows of pixels of channels, one byte each, without gaps.
#[repr(C)]
pub struct Shape {
    /// Samples of this batch.
    pub samples: usize,
    /// Rows.
    pub height: usize,
    /// Pixels of a row.
    pub width: usize,
    /// Bytes of a pixel.
    pub channels: usize,
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
    error: *mut *mut Error,
) -> *mut Loader {
    let open = || {
        // SAFETY: the caller keeps settings, texts and state unchanged until this function returns.
        let (settings, state) = unsafe {
            let state = if state.is_null() { None } else { Some(text(state, "state")?) };
            (overrides(settings, count)?, state)
        };
        Ok(Box::into_raw(Box::new(Loader::open(&settings, state)?)))
    };
    // SAFETY: the caller lets `error` be written to until this function returns.
    unsafe { call(error, ptr::null_mut(), open) }
}

/// Stops the threads and gives the memory back, but for what batches hold: they stay valid. NULL does nothing.
///
/// Any thread, once; no other call of this loader may be under way or follow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuelrail_close(loader: *mut Loader) {
    // SAFETY: `fuelrail_open` boxed it, and the caller kept it since; it is the caller's no longer.
    unsafe { free(loader) }
}

/// The next batch, in order, into `*batch`, which is NULL where there is none. Waits for it at most `timeout_ms`: -1 waits
/// until there is one, 0 only looks. After a look that found none, the descriptor of `fuelrail_loader_eventfd` becomes readable
/// when it is time for the next look. Only a wait finds out that the batches you keep leave no memory for the next one.
///
/// Any thread. Where several wait, each batch goes to one of them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuelrail_loader_next(
    loader: *const Loader,
    timeout_ms: c_int,
    batch: *mut *mut Batch,
    error: *mut *mut Error,
) -> Next {
    let next = |loader: &Loader| {
        // SAFETY: the caller lets `batch` be written to until this function returns.
        let put = |taken| unsafe { put(batch, taken, "batch") };
        put(ptr::null_mut())?;
        // A negative one is for ever.
        let patience = u64::try_from(timeout_ms).map_or(Duration::MAX, Duration::from_millis);
        Ok(match loader.next(patience)? {
            Taken::Batch(taken) => put(Box::into_raw(Box::new(Batch::new(taken)))).map(|()| Next::Batch)?,
            Taken::NotYet => Next::NotYet,
            Taken::Over => Next::Over,
        })
    };
    // SAFETY: the caller keeps the loader open, and `error` writable, until this function returns.
    unsafe { with(loader, "loader", error, Next::Error, next) }
}

/// A file descriptor for poll(), select() or epoll: readable when `fuelrail_loader_next` with a timeout of 0, which has found no
/// batch, should be called again. The loader owns it: do not read from it or close it. -1 on errors.
///
/// Any thread. Waits up to 100 ms while another one waits for a batch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuelrail_loader_eventfd(loader: *const Loader, error: *mut *mut Error) -> c_int {
    // SAFETY: the caller keeps the loader open, and `error` writable, until this function returns.
    unsafe { with(loader, "loader", error, -1, |loader| Ok(loader.engine()?.event()?.as_raw_fd())) }
}

/// Where the run stands behind the last batch taken, as JSON: the same on every rank, and for any number of ranks. NULL on
/// errors. Freed by `fuelrail_string_free`.
///
/// Any thread, without waiting.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuelrail_loader_state(loader: *const Loader, error: *mut *mut Error) -> *mut c_char {
    let state = |loader: &Loader| Ok(c_text(&loader.state()?).into_raw());
    // SAFETY: the caller keeps the loader open, and `error` writable, until this function returns.
    unsafe { with(loader, "loader", error, ptr::null_mut(), state) }
}

/// Counters and latencies so far, as JSON; names end in their unit. NULL on errors. Freed by `fuelrail_string_free`.
///
/// Any thread. Waits up to 100 ms while another one waits for a batch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuelrail_loader_stats(loader: *const Loader, error: *mut *mut Error) -> *mut c_char {
    let stats = |loader: &Loader| Ok(c_text(&loader.stats()?).into_raw());
    // SAFETY: the caller keeps the loader open, and `error` writable, until this function returns.
    unsafe { with(loader, "loader", error, ptr::null_mut(), stats) }
}

/// Batches of this rank in this run, from where it started or resumed. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuelrail_loader_batches(loader: *const Loader) -> u64 {
    // SAFETY: the caller keeps the loader open until this function returns.
    unsafe { fact(loader, 0, |loader| loader.batches) }
}

/// Samples in the data set. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuelrail_loader_samples(loader: *const Loader) -> u64 {
    // SAFETY: the caller keeps the loader open until this function returns.
    unsafe { fact(loader, 0, |loader| loader.samples) }
}

/// How many classes there are. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuelrail_loader_classes(loader: *const Loader) -> usize {
    // SAFETY: the caller keeps the loader open until this function returns.
    unsafe { fact(loader, 0, |loader| loader.classes.len()) }
}

/// The name of the class whose label is `label`, valid until the loader is closed; NULL where there is none. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuelrail_loader_class(loader: *const Loader, label: usize) -> *const c_char {
    // SAFETY: the caller keeps the loader open until this function returns.
    unsafe { fact(loader, ptr::null(), |loader| at(&loader.classes, label)) }
}

/// How many notices there are: what is not as fast or as safe as it could be. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuelrail_loader_notices(loader: *const Loader) -> usize {
    // SAFETY: the caller keeps the loader open until this function returns.
    unsafe { fact(loader, 0, |loader| loader.notices.len()) }
}

/// Notice `i`, with cause and cure, valid until the loader is closed; NULL where there is none. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuelrail_loader_notice(loader: *const Loader, i: usize) -> *const c_char {
    // SAFETY: the caller keeps the loader open until this function returns.
    unsafe { fact(loader, ptr::null(), |loader| at(&loader.notices, i)) }
}

/// Samples of the batch: the last step of an epoch may hold fewer than `batch_size`, even none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuelrail_batch_len(batch: *const Batch) -> usize {
    // SAFETY: the caller keeps the batch until this function returns.
    unsafe { fact(batch, 0, |batch| batch.engine.len()) }
}

/// The epoch, from 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuelrail_batch_epoch(batch: *const Batch) -> u64 {
    // SAFETY: the caller keeps the batch until this function returns.
    unsafe { fact(batch, 0, |batch| batch.engine.epoch()) }
}

/// The step in the epoch, or in what is left of it after a resume, from 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuelrail_batch_step(batch: *const Batch) -> u64 {
    // SAFETY: the caller keeps the batch until this function returns.
    unsafe { fact(batch, 0, |batch| batch.engine.step()) }
}

/// Numbers of the samples in the data set's listing, one for each sample.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuelrail_batch_ids(batch: *const Batch) -> *const u64 {
    // SAFETY: the caller keeps the batch until this function returns.
    unsafe { fact(batch, ptr::null(), |batch| batch.engine.ids().as_ptr().cast()) }
}

/// Classes, one for each sample: -1 where it has none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuelrail_batch_labels(batch: *const Batch) -> *const i32 {
    // SAFETY: the caller keeps the batch until this function returns.
    unsafe { fact(batch, ptr::null(), |batch| batch.engine.labels().as_ptr().cast()) }
}

/// What to multiply each sample's loss by: all 1 unless epochs are drawn by importance.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuelrail_batch_weights(batch: *const Batch) -> *const f32 {
    // SAFETY: the caller keeps the batch until this function returns.
    unsafe { fact(batch, ptr::null(), |batch| batch.engine.weights().as_ptr()) }
}

/// Where each sample starts in `fuelrail_batch_bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuelrail_batch_offsets(batch: *const Batch) -> *const usize {
    // SAFETY: the caller keeps the batch until this function returns.
    unsafe { fact(batch, ptr::null(), |batch| batch.engine.offsets().as_ptr()) }
}

/// Whether the batch is decoded; if so, `*shape` says what `fuelrail_batch_bytes` are.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuelrail_batch_shape(batch: *const Batch, shape: *mut Shape) -> bool {
    let read = |batch: &Batch| {
        let found = batch.engine.shape().map(|fuelrail::Shape { samples, height, width, channels }| {
            // SAFETY: the caller lets `shape` be written to until this function returns.
            unsafe { put(shape, Shape { samples, height, width, channels }, "shape") }
        });
        matches!(found, Some(Ok(())))
    };
    // SAFETY: the caller keeps the batch until this function returns.
    unsafe { fact(batch, false, read) }
}

/// The whole memory of the batch, its length into `*len`: of a decoded batch the samples and nothing else, of others also what
/// lies between them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuelrail_batch_bytes(
    batch: *const Batch,
    len: *mut usize,
    error: *mut *mut Error,
) -> *const u8 {
    let bytes = |batch: &Batch| Ok(batch.engine.bytes()).map(|bytes| (bytes.as_ptr(), bytes.len()));
    // SAFETY: the caller keeps the batch, and `len` and `error` writable, until this function returns.
    unsafe { stretch(batch, len, error, |batch| bytes(batch).map(Some)) }
}

/// The bytes of sample `i`, their number into `*len`: without a copy. NULL on errors.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuelrail_batch_sample(
    batch: *const Batch,
    i: usize,
    len: *mut usize,
    error: *mut *mut Error,
) -> *const u8 {
    let sample = |batch: &Batch| Ok(Some(batch.sample(i)?).map(|bytes| (bytes.as_ptr(), bytes.len())));
    // SAFETY: the caller keeps the batch, and `len` and `error` writable, until this function returns.
    unsafe { stretch(batch, len, error, sample) }
}

/// A field of sample `i`, such as `jpg` of a record of a tar archive, its length into `*len`: without a copy where it lies in the
/// batch as it is. NULL where the sample has no such field, and on errors.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuelrail_batch_field(
    batch: *const Batch,
    i: usize,
    name: *const c_char,
    len: *mut usize,
    error: *mut *mut Error,
) -> *const u8 {
    // SAFETY: the caller keeps the name unchanged until this function returns.
    let field = |batch: &Batch| batch.field(i, unsafe { text(name, "name")? });
    // SAFETY: the caller keeps the batch, and `len` and `error` writable, until this function returns.
    unsafe { stretch(batch, len, error, field) }
}

/// The key of sample `i`: of its record, or its object. NULL on errors.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuelrail_batch_key(batch: *const Batch, i: usize, error: *mut *mut Error) -> *const c_char {
    // SAFETY: the caller keeps the batch, and `error` writable, until this function returns.
    unsafe { with(batch, "batch", error, ptr::null(), |batch| batch.key(i)) }
}

/// Gives the memory back: nothing read from the batch is valid any more. NULL does nothing. Also after the loader is closed.
///
/// Any thread, once; no other call of this batch may be under way or follow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuelrail_batch_release(batch: *mut Batch) {
    // SAFETY: `fuelrail_loader_next` boxed it, and the caller kept it since; it is the caller's no longer.
    unsafe { free(batch) }
}

/// Frees an error and its texts. NULL does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuelrail_error_free(error: *mut Error) {
    // SAFETY: `call` boxed it with its texts, and the caller kept it, and left it unchanged, since; it is the caller's no longer.
    unsafe {
        if let Some(error) = error.as_ref() {
            error.texts().into_iter().for_each(|text| fuelrail_string_free(text.cast_mut()));
        }
        free(error);
    }
}

/// Frees what `fuelrail_loader_state` or `fuelrail_loader_stats` gave. NULL does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuelrail_string_free(string: *mut c_char) {
    if !string.is_null() {
        // SAFETY: `CString::into_raw` made it, and the caller kept it, and left it unchanged, since; it is the caller's no longer.
        drop(unsafe { CString::from_raw(string) });
    }
}

/// Calls `warn` with each warning, which is valid during the call, and with `context`, on any thread. NULL prints them to
/// standard error, a line each. Without this call they are lost. The first call holds for the process. `warn` must not throw.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuelrail_on_warning(
    warn: Option<unsafe extern "C" fn(text: *const c_char, context: *mut c_void)>,
    context: *mut c_void,
) {
    let context = Context(context);
    let register = || {
        match warn {
            None => fuelrail::print_warnings(),
            // SAFETY: the caller keeps what `context` points to, and lets any thread call `warn` with it, as long as the process lives.
            Some(warn) => fuelrail::on_warning(move |text| unsafe { warn(c_text(text).as_ptr(), context.get()) }),
        }
        Ok(())
    };
    // SAFETY: nothing is written through a null address.
    unsafe { call(ptr::null_mut(), (), register) }
}

/// What C hands in to be handed back.
struct Context(*mut c_void);

impl Context {
    fn get(&self) -> *mut c_void {
        self.0
    }
}

// SAFETY: it is never read or written here; the caller of `fuelrail_on_warning` lets any thread use it.
unsafe impl Send for Context {}
// SAFETY: the same.
unsafe impl Sync for Context {}

fn null(what: &str) -> fuelrail::Error {
    usage(format!("{what} is NULL"), "look whether the call that was to give it failed")
}

fn at(texts: &[CString], i: usize) -> *const c_char {
    texts.get(i).map_or(ptr::null(), |text| text.as_ptr())
}

/// Runs a call. What fails or panics becomes `*error`, else NULL; then `failed` is returned.
///
/// # Safety
/// `error` is null or may be written to.
unsafe fn call<T>(error: *mut *mut Error, failed: T, act: impl FnOnce() -> Result<T>) -> T {
    // SAFETY: the caller lets it be written to.
    let tell = |found: *mut Error| unsafe {
        if !error.is_null() {
            error.write(found)
        }
    };
    tell(ptr::null_mut());
    let why = match catch_unwind(AssertUnwindSafe(act)) {
        Ok(Ok(found)) => return found,
        // Nobody would free it.
        _ if error.is_null() => return failed,
        Ok(Err(why)) => Error::of(&why),
        Err(panic) => Error::bug(&*panic),
    };
    tell(Box::into_raw(Box::new(why)));
    failed
}

/// Runs a call of a handle.
///
/// # Safety
/// `handle` is null or points to one that lives during the call, `error` is null or may be written to.
unsafe fn with<H, T>(
    handle: *const H,
    what: &str,
    error: *mut *mut Error,
    failed: T,
    act: impl FnOnce(&H) -> Result<T>,
) -> T {
    // SAFETY: the caller keeps both.
    unsafe { call(error, failed, || act(handle.as_ref().ok_or_else(|| null(what))?)) }
}

/// Reads what cannot fail: `none` is for null.
///
/// # Safety
/// `handle` is null or points to one that lives during the call.
unsafe fn fact<H, T>(handle: *const H, none: T, read: impl FnOnce(&H) -> T) -> T {
    // SAFETY: the caller keeps the handle, and nothing is written through a null address.
    unsafe { with(handle, "", ptr::null_mut(), none, |handle| Ok(read(handle))) }
}

/// Address and length of what is found in a batch.
///
/// # Safety
/// `batch` is null or points to one that lives during the call, `len` and `error` are null or may be written to.
unsafe fn stretch(
    batch: *const Batch,
    len: *mut usize,
    error: *mut *mut Error,
    find: impl FnOnce(&Batch) -> Result<Option<(*const u8, usize)>>,
) -> *const u8 {
    let act = |batch: &Batch| {
        // SAFETY: the caller lets it be written to.
        let put = |found| unsafe { put(len, found, "len") };
        put(0)?;
        let (bytes, found) = find(batch)?.unwrap_or((ptr::null(), 0));
        put(found).map(|()| bytes)
    };
    // SAFETY: the caller keeps both.
    unsafe { with(batch, "batch", error, ptr::null(), act) }
}

/// Writes to a place that may hold anything.
///
/// # Safety
/// `place` is null or may be written to.
unsafe fn put<T>(place: *mut T, value: T, what: &str) -> Result<()> {
    if place.is_null() {
        return Err(null(what));
    }
    // SAFETY: the caller lets it be written to.
    unsafe { place.write(value) };
    Ok(())
}

/// # Safety
/// `text` is null, or ends in a NUL and stays unchanged as long as what is returned is used.
unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<&'a str> {
    if text.is_null() {
        return Err(null(what));
    }
    // SAFETY: the caller keeps it.
    let bytes = unsafe { CStr::from_ptr(text) };
    bytes.to_str().map_err(|_| usage(format!("{what} is not UTF-8"), "give text in UTF-8"))
}

/// # Safety
/// `settings` is null or points to `count` of them, whose texts are null or end in a NUL.
unsafe fn overrides(settings: *const Setting, count: usize) -> Result<Overrides> {
    if settings.is_null() && count > 0 {
        return Err(null("settings"));
    }
    // SAFETY: the caller keeps them; none are read at a null address.
    let settings = if count == 0 { &[] } else { unsafe { slice::from_raw_parts(settings, count) } };
    let set = settings.iter().filter(|setting| !setting.value.is_null());
    // SAFETY: the caller keeps their texts.
    set.map(|set| unsafe {
        Ok((text(set.name, "a setting's name")?.into(), text(set.value, "a setting's value")?.into()))
    })
    .collect()
}

/// # Safety
/// `handle` is null or was made by `Box::into_raw`, and nobody uses it any more.
unsafe fn free<H>(handle: *mut H) {
    if !handle.is_null() {
        // SAFETY: the caller gives it up. A panic of a destructor has been printed, and there is nobody to tell.
        unsafe { call(ptr::null_mut(), (), || Ok(drop(Box::from_raw(handle)))) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_of_kind_bug() {
        let mut error = ptr::null_mut();
        // SAFETY: `error` is this function's, and so is what is written to it, until it is freed.
        let message = unsafe {
            assert_eq!(call(&raw mut error, -1, || panic!("a fault of {}", "ours")), -1);
            assert_eq!(call(ptr::null_mut(), -1, || panic!("nobody asks")), -1);
            let texts = [(*error).kind, (*error).message].map(|text| CStr::from_ptr(text).to_str().unwrap().to_owned());
            fuelrail_error_free(error);
            texts.join(": ")
        };
        assert!(message.starts_with("bug: fuelrail panicked: a fault of ours; "), "{message}");
    }
}
