//! A process group of libtorch's c10d: rendezvous of the ranks, and their collectives.

use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use fuelrail_base::{Error, Kind, Result, SampleId};
use tch::{Device, Kind as Element, Tensor, no_grad};

use super::{bytes_of, check, tensor_of_bytes};
use crate::ranks::Ranks;

unsafe extern "C" {
    fn fr_group_join(
        backend: *const c_char,
        host: *const c_char,
        port: u16,
        serve: bool,
        rank: c_int,
        world: c_int,
        prefix: *const c_char,
        address: *const c_char,
        interface: *const c_char,
        timeout_ms: i64,
        out: *mut *mut c_void,
    ) -> *mut c_char;
    fn fr_group_free(group: *mut c_void);
    fn fr_all_reduce(group: *mut c_void, tensor: *mut c_void) -> *mut c_char;
    fn fr_broadcast(group: *mut c_void, tensor: *mut c_void, root: c_int) -> *mut c_char;
    fn fr_all_gather(group: *mut c_void, tensor: *mut c_void, out: *mut c_void) -> *mut c_char;
    fn fr_barrier(group: *mut c_void) -> *mut c_char;
    fn fr_send(group: *mut c_void, tensor: *mut c_void, to: c_int, tag: c_int) -> *mut c_char;
    fn fr_receive(group: *mut c_void, tensor: *mut c_void, from: c_int, tag: c_int) -> *mut c_char;
}

/// The backend of the collectives.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backend {
    /// Over TCP, between tensors in the host's memory.
    Gloo,
    /// Between GPUs.
    Nccl,
}

impl Backend {
    /// Its name, as torch writes it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Backend::Gloo => "gloo",
            Backend::Nccl => "nccl",
        }
    }
}

/// The ranks that train together.
#[derive(Debug)]
pub struct Group {
    handle: *mut c_void,
    rank: usize,
    world: usize,
    /// The device of NCCL's tensors.
    device: Option<Device>,
    /// Longest wait for the others.
    patience: Duration,
}

// SAFETY: the handle is two intrusive pointers to libtorch's store and process group, both made for use from several threads.
unsafe impl Send for Group {}
// SAFETY: as above: libtorch guards its queues with locks of its own; what must match between ranks is the order of collectives, which
// is the caller's and no matter of memory.
unsafe impl Sync for Group {}

/// The hint when a collective fails.
pub(crate) const LOST: &str = "another rank has died, hangs or cannot be reached: look at its output; start all again to go on from the last checkpoint";

fn text(what: &str, value: &str) -> Result<CString> {
    CString::new(value).map_err(|_| Error::new(Kind::Usage, format!("{what} has a zero byte")))
}

/// Several threads of a process may not use NCCL's messages at a time.
pub(crate) fn over_nccl() -> Error {
    Error::new(Kind::Usage, "asynchronous training over NCCL")
        .with_hint("add --backend gloo: gradients then travel through the host's memory")
}

fn number(rank: usize) -> c_int {
    c_int::try_from(rank).unwrap_or(c_int::MAX)
}

impl Group {
    /// Joins the other ranks; returns when all are there. `None` for a single rank over gloo, which needs no group; over NCCL a single rank is a
    /// group, too. NCCL works on `device`; `timeout` is the longest wait for the others, here and in every collective.
    ///
    /// # Errors
    /// `Environment` when they are not all there in time, or the backend is missing.
    pub fn join(ranks: &Ranks, backend: Backend, device: Device, timeout: Duration) -> Result<Option<Arc<Group>>> {
        if ranks.world == 1 && backend == Backend::Gloo {
            return Ok(None);
        }
        let Ranks { rank, world, host, port, .. } = ranks;
        let (name, at) = (text("the backend", backend.name())?, text("MASTER_ADDR", host)?);
        // Keeps this start apart from earlier ones at the same store.
        let prefix = text("the prefix", &format!("fuelrail/{}", ranks.restarts))?;
        // Where everybody is on this machine, gloo must not go by the host's name, which may not resolve. An interface wins over the address.
        let address = ["127.0.0.1", "localhost", "::1"].contains(&host.as_str()).then_some(c"127.0.0.1");
        let interface = ranks.interface.as_deref().map(|i| text("the interface", i)).transpose()?;
        let serve = *rank == 0 && !ranks.agent_keeps_store;
        let patience = timeout;
        let timeout = i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX);
        let mut handle = ptr::null_mut();
        // SAFETY: the texts live until the call returns, which copies them; `handle` is read after it.
        let failed = unsafe {
            fr_group_join(
                name.as_ptr(),
                at.as_ptr(),
                *port,
                serve,
                number(*rank),
                number(*world),
                prefix.as_ptr(),
                address.map_or(ptr::null(), |a| a.as_ptr()),
                interface.as_ref().map_or(ptr::null(), |i| i.as_ptr()),
                timeout,
                &raw mut handle,
            )
        };
        check(&format!("rank {rank} of {world} cannot join the others at {host}:{port}"), failed).map_err(|error| {
            error.with_hint("check that all ranks were started, with the same MASTER_ADDR, MASTER_PORT and WORLD_SIZE, and can reach it")
        })?;
        let device = (backend == Backend::Nccl).then_some(device);
        Ok(Some(Arc::new(Group { handle, rank: *rank, world: *world, device, patience })))
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many ranks there are.
    pub fn world(&self) -> usize {
        self.world
    }

