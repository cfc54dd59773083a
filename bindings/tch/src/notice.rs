//! Notices of preemption: SIGTERM (Kubernetes, Slurm, people), Google's metadata server, EC2's spot notice.
//!
//! Owns one thread for signals, and one if a metadata service is to be asked. A notice is only recorded; the trainer checks it after every step.

use clap::ValueEnum;
use fuelrail::internal::ask_metadata;
use fuelrail_base::{Error, Kind, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};
use signal_hook::low_level::exit;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The metadata service to ask for preemption.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Service {
    /// Google Compute Engine: `instance/preempted` becomes `TRUE`, 30 seconds ahead.
    Gce,
    /// EC2: `spot/instance-action` appears, two minutes ahead. Asked with a session token (IMDSv2).
    Ec2,
}

/// The address of both services, on every instance.
pub const METADATA_ADDRESS: SocketAddr = fuelrail::internal::IMDS_ADDRESS;
/// How often they are asked, as EC2 recommends.
pub const ASK_EVERY: Duration = Duration::from_secs(5);
const PATIENCE: Duration = Duration::from_secs(2);
/// Signals so soon after the first are of the same request: a launcher hands on what the terminal has sent already.
const GRACE: Duration = Duration::from_secs(1);

impl Service {
    /// How long the machine stays after the notice, less the time until it is asked for again.
    #[must_use]
    pub fn lead(self) -> Duration {
        let lead_s = match self {
            Service::Gce => 30,
            Service::Ec2 => 120,
        };
        Duration::from_secs(lead_s) - ASK_EVERY
    }
}

/// Records whether a notice came.
#[derive(Debug)]
pub struct Notice {
    signalled: Arc<AtomicBool>,
    /// When the first was given.
    first: OnceLock<Instant>,
    /// How long the machine stays after one.
    lead: Option<Duration>,
    /// When it is given by itself, and why.
    due: Option<(Instant, String)>,
    reported: Arc<Mutex<Option<String>>>,
    signals: Option<(Handle, JoinHandle<()>)>,
    watcher: Option<(mpsc::Sender<()>, JoinHandle<()>)>,
}

impl Notice {
    /// Listens for SIGTERM and SIGINT, of which one that comes a second later ends the process, and asks `service` at its address every so often.
    ///
    /// # Errors
    /// `Environment` when a signal or thread is refused.
    pub fn listen(service: Option<(Service, SocketAddr, Duration)>) -> Result<Notice> {
        let refused = |e: std::io::Error| Error::from_io(Kind::Environment, "listening for preemption", e);
        let signalled = Arc::new(AtomicBool::new(false));
        let mut signals = Signals::new([SIGTERM, SIGINT]).map_err(refused)?;
        let (raised, heard) = (signals.handle(), Arc::clone(&signalled));
        let listener = std::thread::Builder::new().name("fuelrail-signal".into()).spawn(move || {
            let mut first = None::<Instant>;
            for signal in signals.forever() {
                heard.store(true, Ordering::Relaxed);
                if first.get_or_insert_with(Instant::now).elapsed() > GRACE {
                    exit(128 + signal);
                }
            }
        });
        let signals = Some((raised, listener.map_err(refused)?));
        let reported = Arc::new(Mutex::new(None));
        let watcher = service.map(|(service, address, every)| {
            let (stop, stopped) = mpsc::channel();
            let reported = Arc::clone(&reported);
            let thread = std::thread::Builder::new().name("fuelrail-notice".into());
            let thread = thread.spawn(move || {
                while stopped.recv_timeout(every) == Err(mpsc::RecvTimeoutError::Timeout) {
                    if let Some(what) = ask(service, address) {
                        *reported.lock().unwrap_or_else(PoisonError::into_inner) = Some(what);
                        return;
                    }
                }
            });
            thread.map(|thread| (stop, thread))
        });
        Ok(Notice {
            signalled,
            first: OnceLock::new(),
            lead: None,
            due: None,
            reported,
            signals,
            watcher: watcher.transpose().map_err(refused)?,
        })
    }

    /// Is also given at this time.
    #[must_use]
    pub fn also_at(mut self, when: Instant, why: impl Into<String>) -> Notice {
        self.due = Some((when, why.into()));
        self
    }

    /// The machine stays so long after a notice of a signal or service.
    #[must_use]
    pub fn leads(mut self, lead: Option<Duration>) -> Notice {
        self.lead = lead;
        self
    }

    /// How long the machine stays after the notice, where that is known.
    pub fn lead(&self) -> Option<Duration> {
        self.lead.filter(|_| self.due.as_ref().is_none_or(|(when, _)| Instant::now() < *when))
    }

    /// How long the machine still stays, where that is known: from when a notice was first seen.
    pub fn left(&self) -> Option<Duration> {
        let gone = self.first.get().map_or(Duration::ZERO, Instant::elapsed);
        self.lead().map(|lead| lead.saturating_sub(gone))
    }

