//! Connections between processes of one user on one machine: sockets in a directory that is this user's alone, which keep messages apart and
//! carry descriptors.
//!
//! Owns the socket's name while it listens, and a lock beside it that ends with the process: a name without a lock is a dead process's.
//! Neither side talks to a process of another user.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use fuelrail_base::{Error, Kind, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use crate::directory::OwnDirectory;
use crate::volume::try_lock;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// Listens for processes of the same user.
#[derive(Debug)]
pub struct LocalListener {
    socket: OwnedFd,
    directory: OwnDirectory,
    name: String,
    /// Locked until it is closed.
    _lock: File,
}

impl LocalListener {
    /// Listens under a name in the directory, in the place of a process that has died.
    ///
    /// # Errors
    /// `Usage` when another process listens under it; `File` for what the system refuses.
    pub fn bind(directory: OwnDirectory, name: &str) -> Result<LocalListener> {
        let locked = format!("{name}.lock");
        let (path, lock) = (directory.path().join(name), directory.open_or_make_file(&locked)?);
        if !try_lock(&lock, &directory.path().join(&locked))? {
            let cause = format!("another process listens at {}", path.display());
            return Err(Error::new(Kind::Usage, cause).with_hint("use that one, or another directory"));
        }
        let bound = || -> io::Result<OwnedFd> {
            match directory.remove(name) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let socket = socket()?;
            rustix::net::bind(&socket, &address(&directory, name)?)?;
            rustix::net::listen(&socket, BACKLOG)?;
            Ok(socket)
        };
        let socket = bound().map_err(|error| failed("listening at", &path, &error))?;
        Ok(LocalListener { socket, directory, name: name.to_owned(), _lock: lock })
    }

    /// The next process that has connected, if any. Those of other users are passed over.
    ///
    /// # Errors
    /// `Environment` for what the system refuses.
    pub fn accept(&self) -> Result<Option<LocalSocket>> {
        loop {
            return match rustix::net::accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) if !is_ours(&socket) => continue,
                Ok(socket) => Ok(Some(LocalSocket(Arc::new(socket)))),
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(Errno::AGAIN) => Ok(None),
                Err(errno) => {
                    let doing = "accepting a connection of another process";
                    Err(Error::from_errno(Kind::Environment, doing, errno.raw_os_error())
                        .with_hint("raise the limit of open files (ulimit -n)"))
                }
            };
        }
    }
}

impl Drop for LocalListener {
    fn drop(&mut self) {
        // Still locked: what is there is this one's. A name that stays is taken over by the next.
        let _ = self.directory.remove(&self.name);
    }
}

impl AsFd for LocalListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A connection to a process of the same user. It ends when all that hold it are gone.
#[derive(Debug)]
pub struct LocalSocket(Arc<OwnedFd>);

/// What [`LocalSocket::receive`] found.
#[derive(Debug)]
pub enum Received {
    /// So many bytes of one message, with a descriptor where it has one.
    Bytes(usize, Option<OwnedFd>),
    /// No message yet.
    Nothing,
    /// The other side has gone.
    Closed,
}

impl LocalSocket {
    /// Connects to the process that listens under a name in the directory. `None` when none does.
    ///
    /// # Errors
    /// `Denied` when it is a process of another user; `File` for what the system refuses.
    pub fn connect(directory: &OwnDirectory, name: &str) -> Result<Option<LocalSocket>> {
        let path = directory.path().join(name);
        let connected = || -> io::Result<OwnedFd> {
            let socket = socket()?;
            rustix::net::connect(&socket, &address(directory, name)?)?;
            Ok(socket)
        };
        match connected() {
            Ok(socket) if is_ours(&socket) => Ok(Some(LocalSocket(Arc::new(socket)))),
            Ok(_) => Err(Error::new(Kind::Denied, format!("{} is a process of another user", path.display()))
                .with_hint("name a directory of your own")),
            // Nothing there, a dead one, one too busy to accept, or something else than a socket.
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::NOENT | Errno::CONNREFUSED | Errno::AGAIN | Errno::PROTOTYPE | Errno::LOOP) => Ok(None),
                _ => Err(failed("connecting to", &path, &error)),
            },
        }
    }

    /// Sends one message, with a descriptor; never waits. False when there is no room for it yet.
    ///
    /// # Errors
    /// The system's, once the other side has gone.
    pub fn send(&self, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) -> io::Result<bool> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors: Vec<BorrowedFd<'_>> = descriptor.into_iter().collect();
        if !descriptors.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)), "there is space for one");
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match rustix::net::sendmsg(&*self.0, &[IoSlice::new(bytes)], &mut control, flags) {
            Ok(_) => Ok(true),
            Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Receives one message, if there is one; never waits.
    ///
    /// # Errors
    /// `InvalidData` for a message that is longer than `into`, or has more descriptors than one; `EMFILE` for one whose descriptor this
    /// process has no room for.
    pub fn receive(&self, into: &mut [u8]) -> io::Result<Received> {
        let mut ended = false;
        loop {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
            let message = match rustix::net::recvmsg(&*self.0, &mut [IoSliceMut::new(into)], &mut control, flags) {
                Err(Errno::AGAIN) => return Ok(Received::Nothing),
                Err(Errno::INTR) => continue,
                // The other side left messages of ours unread. What it sent before is there still.
                Err(Errno::CONNRESET) if !ended => {
                    ended = true;
                    continue;
                }
                Err(Errno::CONNRESET) => return Ok(Received::Closed),
                Err(errno) => return Err(errno.into()),
                Ok(message) => message,
            };
            let rights = control.drain().filter_map(|control| match control {
                RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
                _ => None,
            });
            let descriptor = rights.flatten().last();
            // There is space for one: the kernel leaves out the only one when no further file may be open.
            if message.flags.contains(ReturnFlags::CTRUNC) && descriptor.is_none() {
                return Err(Errno::MFILE.into());
            }
            if message.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "a message is longer than any may be"));
            }
            return Ok(if message.bytes == 0 { Received::Closed } else { Received::Bytes(message.bytes, descriptor) });
        }
    }

    /// The id of the process on the other side.
    pub fn peer(&self) -> i32 {
        rustix::net::sockopt::socket_peercred(&*self.0).map_or(0, |peer| peer.pid.as_raw_nonzero().get())
    }

    pub(crate) fn descriptor(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.0)
    }
}

