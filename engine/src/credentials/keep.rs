//! One authority per process and credential chain, and the thread that refreshes its credential.
//!
//! Fetches a new credential minutes before the old one expires, and keeps the old one in use until there is a new one. The thread ends when
//! the last signer drops the authority.

use super::settings::{CredentialProvider, Credentials, Origin, Provider, Signing};
use super::source::Fetched;
use super::{aws, tokens};
use crate::client::runtime;
use crate::system::spawn;
use fuelrail_base::{Duration, Error, Kind, Result, panic_text};
use fuelrail_flow::Authority;
use fuelrail_io::{ForkGuard, Waker, wall_now};
use fuelrail_wire::sign::{Credential, Realm, Scope};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Instant;

/// A new credential is fetched this long before the old one expires, or at half of a shorter lifetime.
const LEAD: Duration = Duration::from_secs(300);
/// Bounds of the pause between two attempts.
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// A provider that has not answered for so long is warned of.
const LATE: Duration = Duration::from_secs(5);
/// How often a wait for a provider looks at the clock.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Longest sleep of a thread without a deadline.
const SLEEP_MAX: Duration = Duration::from_secs(3600);

/// Where a credential comes from.
#[derive(Clone, PartialEq, Debug)]
struct Chain {
    provider: Provider,
    settings: Credentials,
    realm: Realm,
    /// Azure: the account, where URI or host name it.
    account: Option<String>,
}

/// An authority in use.
struct Kept {
    chain: Chain,
    /// Locked while a credential is fetched, so that loaders opened together fetch one.
    authority: Arc<Mutex<Weak<Authority>>>,
    /// A child made by `fork` has no thread that refreshes it.
    guard: ForkGuard,
}

/// The authorities in use in this process.
static KEPT: Mutex<Vec<Kept>> = Mutex::new(Vec::new());

/// Locks them. `None` in a child made by `fork` where they are locked: perhaps by a thread that it does not have.
fn lock() -> Option<MutexGuard<'static, Vec<Kept>>> {
    static OWN: OnceLock<ForkGuard> = OnceLock::new();
    if OWN.get_or_init(ForkGuard::new).holds() {
        return Some(KEPT.lock().unwrap_or_else(PoisonError::into_inner));
    }
    KEPT.try_lock().ok()
}

/// The place of this chain's authority. Drops places that are neither in use nor being filled; in a child made by `fork`, those of its
/// parent, which a thread that the child does not have may hold locked.
fn place_of(kept: &mut Vec<Kept>, chain: &Chain) -> Arc<Mutex<Weak<Authority>>> {
    let is_wanted = |place: &Arc<Mutex<Weak<_>>>| Arc::strong_count(place) > 1 || held(place).strong_count() > 0;
    kept.retain(|kept| kept.guard.holds() && is_wanted(&kept.authority));
    if let Some(found) = kept.iter().find(|kept| kept.chain == *chain) {
        return Arc::clone(&found.authority);
    }
    let authority = Arc::default();
    kept.push(Kept { chain: chain.clone(), authority: Arc::clone(&authority), guard: ForkGuard::new() });
    authority
}

fn held(place: &Mutex<Weak<Authority>>) -> MutexGuard<'_, Weak<Authority>> {
    place.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The authority that signs requests to `origin`; `None` when they are unsigned.
///
/// # Errors
/// `Denied` with the reason of each source of the chain, `Usage` for settings that contradict each other.
pub(crate) fn authority_for(settings: &Credentials, origin: &Origin) -> Result<Option<Arc<Authority>>> {
    let Origin { endpoint, signing } = origin;
    let Some(Signing { provider, region: told }) = signing.clone() else {
        if settings.requester_pays {
            return Err(Error::new(Kind::Usage, "requester_pays is set, but requests are anonymous")
                .with_hint("set anonymous = false, or leave requester_pays out"));
        }
        return Ok(None);
    };
    let region = match (provider, endpoint.region(), told) {
        // A host with a region in its name accepts signatures for that region only.
        (Provider::Aws, Some(region), _) => region.to_string(),
        (Provider::Aws, None, Some(told)) => aws::checked(told)?,
        (Provider::Aws, None, None) => aws::region(settings)?,
        // Google's value for AWS-style keys; bearer tokens have no region.
        _ => "auto".into(),
    };
    let realm = Realm { scope: Scope { region, service: "s3" }, requester_pays: settings.requester_pays };
    let account = if provider == Provider::Azure { tokens::account_of(endpoint) } else { None };
    // Where a variable has changed since, this is another chain.
    let settings = Credentials { environment: settings.environment.snapshot(), ..settings.clone() };
    let chain = Chain { provider, settings, realm, account };
    // Of the others nothing is locked meanwhile: a provider may wait, or read a signed object itself, by another chain.
    let place = lock().map(|mut kept| place_of(&mut kept, &chain)).unwrap_or_default();
    let mut kept = held(&place);
    if let Some(authority) = kept.upgrade() {
        return Ok(Some(authority));
    }
    let fetched = chain.fetch(None)?;
    let authority = Arc::new(Authority::new(chain.realm.clone(), fetched.credential.clone(), wall_now));
    if !fetched.fixed {
        let refresher = Refresher { authority: Arc::downgrade(&authority), waker: authority.waker().clone(), chain };
        spawn("fuelrail-keys", move || refresher.run(&fetched))?;
    }
    *kept = Arc::downgrade(&authority);
    Ok(Some(authority))
}

