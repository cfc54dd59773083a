//! The credential that the whole process signs with now, and each shard's view of it.
//!
//! Owns the cell that one thread fills and all shards read, and how far the bucket's clock is from this machine's. A shard
//! reads one version number per request; only when that has changed it takes the new credential, so no request waits while one
//! is fetched. Never fetches a credential, never decides when to.

use fuelrail_base::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use fuelrail_base::sync::{Mutex, MutexGuard};
use fuelrail_base::{Error, Kind, Result, WallTime};
use fuelrail_io::Waker;
use fuelrail_wire::sign::{Credential, Payload, Realm, Signer, Unsigned};
use std::sync::{Arc, PoisonError};

/// What authorises the requests of a process to one bucket. Prints no secret.
#[derive(Debug)]
pub struct Authority {
    realm: Realm,
    clock: fn() -> WallTime,
    /// Grows with every new credential, behind the lock and looked at before it is taken: so the lock makes it visible.
    version: AtomicU64,
    current: Mutex<Arc<Credential>>,
    /// The bucket's clock minus this machine's, seconds.
    skew_s: AtomicI64,
    /// A bucket has refused the credential as expired.
    refused: AtomicBool,
    /// Why the last renewal failed.
    trouble: Mutex<Option<String>>,
    /// Wakes the thread that renews it.
    waker: Waker,
}

/// Clocks that differ by less agree: responses take time, and dates are in whole seconds.
const SKEW_S_MIN: u64 = 60;

impl Authority {
    /// Signs with `credential` from now on, at the time that `clock` returns.
    pub fn new(realm: Realm, credential: Credential, clock: fn() -> WallTime) -> Authority {
        Authority {
            realm,
            clock,
            version: AtomicU64::new(1),
            current: Mutex::new(Arc::new(credential)),
            skew_s: AtomicI64::new(0),
            refused: AtomicBool::new(false),
            trouble: Mutex::new(None),
            waker: Waker::sleeper(),
        }
    }

    /// The region of signatures; empty where they have none.
    pub fn region(&self) -> &str {
        &self.realm.scope.region
    }

    /// The time, as the bucket has it.
    pub fn now(&self) -> WallTime {
        (self.clock)().shifted(self.skew_s.load(Ordering::Relaxed))
    }

    /// The credential in use.
    pub fn credential(&self) -> Arc<Credential> {
        Arc::clone(&locked(&self.current))
    }

    /// Grows with every new credential.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Relaxed)
    }

    /// Signs with `credential` from now on.
    pub fn set(&self, credential: Credential) {
        *locked(&self.current) = Arc::new(credential);
        *locked(&self.trouble) = None;
        self.refused.store(false, Ordering::Relaxed);
        self.version.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes why a renewal failed. The old credential stays in use; a refusal of it then carries `why`.
    pub fn note_trouble(&self, why: String) {
        *locked(&self.trouble) = Some(why);
    }

    /// Whether a bucket has refused the credential as expired since the last one was [`set`](Authority::set).
    pub fn is_refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
    }

    /// The waker of the thread that renews credentials.
    pub fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Handles a refusal as expired or for a wrong clock; the date of the response tells which of the two it is.
    fn refuse(&self, server_time: Option<WallTime>) {
        if let Some(server_time) = server_time
            && server_time.seconds_since(self.now()).unsigned_abs() > SKEW_S_MIN
        {
            self.skew_s.store(server_time.seconds_since((self.clock)()), Ordering::Relaxed);
            return;
        }
        self.refused.store(true, Ordering::Relaxed);
        self.waker.wake();
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        // No request is signed any more: the thread that renews credentials ends.
        self.waker.wake();
    }
}

fn locked<T>(cell: &Mutex<T>) -> MutexGuard<'_, T> {
    cell.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a refusal means, given the credentials: one about credentials is retried only where there are any, and the authority is