impl AsFd for LocalSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Sleeps until one of these can be read, or written where that is said; at most `limit`.
pub fn wait_for<'f>(descriptors: impl IntoIterator<Item = (BorrowedFd<'f>, bool)>, limit: Duration) {
    let events = |writes| if writes { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
    let polled =
        descriptors.into_iter().map(|(descriptor, writes)| PollFd::from_borrowed_fd(descriptor, events(writes)));
    let mut polled: Vec<PollFd<'_>> = polled.collect();
    // An early return is a look more; the limit is far below what does not fit.
    let _ = poll(&mut polled, Timespec::try_from(limit).ok().as_ref());
}

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// By the directory's descriptor: a path may be longer than an address, and lead elsewhere by now.
fn address(directory: &OwnDirectory, name: &str) -> io::Result<SocketAddrUnix> {
    Ok(SocketAddrUnix::new(format!("/proc/self/fd/{}/{name}", directory.as_fd().as_raw_fd()))?)
}

fn is_ours(socket: &OwnedFd) -> bool {
    rustix::net::sockopt::socket_peercred(socket).is_ok_and(|peer| peer.uid == rustix::process::geteuid())
}

fn failed(doing: &str, path: &std::path::Path, error: &io::Error) -> Error {
    Error::from_io(Kind::File, format_args!("{doing} {}", path.display()), error)
        .with_hint("use a local directory that is yours")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Tree;
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    #[test]
    fn one_process_listens_and_the_name_of_a_dead_one_is_taken_over() {
        let tree = Tree::new(&[]);
        let own = || OwnDirectory::open(tree.root()).unwrap();
        assert!(LocalSocket::connect(&own(), "s").unwrap().is_none(), "nothing there");
        // A name without a lock.
        drop(std::os::unix::net::UnixListener::bind(own().path().join("s")).unwrap());
        assert!(LocalSocket::connect(&own(), "s").unwrap().is_none(), "a dead one");
        let listener = LocalListener::bind(own(), "s").unwrap();
        let error = LocalListener::bind(own(), "s").unwrap_err();
        assert!(error.kind() == Kind::Usage && error.to_string().contains("another process listens"), "{error}");
        assert!(listener.accept().unwrap().is_none());
        let ours = LocalSocket::connect(&own(), "s").unwrap().unwrap();
        let theirs = listener.accept().unwrap().unwrap();
        assert_eq!(theirs.peer(), std::process::id().cast_signed());
        drop(listener);
        assert!(!own().path().join("s").exists());
        assert!(ours.send(b"a", None).unwrap() && ours.send(b"bc", None).unwrap());
        let mut into = [0; 8];
        assert!(matches!(theirs.receive(&mut into).unwrap(), Received::Bytes(1, None)), "messages are kept apart");
        assert_eq!(theirs.receive(&mut into[..1]).unwrap_err().kind(), io::ErrorKind::InvalidData, "a cut one");
        assert!(matches!(theirs.receive(&mut into).unwrap(), Received::Nothing));
    }

    #[test]
    fn what_was_sent_before_the_end_is_received() {
        let tree = Tree::new(&[]);
        let listener = LocalListener::bind(OwnDirectory::open(tree.root()).unwrap(), "s").unwrap();
        let ours = LocalSocket::connect(&OwnDirectory::open(tree.root()).unwrap(), "s").unwrap().unwrap();
        let theirs = listener.accept().unwrap().unwrap();
        assert!(theirs.send(b"last", None).unwrap() && ours.send(b"unread", None).unwrap());
        drop(theirs);
        assert!(matches!(ours.receive(&mut [0; 8]).unwrap(), Received::Bytes(4, None)));
        assert!(matches!(ours.receive(&mut [0; 8]).unwrap(), Received::Closed));
        assert!(ours.send(b"x", None).is_err());
    }

    #[test]
    fn a_descriptor_beyond_the_limit_of_open_files_is_an_error_of_its_own() {
        let tree = Tree::new(&[]);
        let listener = LocalListener::bind(OwnDirectory::open(tree.root()).unwrap(), "s").unwrap();
        let ours = LocalSocket::connect(&OwnDirectory::open(tree.root()).unwrap(), "s").unwrap().unwrap();
        let theirs = listener.accept().unwrap().unwrap();
        let code = crate::conformance::in_fork(Duration::from_secs(60), || {
            let open = || File::open("/dev/null");
            let (sent, mut into) = (open().unwrap(), [0; 8]);
            let few = Rlimit { current: Some(512), ..getrlimit(Resource::Nofile) };
            setrlimit(Resource::Nofile, few).unwrap();
            let others: Vec<File> = core::iter::from_fn(|| open().ok()).collect();
            assert!(theirs.send(b"a", Some(sent.as_fd())).unwrap());
            let refused = ours.receive(&mut into).unwrap_err();
            drop(others);
            assert!(theirs.send(b"b", Some(sent.as_fd())).unwrap());
            let taken = matches!(ours.receive(&mut into).unwrap(), Received::Bytes(1, Some(_)));
            i32::from(refused.raw_os_error() != Some(libc::EMFILE) || !taken)
        });
        assert_eq!(code, Some(0));
    }
}