impl Chain {
    /// Fetches on a thread of its own: callers may be inside a runtime, and a provider that panics must end neither them nor the renewals.
    /// Waits for it as long as it takes, and warns of that; `last` is in use meanwhile.
    ///
    /// # Errors
    /// Those of the sources; `Program` with the text of a panic.
    fn fetch(&self, last: Option<&Credential>) -> Result<Fetched> {
        let (chain, (tell, told)) = (self.clone(), mpsc::channel());
        let thread = spawn("fuelrail-keys", move || drop(tell.send(chain.first())))?;
        let (begun, mut said) = (Instant::now(), None);
        loop {
            match told.recv_timeout(LOOK_AGAIN) {
                Ok(fetched) => {
                    // It ends now, and whoever looks for threads finds none.
                    let _ = thread.join();
                    return fetched;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    let panic = thread.join().expect_err("a thread that ends without an answer has panicked");
                    let cause = format!("the credential provider panicked: {}", panic_text(&*panic));
                    let hint = "look at the panic that was printed, and mend the provider";
                    return Err(Error::new(Kind::Program, cause).with_hint(hint));
                }
            }
            let left = last.and_then(Credential::expires).map(|at| at.seconds_since(wall_now()));
            let has_expired = left.is_some_and(|left| left <= 0);
            // Once, and once more when it has expired.
            if begun.elapsed() >= LATE && said.replace(has_expired) != Some(has_expired) {
                let meanwhile: String = match (last, left) {
                    (None, _) => "what is to be read with it waits".into(),
                    (Some(_), None) => "the old credential stays in use".into(),
                    _ if has_expired => "the old credential has expired: requests with it may be refused".into(),
                    (Some(_), Some(left)) => format!("the old credential expires in {left} s"),
                };
                tracing::warn!(
                    "the credential provider has not answered for {} s; {meanwhile}",
                    begun.elapsed().as_secs()
                );
            }
        }
    }

    /// The credential of the first source of the chain that has one.
    fn first(&self) -> Result<Fetched> {
        if let Some(own) = &self.settings.provider {
            return own.credential().map(Fetched::new);
        }
        runtime()?.block_on(async {
            match self.provider {
                Provider::Aws => aws::fetch(&self.settings).await,
                Provider::Google => tokens::google(&self.settings.environment).await,
                Provider::Azure => tokens::azure(&self.settings.environment, self.account.as_deref()).await,
            }
        })
    }
}

/// Refreshes one authority's credential.
struct Refresher {
    authority: Weak<Authority>,
    waker: Waker,
    chain: Chain,
}

impl Refresher {
    fn run(self, first: &Fetched) {
        let mut due = due(first);
        let mut last = first.credential.clone();
        // When the newest credential is refused again and again, back off.
        let (mut pause, mut not_before) = (PAUSE_MIN, Instant::now());
        let mut failing = false;
        loop {
            let armed = self.waker.arm();
            let Some(refused) = self.authority.upgrade().map(|authority| authority.is_refused()) else { return };
            let now = Instant::now();
            let at = if refused { not_before } else { due.map_or(now + SLEEP_MAX, |due| due.max(not_before)) };
            if at > now {
                if armed {
                    self.waker.sleep(at - now);
                }
                self.waker.disarm();
                continue;
            }
            self.waker.disarm();
            let fetched = self.chain.fetch(Some(&last));
            let Some(authority) = self.authority.upgrade() else { return };
            let fresh = match fetched {
                Ok(fetched) => {
                    failing = false;
                    due = self::due(&fetched);
                    authority.set(fetched.credential.clone());
                    core::mem::replace(&mut last, fetched.credential.clone()) != fetched.credential
                }
                Err(error) => {
                    if !core::mem::replace(&mut failing, true) {
                        tracing::warn!("cannot renew the credentials, the old ones stay in use: {error}");
                    }
                    authority.note_trouble(error.to_string());
                    due = Some(Instant::now());
                    false
                }
            };
            pause = if fresh { PAUSE_MIN } else { (pause * 2).min(PAUSE_MAX) };
            not_before = Instant::now() + pause;
        }
    }
}

/// When the next credential should be fetched; `None` if this one does not expire.
fn due(fetched: &Fetched) -> Option<Instant> {
    let expires = fetched.credential.expires()?;
    let left = expires.seconds_since(fetched.at.unwrap_or_else(wall_now)).max(0);
    let left = Duration::from_secs(left.unsigned_abs());
    Some(Instant::now() + (left - LEAD.min(left / 2)).max(PAUSE_MIN))
}

#[cfg(test)]
mod tests {
    use super::*;
    use fuelrail_base::WallTime;

    #[test]
    fn renewal_is_due_minutes_before_expiry_or_at_half_of_a_short_lifetime() {
        for (life, wanted) in [(3600, 3300), (600, 300), (20, 10), (2, 1)] {
            let credential = Credential::bearer("t").unwrap().until(Some(WallTime(1_000 + life)));
            let fetched = Fetched { at: Some(WallTime(1_000)), ..Fetched::new(credential) };
            let wait = due(&fetched).unwrap() - Instant::now();
            assert!(
                wait <= Duration::from_secs(wanted) && wait + Duration::from_secs(60) > Duration::from_secs(wanted),
                "{wait:?}"
            );
        }
        assert!(due(&Fetched::new(Credential::bearer("t").unwrap())).is_none());
        let ended = Credential::bearer("t").unwrap().until(Some(WallTime(1)));
        assert!(due(&Fetched { at: Some(WallTime(9)), ..Fetched::new(ended) }).unwrap() > Instant::now() - PAUSE_MIN);
    }
}
