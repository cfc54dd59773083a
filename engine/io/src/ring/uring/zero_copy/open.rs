//! Opening a ring that receives without a copy by the kernel: a ring with completions of mixed sizes, the memory, the card's
//! queue; and what to do where one of them is refused.

use core::mem;
use std::ffi::CString;
use std::io::Error as IoError;
use std::os::fd::AsRawFd;

use fuelrail_base::ByteSize;
use io_uring::types::{
    IORING_MEM_REGION_TYPE_USER, io_uring_region_desc, io_uring_zcrx_area_reg, io_uring_zcrx_ifq_reg,
};
use io_uring::{IoUring, Parameters};

use super::area::{Area, Offsets};
use super::queue::CardQueue;
use crate::arena::{Mapping, anonymous};

/// Bytes of the area: what a card at 100 Gbit/s brings in 5 ms.
pub(super) const AREA_BYTES: usize = 64 << 20;
const PAGE_BYTES: usize = 4096;
/// Pieces that can be on their way back to the kernel: one per page of the area, more where a page holds many packets.
const REFILL_ENTRIES: u32 = 2 * (AREA_BYTES / PAGE_BYTES) as u32;
/// The refill ring: its head and tail, which have a page, and entries of 16 bytes.
const REFILL_BYTES: usize = PAGE_BYTES + REFILL_ENTRIES as usize * 16;

const _: () = assert!(REFILL_ENTRIES.is_power_of_two() && REFILL_ENTRIES <= 32_768, "the kernel's limit");
const _: () = assert!(REFILL_BYTES.is_multiple_of(PAGE_BYTES) && AREA_BYTES <= u32::MAX as usize);
const _: () = assert!(mem::size_of::<io_uring_zcrx_ifq_reg>() == 96, "the kernel's layout");
const _: () = assert!(mem::size_of::<io_uring_zcrx_area_reg>() == 48, "the kernel's layout");
const _: () = assert!(mem::size_of::<io_uring_region_desc>() == 64, "the kernel's layout");

/// Memory a ring with zero-copy receive takes besides the arena, bytes.
pub const ZERO_COPY_BYTES: u64 = (REFILL_BYTES + AREA_BYTES) as u64;

/// The request to register a card's queue, which the crate does not name.
pub(crate) const REGISTER_ZCRX_IFQ: libc::c_uint = 32;

/// The kernel's `io_uring_params`.
#[repr(C)]
#[derive(Default)]
struct Params {
    sq_entries: u32,
    cq_entries: u32,
    flags: u32,
    sq_thread: [u32; 2],
    features: u32,
    wq_fd: u32,
    reserved: [u32; 3],
    /// Where the kernel puts the two queues.
    queues: [u64; 10],
}

/// A ring in deferred mode whose completions have 16 bytes, and 32 where a request has that much to say.
///
/// # Errors
/// `EINVAL` before kernel 6.18.
pub(crate) fn mixed_ring(entries: u32, completions: u32) -> std::io::Result<IoUring> {
    const CQSIZE: u32 = 1 << 3;
    const CLAMP: u32 = 1 << 4;
    const SUBMIT_ALL: u32 = 1 << 7;
    const TASKRUN_FLAG: u32 = 1 << 9;
    const SINGLE_ISSUER: u32 = 1 << 12;
    const DEFER_TASKRUN: u32 = 1 << 13;
    const CQE_MIXED: u32 = 1 << 18;
    let flags = CQSIZE | CLAMP | SUBMIT_ALL | TASKRUN_FLAG | SINGLE_ISSUER | DEFER_TASKRUN | CQE_MIXED;
    let mut params = Params { flags, cq_entries: completions, ..Params::default() };
    // SAFETY: the kernel reads and writes `params`, which has its layout and lives until after the call.
    let rc = unsafe { libc::syscall(libc::SYS_io_uring_setup, entries, &raw mut params) };
    if rc < 0 {
        return Err(IoError::last_os_error());
    }
    // SAFETY: `Parameters` is `io_uring_params` by another name, as is `Params`; the kernel has just filled it in.
    let params = unsafe { mem::transmute::<Params, Parameters>(params) };
    // SAFETY: the descriptor was just returned by the kernel for a ring of these parameters, and nobody else owns it.
    unsafe { IoUring::from_fd(rc as i32, params) }
}

