//! Local sockets, and who is spoken to.

use crate::skip::skip_or_fail;
use fuelrail_io::{LocalListener, LocalSocket, OwnDirectory, Received};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::Uid;
use rustix::thread::set_thread_res_uid;
use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::PermissionsExt;
use std::thread;

/// Runs `run` as another user, on a thread of its own. False where this one may not do that.
fn as_other(run: impl FnOnce() + Send) -> bool {
    thread::scope(|scope| {
        let user = Uid::from_raw(54_321);
        let other = scope.spawn(move || set_thread_res_uid(user, user, user).map(|()| run()));
        match other.join().unwrap() {
            Ok(()) => true,
            Err(error) => {
                skip_or_fail("root", error);
                false
            }
        }
    })
}

/// The directory's mode keeps other users out; if somebody has opened it up, connections from other users' processes are closed.
#[test]
fn processes_of_other_users_are_not_spoken_to() {
    let dir = tempfile::tempdir().unwrap();
    set_permissions(dir.path(), Permissions::from_mode(0o777)).unwrap();
    let own = OwnDirectory::open(dir.path()).unwrap();
    let path = own.path().join("s");
    let listener = LocalListener::bind(own, "s").unwrap();
    let reach = || {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        connect(&socket, &SocketAddrUnix::new(&path).unwrap()).map(|()| socket)
    };
    let shut_out = || assert_eq!(reach().unwrap_err(), rustix::io::Errno::ACCESS);
    if !as_other(shut_out) {
        return;
    }
    for (path, mode) in [(path.parent().unwrap(), 0o711), (&path, 0o777)] {
        set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }
    let mut theirs = None;
    assert!(as_other(|| theirs = Some(reach().unwrap())));
    assert!(listener.accept().unwrap().is_none());
    assert_eq!(rustix::io::read(theirs.unwrap(), &mut [0_u8; 8]), Ok(0), "it is closed without a word");
    set_permissions(path.parent().unwrap(), Permissions::from_mode(0o700)).unwrap();
    let ours = LocalSocket::connect(&OwnDirectory::open(dir.path()).unwrap(), "s").unwrap().unwrap();
    let here = listener.accept().unwrap().unwrap();
    assert!(ours.send(b"x", None).unwrap() && matches!(here.receive(&mut [0; 8]).unwrap(), Received::Bytes(1, None)));
}