    /// Longest wait for the others, in every collective.
    pub(crate) fn patience(&self) -> Duration {
        self.patience
    }

    pub(super) fn handle(&self) -> *mut c_void {
        self.handle
    }

    fn lost(&self, doing: &str, failed: *mut c_char) -> Result<()> {
        let checked = check(&format!("rank {} of {}, {doing}", self.rank, self.world), failed);
        checked.map_err(|error| error.with_hint(LOST))
    }

    /// Sums `tensor` over all ranks, in place.
    pub(crate) fn all_reduce(&self, tensor: &mut Tensor) -> Result<()> {
        self.there(tensor, |tensor| {
            // SAFETY: the tensor is borrowed until the call returns, which waits for the collective.
            self.lost("all-reduce", unsafe { fr_all_reduce(self.handle, tensor.as_mut_ptr().cast()) })
        })
    }

    /// Runs `act` on the tensor, copied to the backend's device and back where needed.
    fn there(&self, tensor: &mut Tensor, act: impl FnOnce(&mut Tensor) -> Result<()>) -> Result<()> {
        match self.device {
            Some(device) if tensor.device() != device => {
                let mut moved = tensor.to_device(device);
                act(&mut moved)?;
                no_grad(|| tensor.copy_(&moved));
                Ok(())
            }
            _ => act(tensor),
        }
    }

    /// Every rank gets the tensor of `root`.
    pub(crate) fn broadcast(&self, tensor: &mut Tensor, root: usize) -> Result<()> {
        self.there(tensor, |tensor| {
            // SAFETY: as for `all_reduce`.
            self.lost("broadcast", unsafe { fr_broadcast(self.handle, tensor.as_mut_ptr().cast(), number(root)) })
        })
    }

    /// Every rank gets the tensors of all, one after another along a new first dimension.
    pub(crate) fn all_gather(&self, tensor: &Tensor) -> Result<Tensor> {
        let mut own =
            self.device.map_or_else(|| tensor.shallow_clone(), |device| tensor.to_device(device)).contiguous();
        let sizes: Vec<i64> = std::iter::once(self.world as i64).chain(own.size()).collect();
        let mut all = Tensor::zeros(&sizes, (own.kind(), own.device()));
        // SAFETY: as for `all_reduce`, for both.
        let failed = unsafe { fr_all_gather(self.handle, own.as_mut_ptr().cast(), all.as_mut_ptr().cast()) };
        self.lost("all-gather", failed)?;
        Ok(all.to_device(tensor.device()))
    }

    /// Waits until every rank is here.
    pub(crate) fn barrier(&self) -> Result<()> {
        // SAFETY: the group lives as long as `self`.
        self.lost("barrier", unsafe { fr_barrier(self.handle) })
    }

    /// Whether several threads may send and receive at a time, between tensors in the host's memory.
    pub(crate) fn must_send_from_threads(&self) -> Result<()> {
        match self.device {
            None => Ok(()),
            Some(_) => Err(over_nccl()),
        }
    }

    pub(crate) fn send(&self, tensor: &mut Tensor, to: usize, tag: u16) -> Result<()> {
        // SAFETY: the tensor is borrowed until the call returns, which waits until it has been sent.
        let failed = unsafe { fr_send(self.handle, tensor.as_mut_ptr().cast(), number(to), c_int::from(tag)) };
        self.lost(&format!("sending to rank {to}"), failed)
    }

    /// Receives a tensor of rank `from` with this tag, in place.
    pub(crate) fn receive(&self, tensor: &mut Tensor, from: usize, tag: u16) -> Result<()> {
        // SAFETY: the tensor is borrowed until the call returns, which waits until it has come.
        let failed = unsafe { fr_receive(self.handle, tensor.as_mut_ptr().cast(), number(from), c_int::from(tag)) };
        self.lost(&format!("receiving from rank {from}"), failed)
    }

