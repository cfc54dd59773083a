//! A process group of libtorch's c10d: how ranks meet, what they do together.

use super::told;
use fuelrail_base::{Error, Kind, Result};
use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr;
use std::str::FromStr;
use std::time::Duration;
use tch::{Device, Tensor, no_grad};

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
    fn fr_all_reduce(group: *mut c_void, tensor: *mut c_void, operation: c_int) -> *mut c_char;
    fn fr_broadcast(group: *mut c_void, tensor: *mut c_void, root: c_int) -> *mut c_char;
    fn fr_all_gather(group: *mut c_void, tensor: *mut c_void, out: *mut c_void) -> *mut c_char;
    fn fr_barrier(group: *mut c_void) -> *mut c_char;
    fn fr_send(group: *mut c_void, tensor: *mut c_void, to: c_int, tag: c_int) -> *mut c_char;
    fn fr_receive(group: *mut c_void, tensor: *mut c_void, from: c_int, tag: c_int) -> *mut c_char;
}

/// Who carries the collectives.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Backend {
    /// Over TCP, between tensors in the host's memory.
    #[default]
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

impl FromStr for Backend {
    type Err = Error;

    fn from_str(text: &str) -> Result<Backend> {
        match text {
            "gloo" => Ok(Backend::Gloo),
            "nccl" => Ok(Backend::Nccl),
            _ => Err(Error::new(Kind::Usage, format!("unknown backend '{text}'")).cure("use gloo or nccl")),
        }
    }
}

/// What an all-reduce does with the ranks' numbers; the values are torch's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Their sum.
    Sum = 0,
    /// The least.
    Min = 3,
    /// The greatest.
    Max = 4,
}

/// Where and how ranks meet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Meeting {
    /// Host of the store.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Whether this process keeps the store.
    pub serve: bool,
    /// This rank.
    pub rank: usize,
    /// How many there are.
    pub world: usize,
    /// Keeps this start apart from earlier ones at the same store.
    pub prefix: String,
    /// Our own address for gloo; without it and without an interface gloo goes by the host's name.
    pub address: Option<String>,
    /// The network interface gloo goes over; wins over the address.
    pub interface: Option<String>,
    /// The device NCCL works on; gloo's collectives are between tensors in the host's memory, or on any device.
    pub device: Device,
    /// Longest wait for the others, at the start and in every collective.
    pub timeout: Duration,
}

/// The ranks that train together.
#[derive(Debug)]
pub struct Group {
    handle: *mut c_void,
    rank: usize,
    world: usize,
    /// Where NCCL's tensors must be.
    device: Option<Device>,
}

// SAFETY: the handle is two intrusive pointers to libtorch's store and process group, both made for use from several threads.
unsafe impl Send for Group {}
// SAFETY: as above: libtorch guards its queues with locks of its own; what must match between ranks is the order of collectives, which
// is the caller's and no matter of memory.
unsafe impl Sync for Group {}

fn text(what: &str, value: &str) -> Result<CString> {
    CString::new(value).map_err(|_| Error::new(Kind::Usage, format!("{what} has a zero byte")))
}

fn number(rank: usize) -> c_int {
    c_int::try_from(rank).unwrap_or(c_int::MAX)
}