/// told; one that repeats a secret is cut before it. `server_time` is the date of the response.
pub fn judged(error: Error, authority: Option<&Authority>, server_time: Option<WallTime>) -> Error {
    let error = match authority {
        Some(authority) => spared(error, &authority.credential()),
        None => error,
    };
    let signed = authority.filter(|authority| !authority.credential().is_anonymous());
    match (error.kind(), signed) {
        (Kind::Expired, Some(authority)) => {
            authority.refuse(server_time);
            let trouble = locked(&authority.trouble).clone();
            trouble.map_or(error.clone(), |why| error.with_hint(format!("renewing the credentials failed: {why}")))
        }
        (Kind::Expired, None) => Error::new(Kind::Denied, error.cause()).with_hint(UNSIGNED),
        _ => error,
    }
}

fn spared(error: Error, credential: &Credential) -> Error {
    let kept = credential.spared(error.cause());
    if kept.len() == error.cause().len() {
        return error;
    }
    let cause = format!("{kept}… (the rest repeats the credential)");
    error.because(cause)
}

const UNSIGNED: &str = "no credentials were sent: set anonymous = false (FUELRAIL_ANONYMOUS=false) to sign requests to a plain \
                        URI, or allow public reads of the bucket";

/// Signs the requests of one thread.
pub struct Signatory {
    authority: Arc<Authority>,
    version: u64,
    credential: Arc<Credential>,
    signer: Signer,
}

impl Signatory {
    /// Signs with what `authority` holds.
    pub fn new(authority: Arc<Authority>) -> Signatory {
        let version = authority.version();
        let (credential, signer) = (authority.credential(), Signer::new(authority.realm.clone()));
        Signatory { authority, version, credential, signer }
    }

    /// The authority it signs for.
    pub fn authority(&self) -> &Arc<Authority> {
        &self.authority
    }

    /// Signs the request that is all of `text`: a head without a body.
    ///
    /// # Errors
    /// As [`Signer::sign_head`].
    pub fn sign_head(&mut self, text: &mut Vec<u8>) -> Result<()> {
        self.look();
        self.signer.sign_head(&self.credential, self.authority.now(), text, 0)
    }

    /// Appends what authorises `request`, whose body goes unsigned.
    ///
    /// # Errors
    /// As [`Signer::sign`].
    pub fn sign(&mut self, request: &Unsigned<'_>, query: &mut String, lines: &mut Vec<u8>) -> Result<()> {
        self.look();
        self.signer.sign(&self.credential, (request, Payload::Unsigned), self.authority.now(), query, lines)
    }