    /// Every rank gets the bytes of `root`; the others' are ignored.
    pub(crate) fn broadcast_bytes(&self, bytes: Vec<u8>, root: usize) -> Result<Vec<u8>> {
        let mut length = Tensor::from_slice(&[bytes.len() as i64]);
        self.broadcast(&mut length, root)?;
        let length = length.int64_value(&[0]);
        let own = if self.rank() == root { bytes } else { vec![0; usize::try_from(length).unwrap_or(0)] };
        let mut tensor = tensor_of_bytes(own, &[length], Element::Uint8)?;
        if length > 0 {
            self.broadcast(&mut tensor, root)?;
        }
        bytes_of(&tensor)
    }

    /// The bytes of every rank, in order.
    pub(crate) fn gather_bytes(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        let lengths = self.all_gather(&Tensor::from_slice(&[bytes.len() as i64]))?;
        let lengths: Vec<usize> = (0..self.world()).map(|r| lengths.int64_value(&[r as i64, 0]) as usize).collect();
        let longest = lengths.iter().copied().max().unwrap_or(0).max(1);
        let mut padded = bytes.to_vec();
        padded.resize(longest, 0);
        let all = self.all_gather(&tensor_of_bytes(padded, &[longest as i64], Element::Uint8)?)?;
        lengths
            .iter()
            .enumerate()
            .map(|(rank, &len)| bytes_of(&all.get(rank as i64).narrow(0, 0, len as i64)))
            .collect()
    }

    /// Checks that all ranks say the same of something.
    ///
    /// # Errors
    /// `Usage` where they differ, with what two ranks say; as [`Group::gather_losses`].
    pub fn agree(&self, what: &str, own: &str) -> Result<()> {
        let all = self.gather_bytes(own.as_bytes())?;
        let Some(other) = all.iter().position(|said| *said != all[0]) else { return Ok(()) };
        let [first, second] = [&all[0], &all[other]].map(|said| String::from_utf8_lossy(said).into_owned());
        let cause = format!("ranks differ in {what}: rank 0 has {first}, rank {other} has {second}");
        Err(Error::new(Kind::Usage, cause).with_hint("start again, with the same options and data on all ranks"))
    }

    /// The losses of every rank's samples by id, rank by rank: the same list on every rank.
    ///
    /// # Errors
    /// `Environment` when another rank died, or did not come in time; `Protocol` when it sent something else.
    pub fn gather_losses(&self, own: &[(SampleId, f32)]) -> Result<Vec<(SampleId, f32)>> {
        let bytes: Vec<u8> =
            own.iter().flat_map(|(id, loss)| [&id.0.to_le_bytes()[..], &loss.to_le_bytes()].concat()).collect();
        let all = self.gather_bytes(&bytes)?.concat();
        let (pairs, rest) = all.as_chunks::<12>();
        if !rest.is_empty() {
            return Err(Error::new(Kind::Protocol, "a rank sent losses that are no pairs of id and loss"));
        }
        Ok(pairs
            .iter()
            .map(|[a, b, c, d, e, f, g, h, loss @ ..]| {
                (SampleId(u64::from_le_bytes([*a, *b, *c, *d, *e, *f, *g, *h])), f32::from_le_bytes(*loss))
            })
            .collect())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // SAFETY: made by `fr_group_join`, freed once. Works in flight hold the group by their own pointers.
        unsafe { fr_group_free(self.handle) }
    }
}

unsafe extern "C" {
    fn fr_reducer_new(
        group: *mut c_void,
        parameters: *const *mut c_void,
        count: usize,
        bucket_bytes: usize,
        tail_length: usize,
        out: *mut *mut c_void,
    ) -> *mut c_char;
    fn fr_reducer_free(reducer: *mut c_void);
    fn fr_reducer_buckets(reducer: *const c_void) -> usize;
    fn fr_reducer_flat(reducer: *mut c_void, gradients: bool, out: *mut *mut c_void) -> *mut c_char;
    fn fr_reducer_begin(reducer: *mut c_void) -> *mut c_char;
    fn fr_reducer_arm(reducer: *mut c_void, numbers: *const c_void) -> *mut c_char;
    fn fr_reducer_finish(reducer: *mut c_void, waited_us: *mut u64) -> *mut c_char;
    fn fr_reducer_tail(reducer: *mut c_void, out: *mut *mut c_void) -> *mut c_char;
}

/// Sums gradients over the ranks of a group while the backward pass runs. The algorithm is described in `shim/reducer.cpp`.
#[derive(Debug)]
pub struct Reducer {
    handle: *mut c_void,
    /// Outlives the handle, which points to it.
    _group: Option<Arc<Group>>,
}