impl Group {
    /// Meets the other ranks; returns when all are there.
    ///
    /// # Errors
    /// `Environment` when they are not all there in time, or the backend is missing.
    pub fn join(backend: Backend, meeting: &Meeting) -> Result<Group> {
        let Meeting { host, port, serve, rank, world, prefix, address, interface, device, timeout } = meeting;
        let (name, at) = (text("the backend", backend.name())?, text("MASTER_ADDR", host)?);
        let prefix = text("the prefix", prefix)?;
        let address = address.as_deref().map(|a| text("the address", a)).transpose()?;
        let interface = interface.as_deref().map(|i| text("the interface", i)).transpose()?;
        let timeout = i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX);
        let mut handle = ptr::null_mut();
        // SAFETY: the texts live until the call returns, which copies them; `handle` is read after it.
        let failed = unsafe {
            fr_group_join(
                name.as_ptr(),
                at.as_ptr(),
                *port,
                *serve,
                number(*rank),
                number(*world),
                prefix.as_ptr(),
                address.as_ref().map_or(ptr::null(), |a| a.as_ptr()),
                interface.as_ref().map_or(ptr::null(), |i| i.as_ptr()),
                timeout,
                &raw mut handle,
            )
        };
        told(&format!("rank {rank} of {world} cannot join the others at {host}:{port}"), failed).map_err(|error| {
            error.cure("check that all ranks were started, with the same MASTER_ADDR, MASTER_PORT and WORLD_SIZE, and can reach it")
        })?;
        let device = (backend == Backend::Nccl).then_some(*device);
        Ok(Group { handle, rank: *rank, world: *world, device })
    }

    /// This rank.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many ranks there are.
    #[must_use]
    pub fn world(&self) -> usize {
        self.world
    }

    pub(super) fn handle(&self) -> *mut c_void {
        self.handle
    }

    fn lost(&self, doing: &str, failed: *mut c_char) -> Result<()> {
        let told = told(&format!("rank {} of {}, {doing}", self.rank, self.world), failed);
        told.map_err(|error| error.cure("another rank has died, hangs or cannot be reached: look at its output; start all again to go on from the last checkpoint"))
    }

    /// Reduces `tensor` over all ranks, in place.
    ///
    /// # Errors
    /// `Environment` when another rank died, or did not come in time.
    pub fn all_reduce(&self, tensor: &mut Tensor, operation: Operation) -> Result<()> {
        self.there(tensor, |tensor| self.all_reduce_there(tensor, operation))
    }

    /// Does `act` with the tensor where the backend can reach it, and brings the result back.
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

    fn all_reduce_there(&self, tensor: &mut Tensor, operation: Operation) -> Result<()> {
        // SAFETY: the tensor is borrowed until the call returns, which waits for the collective.
        let failed = unsafe { fr_all_reduce(self.handle, tensor.as_mut_ptr().cast(), operation as c_int) };
        self.lost("all-reduce", failed)
    }

    /// Every rank gets the tensor of `root`.
    ///
    /// # Errors
    /// As [`all_reduce`](Group::all_reduce).
    pub fn broadcast(&self, tensor: &mut Tensor, root: usize) -> Result<()> {
        self.there(tensor, |tensor| self.broadcast_there(tensor, root))
    }

    fn broadcast_there(&self, tensor: &mut Tensor, root: usize) -> Result<()> {
        // SAFETY: as for `all_reduce`.
        let failed = unsafe { fr_broadcast(self.handle, tensor.as_mut_ptr().cast(), number(root)) };
        self.lost("broadcast", failed)
    }

    /// Every rank gets the tensors of all, one behind the other along a new first dimension.
    ///
    /// # Errors
    /// As [`all_reduce`](Group::all_reduce).
    pub fn all_gather(&self, tensor: &Tensor) -> Result<Tensor> {
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
    ///
    /// # Errors
    /// As [`all_reduce`](Group::all_reduce).
    pub fn barrier(&self) -> Result<()> {
        // SAFETY: the group lives as long as `self`.
        self.lost("barrier", unsafe { fr_barrier(self.handle) })
    }

    /// Whether several threads may send and receive at a time, between tensors in the host's memory.
    ///
    /// # Errors
    /// `Usage` when the backend cannot.
    pub fn must_send_from_threads(&self) -> Result<()> {
        match self.device {
            None => Ok(()),
            Some(_) => Err(Error::new(Kind::Usage, "asynchronous training over NCCL")
                .cure("add --backend gloo: gradients then travel through the host's memory")),
        }
    }

    /// Sends `tensor` to one rank.
    ///
    /// # Errors
    /// As [`all_reduce`](Group::all_reduce).
    pub fn send(&self, tensor: &mut Tensor, to: usize, tag: u16) -> Result<()> {
        // SAFETY: the tensor is borrowed until the call returns, which waits until it has been sent.
        let failed = unsafe { fr_send(self.handle, tensor.as_mut_ptr().cast(), number(to), c_int::from(tag)) };
        self.lost(&format!("sending to rank {to}"), failed)
    }

    /// Receives what rank `from` sends under this tag, in place.
    ///
    /// # Errors
    /// As [`all_reduce`](Group::all_reduce).
    pub fn receive(&self, tensor: &mut Tensor, from: usize, tag: u16) -> Result<()> {
        // SAFETY: the tensor is borrowed until the call returns, which waits until it has come.
        let failed = unsafe { fr_receive(self.handle, tensor.as_mut_ptr().cast(), number(from), c_int::from(tag)) };
        self.lost(&format!("receiving from rank {from}"), failed)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // SAFETY: made by `fr_group_join`, freed once. Works in flight hold the group by their own pointers.
        unsafe { fr_group_free(self.handle) }
    }
}