    /// Takes the new credential, if there is one.
    fn look(&mut self) {
        let version = self.authority.version();
        if version != self.version {
            self.version = version;
            self.credential = self.authority.credential();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fuelrail_wire::sign::Scope;

    fn clock() -> WallTime {
        WallTime(1_000_000)
    }

    fn authority(credential: Credential) -> Arc<Authority> {
        let scope = Scope { region: "us-east-1".into(), service: "s3" };
        Arc::new(Authority::new(Realm { scope, requester_pays: false }, credential, clock))
    }

    fn head(signatory: &mut Signatory) -> String {
        let mut text = b"GET /k HTTP/1.1\r\nHost: h\r\n\r\n".to_vec();
        signatory.sign_head(&mut text).unwrap();
        String::from_utf8(text).unwrap()
    }

    fn expired() -> Error {
        Error::new(Kind::Expired, "the server answered 400 (ExpiredToken)").with_hint("renew them")
    }

    #[test]
    fn a_new_credential_is_signed_with_from_the_next_request_on() {
        let authority = authority(Credential::bearer("one").unwrap());
        let mut signatory = Signatory::new(Arc::clone(&authority));
        assert!(head(&mut signatory).contains("Bearer one\r\n"));
        authority.set(Credential::bearer("two").unwrap());
        assert!(head(&mut signatory).contains("Bearer two\r\n"));
    }

    #[test]
    fn an_ended_credential_is_asked_for_anew_and_a_wrong_clock_is_corrected() {
        let authority = authority(Credential::aws("id", "secret", None).unwrap());
        let at = |late| Some(clock().shifted(late));
        let error = judged(expired(), Some(&authority), at(-30));
        assert!(error.kind() == Kind::Expired && authority.is_refused(), "{error}");
        assert!(!authority.waker().arm(), "whoever gets new ones is woken");
        authority.set(Credential::aws("id", "secret", None).unwrap());
        assert!(!authority.is_refused());
        let _ = judged(expired(), Some(&authority), at(7200));
        assert_eq!((authority.now(), authority.is_refused()), (clock().shifted(7200), false));
        let mut signatory = Signatory::new(Arc::clone(&authority));
        assert!(head(&mut signatory).contains("x-amz-date: 19700112T154640Z\r\n"));
        for late in [7201, 7260] {
            let _ = judged(expired(), Some(&authority), at(late));
            assert_eq!((authority.now(), authority.is_refused()), (clock().shifted(7200), true), "they agree");
        }
    }

    #[test]
    fn what_stands_in_the_way_of_a_new_credential_is_told() {
        let authority = authority(Credential::aws("id", "secret", None).unwrap());
        authority.note_trouble("the metadata service does not answer".into());
        let error = judged(expired(), Some(&authority), None);
        assert!(error.to_string().contains("metadata service"), "{error}");
        authority.set(Credential::aws("id", "secret", None).unwrap());
        let error = judged(expired(), Some(&authority), None);
        assert!(!error.to_string().contains("metadata service"), "{error}");
    }

    #[test]
    fn a_request_with_a_body_is_signed_with_the_credential_there_is_now() {
        let authority = authority(Credential::bearer("one").unwrap());
        assert_eq!(authority.region(), "us-east-1");
        let mut signatory = Signatory::new(Arc::clone(&authority));
        authority.set(Credential::bearer("two").unwrap());
        let request = Unsigned { method: "PUT", host: "h", path_and_query: "/k", headers: &[] };
        let (mut query, mut lines) = (String::new(), Vec::new());
        signatory.sign(&request, &mut query, &mut lines).unwrap();
        assert!(String::from_utf8(lines).unwrap().contains("Bearer two") && query.is_empty());
        assert!(Arc::ptr_eq(signatory.authority(), &authority));
    }

    #[test]
    fn who_sent_no_credentials_is_told_so_and_not_tried_again() {
        let anonymous = authority(Credential::anonymous());
        for authority in [None, Some(&*anonymous)] {
            let error = judged(expired(), authority, None);
            assert!(error.kind() == Kind::Denied && error.to_string().contains("no credentials were sent"), "{error}");
        }
        let other = judged(Error::new(Kind::Server, "500"), None, None);
        assert_eq!(other.kind(), Kind::Server);
    }

    #[test]
    fn the_last_to_go_wakes_who_gets_new_ones() {
        let authority = authority(Credential::anonymous());
        let waker = authority.waker().clone();
        assert!(waker.arm());
        drop(authority);
        assert!(!waker.arm());
    }

    #[test]
    fn a_refusal_that_repeats_a_secret_ends_before_it() {
        let authority = authority(Credential::aws("id", "secret", Some("marked-token")).unwrap());
        let odd =
            |text: &str| Error::new(Kind::Denied, format!("the server answered 403 (Odd: {text})")).with_hint("ask");
        let error = judged(odd("x-amz-security-token: marked-token"), Some(&authority), None).to_string();
        assert!(!error.contains("marked") && error.contains("Odd: x-amz") && error.contains("; ask"), "{error}");
        assert_eq!(judged(odd("no"), Some(&authority), None), odd("no"));
    }

    #[test]
    fn nothing_secret_is_printed() {
        let authority = authority(Credential::aws("marked", "marked", Some("marked")).unwrap());
        assert!(!format!("{authority:?}").contains("marked"));
    }
}