/// Gives the card's queue to the ring. The number is the one that requests name.
///
/// # Errors
/// Why not, and what to do.
pub(super) fn register(ring: &IoUring, queue: &CardQueue) -> Result<(Area, u32), String> {
    let interface = CString::new(queue.interface.as_str()).unwrap_or_default();
    // SAFETY: the kernel's name look-up reads the string, which lives until after the call.
    let index = unsafe { libc::if_nametoindex(interface.as_ptr()) };
    if index == 0 {
        return Err(refusal(queue, libc::ENODEV));
    }
    let mapping = memory(queue)?;
    let base = mapping.range().0 as u64;
    let mut region = io_uring_region_desc {
        user_addr: base,
        size: REFILL_BYTES as u64,
        flags: IORING_MEM_REGION_TYPE_USER,
        ..Default::default()
    };
    let mut area =
        io_uring_zcrx_area_reg { addr: base + REFILL_BYTES as u64, len: AREA_BYTES as u64, ..Default::default() };
    let mut ask = io_uring_zcrx_ifq_reg {
        if_idx: index,
        if_rxq: queue.queue,
        rq_entries: REFILL_ENTRIES,
        area_ptr: (&raw mut area) as u64,
        region_ptr: (&raw mut region) as u64,
        ..Default::default()
    };
    // Not by the crate's call, which takes what the kernel writes to as shared.
    // SAFETY: the kernel reads and writes `ask`, `area` and `region`, which live until after the call. It pins the pages of
    // `mapping` on its own account until the ring is closed, so that an early end of the mapping cannot hand them to others.
    let rc =
        unsafe { libc::syscall(libc::SYS_io_uring_register, ring.as_raw_fd(), REGISTER_ZCRX_IFQ, &raw mut ask, 1) };
    if rc < 0 {
        return Err(refusal(queue, IoError::last_os_error().raw_os_error().unwrap_or(libc::EIO)));
    }
    let offsets = Offsets {
        head: ask.offsets.head as usize,
        tail: ask.offsets.tail as usize,
        entries: ask.offsets.rqes as usize,
    };
    Ok((Area::new(mapping, REFILL_BYTES, offsets, ask.rq_entries, area.rq_area_token), ask.zcrx_id))
}

/// Room for the refill ring and the area.
pub(super) fn memory(queue: &impl core::fmt::Display) -> Result<Mapping, String> {
    anonymous(REFILL_BYTES + AREA_BYTES, 0)
        .ok_or_else(|| format!("zero-copy receive on {queue}: mapping {} was refused", ByteSize(ZERO_COPY_BYTES)))
}

/// An area over memory that no card knows: its refill ring is read by nobody.
pub(super) fn unregistered(mapping: Mapping) -> Area {
    let offsets = Offsets { head: 0, tail: 4, entries: 64 };
    Area::new(mapping, REFILL_BYTES, offsets, REFILL_ENTRIES, 0)
}

/// Why a ring with mixed completions was refused.
pub(super) fn ring_refusal(queue: &CardQueue, error: &IoError) -> String {
    let cure = "use kernel 6.18 or later, which has completions of mixed sizes";
    format!("zero-copy receive on {queue}: {error}; {cure}. {GOES_ON}")
}

const GOES_ON: &str = "Ordinary receives go on";

/// What registering the queue failing with `errno` means.
pub(super) fn refusal(queue: &CardQueue, errno: i32) -> String {
    let CardQueue { interface, queue: number } = queue;
    let (cause, cure) = match errno {
        libc::ENODEV => (
            format!("there is no interface {interface} here"),
            "`ip link` lists them; in a container, host networking shows the cards".to_owned(),
        ),
        libc::EPERM => (
            "this process may not take a card's queue".to_owned(),
            "run with CAP_NET_ADMIN (docker run --cap-add NET_ADMIN)".to_owned(),
        ),
        libc::EOPNOTSUPP => (
            format!("the driver of {interface} hands no queue to io_uring, or the kernel was built without it"),
            "it needs a card that splits headers from payload (`fuelrail doctor` names drivers) and \
             CONFIG_IO_URING_ZCRX"
                .to_owned(),
        ),
        libc::ERANGE => {
            (format!("{interface} has no receive queue {number}"), format!("ethtool -l {interface} tells how many"))
        }
        libc::EEXIST | libc::EBUSY => (
            format!("queue {number} of {interface} is somebody else's, or an XDP program is on the card"),
            "take another queue, or try again when the other has ended".to_owned(),
        ),
        libc::EINVAL => (
            format!("{interface} does not split headers from payload, or only from a threshold on"),
            format!("ethtool -G {interface} tcp-data-split on hds-thresh 0"),
        ),
        libc::ENOMEM => (
            format!("{} of memory cannot be locked", ByteSize(ZERO_COPY_BYTES)),
            "raise the locked-memory limit (ulimit -l, LimitMEMLOCK=, docker --ulimit memlock=-1)".to_owned(),
        ),
        _ => (IoError::from_raw_os_error(errno).to_string(), "engine/docs/CONTAINERS.md says what it needs".to_owned()),
    };
    format!("zero-copy receive on {queue}: {cause}; {cure}. {GOES_ON}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_name_cause_and_cure() {
        let queue: CardQueue = "eth0:3".parse().unwrap();
        for (errno, cause, cure) in [
            (libc::ENODEV, "no interface eth0", "ip link"),
            (libc::EPERM, "may not take", "CAP_NET_ADMIN"),
            (libc::EOPNOTSUPP, "driver of eth0", "doctor"),
            (libc::ERANGE, "no receive queue 3", "ethtool -l eth0"),
            (libc::EEXIST, "somebody else's", "another queue"),
            (libc::EINVAL, "does not split", "ethtool -G eth0 tcp-data-split on hds-thresh 0"),
            (libc::ENOMEM, "cannot be locked", "ulimit -l"),
            (libc::EIO, "os error 5", "CONTAINERS.md"),
        ] {
            let line = refusal(&queue, errno);
            assert!(line.starts_with("zero-copy receive on eth0:3: ") && line.ends_with(GOES_ON), "{line}");
            assert!(line.contains(cause) && line.contains(cure), "{errno}: {line}");
        }
        let old = ring_refusal(&queue, &IoError::from_raw_os_error(libc::EINVAL));
        assert!(old.contains("kernel 6.18") && old.ends_with(GOES_ON), "{old}");
    }
}