// SAFETY: the handle's state is guarded by its own lock against torch's backward threads; our calls come one at a time, through `&mut`.
unsafe impl Send for Reducer {}

impl Reducer {
    /// For these parameters, in the order in which the forward pass uses them. Without a group there is one rank and nothing to sum.
    /// `tail_length`: how many numbers of the caller's travel with the last bucket.
    ///
    /// # Errors
    /// `Environment` when there are no parameters, or they are of several kinds or on several devices.
    pub fn new(
        group: Option<Arc<Group>>,
        parameters: &mut [Tensor],
        bucket_bytes: usize,
        tail_length: usize,
    ) -> Result<Reducer> {
        let pointers: Vec<*mut c_void> = parameters.iter_mut().map(|p| p.as_mut_ptr().cast()).collect();
        let of = group.as_ref().map_or(ptr::null_mut(), |group| group.handle());
        let mut handle = ptr::null_mut();
        // SAFETY: the shim takes references of its own to the parameters; the group is kept by the Arc until the handle is freed.
        let failed = unsafe {
            fr_reducer_new(of, pointers.as_ptr(), pointers.len(), bucket_bytes, tail_length, &raw mut handle)
        };
        check("preparing the parameters for training", failed)?;
        Ok(Reducer { handle, _group: group })
    }

    /// Number of buckets.
    pub fn buckets(&self) -> usize {
        // SAFETY: reads one number of a live handle.
        unsafe { fr_reducer_buckets(self.handle) }
    }

    fn flat(&self, gradients: bool) -> Result<Tensor> {
        let mut made = ptr::null_mut();
        // SAFETY: writes one pointer to an owned tensor, which tch frees; its storage is counted by torch.
        unsafe {
            check("taking the flat tensors", fr_reducer_flat(self.handle, gradients, &raw mut made))?;
            Ok(Tensor::from_ptr(made.cast()))
        }
    }

    /// All parameters in one tensor, of which each is a view: writing it writes the model.
    ///
    /// # Errors
    /// `Environment` for what torch says.
    pub fn flat_parameters(&self) -> Result<Tensor> {
        self.flat(false)
    }

    /// All gradients in one tensor, laid out alike.
    ///
    /// # Errors
    /// `Environment` for what torch says.
    pub fn flat_gradients(&self) -> Result<Tensor> {
        self.flat(true)
    }

    /// Begins a step: gradients become zero.
    ///
    /// # Errors
    /// `Environment` for what torch says.
    pub fn begin(&mut self) -> Result<()> {
        // SAFETY: a live handle, borrowed alone.
        check("clearing the gradients", unsafe { fr_reducer_begin(self.handle) })
    }

    /// Announces the step's last backward pass, and the numbers that travel with its gradients, best on their device: complete buckets are
    /// sent while the pass runs, the last one, too.
    ///
    /// # Errors
    /// `Environment` for what torch says, such as of a `tail` that has not the length given at the start.
    pub fn arm(&mut self, tail: &Tensor) -> Result<()> {
        // SAFETY: a live handle, borrowed alone; the tensor is read by what the call puts on its device's stream, which torch keeps alive for it.
        check("starting to sum gradients", unsafe { fr_reducer_arm(self.handle, tail.as_ptr().cast()) })
    }

    /// Ends a step: afterwards every parameter's gradient and [`tail`](Reducer::tail) are sums over all ranks; over NCCL, for what torch's
    /// current stream does from now on. Returns the time this took, which is what the backward pass did not hide.
    ///
    /// # Errors
    /// `Environment` when another rank died or did not come in time.
    pub fn finish(&mut self) -> Result<Duration> {
        let mut waited = 0;
        // SAFETY: a live handle, borrowed alone.
        let failed = unsafe { fr_reducer_finish(self.handle, &raw mut waited) };
        check("summing gradients over the ranks", failed).map_err(|error| error.with_hint(LOST))?;
        Ok(Duration::from_micros(waited))
    }

    /// The numbers that the step was armed with, summed over the ranks, on the gradients' device. The next step overwrites them.
    ///
    /// # Errors
    /// `Environment` for what torch says.
    pub fn tail(&self) -> Result<Tensor> {
        let mut made = ptr::null_mut();
        // SAFETY: writes one pointer to an owned tensor, which tch frees; its storage is counted by torch.
        unsafe {
            check("taking a step's numbers", fr_reducer_tail(self.handle, &raw mut made))?;
            Ok(Tensor::from_ptr(made.cast()))
        }
    }
}

impl Drop for Reducer {
    fn drop(&mut self) {
        // SAFETY: made by `fr_reducer_new`, freed once; hooks that a graph still holds find its flag expired and do nothing.
        unsafe { fr_reducer_free(self.handle) }
    }
}