    /// The notice, if one was given.
    pub fn given(&self) -> Option<String> {
        let what = self.what()?;
        self.first.get_or_init(Instant::now);
        Some(what)
    }

    fn what(&self) -> Option<String> {
        if self.signalled.load(Ordering::Relaxed) {
            return Some("a signal to terminate".into());
        }
        if let Some((_, why)) = self.due.as_ref().filter(|(when, _)| Instant::now() >= *when) {
            return Some(why.clone());
        }
        self.reported.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Notice {
    fn drop(&mut self) {
        if let Some((handle, thread)) = self.signals.take() {
            handle.close();
            let _ = thread.join();
        }
        if let Some((stop, thread)) = self.watcher.take() {
            drop(stop);
            let _ = thread.join();
        }
    }
}

/// Asks once. `None` when there is no notice or the service does not respond.
fn ask(service: Service, address: SocketAddr) -> Option<String> {
    let get = |path, header| ask_metadata(address, ("GET", path), header, PATIENCE).ok();
    match service {
        Service::Gce => {
            let (status, body) = get("/computeMetadata/v1/instance/preempted", ("metadata-flavor", "Google"))?;
            (status == 200 && body.trim() == "TRUE").then(|| "Google is about to preempt this instance".into())
        }
        Service::Ec2 => {
            let lifetime = ("x-aws-ec2-metadata-token-ttl-seconds", "60");
            let (status, token) = ask_metadata(address, ("PUT", "/latest/api/token"), lifetime, PATIENCE).ok()?;
            (status == 200).then_some(())?;
            let header = ("x-aws-ec2-metadata-token", token.trim());
            let (status, body) = get("/latest/meta-data/spot/instance-action", header)?;
            (status == 200).then(|| format!("EC2 is about to take this spot instance: {}", body.trim()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::sync::atomic::AtomicUsize;

    /// A service that answers each request by what `say` makes of it.
    fn service(say: impl Fn(&str) -> String + Send + 'static) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for socket in listener.incoming() {
                let mut socket = socket.unwrap();
                let mut asked = Vec::new();
                while !asked.ends_with(b"\r\n\r\n") {
                    let mut byte = [0];
                    if socket.read(&mut byte).unwrap_or(0) == 0 {
                        break;
                    }
                    asked.push(byte[0]);
                }
                let _ = socket.write_all(say(&String::from_utf8_lossy(&asked)).as_bytes());
            }
        });
        address
    }

    fn ok(body: &str) -> String {
        format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
    }

    fn wait_for(notice: &Notice) -> String {
        let begun = std::time::Instant::now();
        loop {
            if let Some(text) = notice.given() {
                return text;
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "no notice came");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn googles_word_is_heard_when_it_changes() {
        let asked = AtomicUsize::new(0);
        let address = service(move |request| {
            assert!(request.starts_with("GET /computeMetadata/v1/instance/preempted "), "{request}");
            assert!(request.contains("metadata-flavor: Google"), "{request}");
            ok(if asked.fetch_add(1, Ordering::Relaxed) < 2 { "FALSE" } else { "TRUE\n" })
        });
        let notice = Notice::listen(Some((Service::Gce, address, Duration::from_millis(10)))).unwrap();
        assert!(wait_for(&notice).contains("Google"));
    }

    #[test]
    fn amazons_spot_notice_is_asked_for_with_a_token() {
        let asked = AtomicUsize::new(0);
        let address = service(move |request| {
            if request.starts_with("PUT /latest/api/token ") {
                return ok("secret");
            }
            assert!(request.contains("x-aws-ec2-metadata-token: secret"), "{request}");
            if asked.fetch_add(1, Ordering::Relaxed) < 2 {
                return "HTTP/1.1 404 Not Found\r\n\r\n".into();
            }
            ok(r#"{"action":"terminate","time":"2026-11-22T03:00:00Z"}"#)
        });
        let notice = Notice::listen(Some((Service::Ec2, address, Duration::from_millis(10)))).unwrap();
        assert!(wait_for(&notice).contains("terminate"));
    }

    #[test]
    fn a_service_that_is_silent_or_talks_nonsense_is_no_notice() {
        for answer in ["", "220 mail\r\n", "HTTP/1.1 500 No\r\n\r\nTRUE", "HTTP/1.1 200 OK\r\n\r\nFALSE"] {
            let address = service(move |_| answer.into());
            assert_eq!(ask(Service::Gce, address), None, "{answer}");
        }
        assert_eq!(ask(Service::Ec2, "127.0.0.1:1".parse().unwrap()), None);
    }

    #[test]
    fn a_signal_is_remembered() {
        let notice = Notice::listen(None).unwrap();
        assert_eq!(notice.given(), None);
        signal_hook::low_level::raise(signal_hook::consts::SIGTERM).unwrap();
        assert!(wait_for(&notice).contains("signal"));
    }
}
