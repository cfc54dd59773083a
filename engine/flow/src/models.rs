//! Models of what shards, the consumer and the threads beside them hand each other, for the checker of `cargo x prove models`.
//!
//! As in `fuelrail-io`: a thread that sleeps for ever shows what is lost, and each ordering is needed by one of the models.

use crate::addresses::AddressBook;
use crate::assemble::Finished;
use crate::credential::Authority;
use crate::deliver::{Consumer, DeliverStage, Outlet};
use crate::status::{ShardStatus, Snapshot};
use fuelrail_base::sync::trial::{self, JoinHandle, thread};
use fuelrail_base::{BatchSeq, Duration, Error, Instant, Kind, WallTime};
use fuelrail_io::{Waker, channel};
use fuelrail_plan::importance::{Horizons, ImportanceConfig};
use fuelrail_wire::sign::{Credential, Realm, Scope};
use std::sync::Arc;

const FOREVER: Duration = Duration::from_secs(3600);

/// How a thread waits until something is done.
type Sleep = fn(&Waker, &mut dyn FnMut() -> bool);

/// A shard's loop: it does what it can, and sleeps when nothing has woken it meanwhile.
fn sleep_until(waker: &Waker, done: &mut dyn FnMut() -> bool) {
    while !done() {
        if waker.arm() {
            waker.sleep(FOREVER);
        }
        waker.disarm();
    }
}

/// For canaries: looks first and then forgets who has woken it since.
fn sleep_carelessly(waker: &Waker, done: &mut dyn FnMut() -> bool) {
    while !done() {
        waker.disarm();
        if waker.arm() {
            waker.sleep(FOREVER);
        }
    }
}

fn join(thread: JoinHandle<()>) {
    thread.join().expect("no panic");
}

/// Two batches through a place for one: each side sleeps until the other has done its part, from the start on.
fn batches_reach_a_blocked_consumer(sleep: Sleep) {
    let (out, into) = channel(1);
    let (consumer, shard, me) = (Arc::new(Consumer::default()), Waker::sleeper(), Waker::sleeper());
    let mut outlet = Outlet::new(vec![into], vec![shard.clone()], consumer.clone(), 2);
    let shard = thread::spawn(move || {
        let mut stage = DeliverStage::new(out, 0, 1, 2);
        for seq in [1, 0] {
            stage.put(Finished { seq: BatchSeq(seq), result: Err(Error::new(Kind::Cancelled, "")) });
        }
        sleep(&shard, &mut || {
            assert!(stage.flush(Instant::ZERO, consumer.taken_of(0, 1)), "the consumer stays");
            stage.is_empty()
        });
    });
    outlet.set_waker(&me);
    let mut taken = 0;
    sleep(&me, &mut || {
        taken += u64::from(outlet.try_take().is_some_and(|batch| batch.seq.0 == taken));
        taken == 2
    });
    join(shard);
}

/// A sleeping shard finds what the consumer sets: that it waits, that epochs are drawn, that the run ends.
fn a_shard_hears_the_consumer(sleep: Sleep) {
    let (_out, into) = channel(1);
    let (consumer, status, shard) = (Arc::new(Consumer::default()), Arc::new(ShardStatus::default()), Waker::sleeper());
    let outlet = Outlet::new(vec![into], vec![shard.clone()], consumer.clone(), 1);
    let thread = thread::spawn({
        let (status, shard) = (status.clone(), shard.clone());
        move || {
            let mut heard = 0;
            sleep(&shard, &mut || consumer.waits());
            sleep(&shard, &mut || consumer.news(&mut heard).is_some());
            sleep(&shard, &mut || status.is_stopped());
        }
    });
    outlet.set_waiting(true);
    let drawn = Horizons::new(ImportanceConfig::default(), 1, 0, 1, 0, None).expect("a good configuration");
    outlet.consumer().tell(drawn.known());
    shard.wake();
    status.stop();
    shard.wake();
    join(thread);
}

/// A requested snapshot is newer than its request, or the last one of a shard that has ended.
fn a_snapshot_is_not_older_than_asked(look: fn(&ShardStatus, u64) -> Option<Snapshot>) {
    let (status, shard) = (Arc::new(ShardStatus::default()), Waker::sleeper());
    let thread = thread::spawn({
        let (status, shard) = (status.clone(), shard.clone());
        move || {
            let publish = |operations| {
                let serial = status.wanted();
                status.publish(Snapshot { serial, operations, ..Snapshot::default() });
            };
            sleep_until(&shard, &mut || status.wanted() > 0);
            publish(1);
            publish(0);
            status.leave();
        }
    });
    let serial = status.request();
    shard.wake();
    if let Some(snapshot) = look(&status, serial) {
        assert!(snapshot.serial >= serial);
    }
    if let Some(snapshot) = look(&status, serial + 1) {
        assert_eq!((snapshot.serial, snapshot.operations), (serial, 0), "what is said at last");
    }
    join(thread);
}

/// A reader that sees a new version sees its value.
fn a_version_brings_its_value(looks_first_at_the_version: bool) {
    let all = ["10.0.0.1:80", "10.0.0.2:80"].map(|text| text.parse().expect("an address"));
    let book = Arc::new(AddressBook::new(vec![all[0]]).0);
    let realm = Realm { scope: Scope { region: String::new(), service: "s3" }, requester_pays: false };
    let credential = |token| Credential::bearer(token).expect("a good token");
    let authority = Arc::new(Authority::new(realm, credential("one"), || WallTime(0)));
    let thread = thread::spawn({
        let (book, authority) = (book.clone(), authority.clone());
        move || {
            book.set(vec![all[1]]);
            authority.set(Credential::bearer("two").expect("a good token"));
        }
    });
    let early = (!looks_first_at_the_version).then(|| (book.addresses(), authority.credential()));
    if book.version() == 2 {
        let addresses = early.as_ref().map_or_else(|| book.addresses(), |early| early.0.clone());
        assert_eq!(*addresses, [all[1]]);
    }
    if authority.version() == 2 {
        let credential = early.map_or_else(|| authority.credential(), |early| early.1);
        assert!(credential.spared("two") != "two", "the new one is signed with");
    }
    join(thread);
}

#[test]
fn delivery() {
    let models: [fn(); 2] =
        [|| batches_reach_a_blocked_consumer(sleep_until), || a_shard_hears_the_consumer(sleep_until)];
    assert_eq!(trial::needless(&models, &["deliver.rs"]), Vec::<String>::new());
}

#[test]
fn delivery_canary() {
    assert!(trial::fails(|| batches_reach_a_blocked_consumer(sleep_carelessly)));
}

#[test]
#[should_panic(expected = "deadlock")]
fn hearing_canary() {
    trial::check(|| a_shard_hears_the_consumer(sleep_carelessly));
}

#[test]
fn snapshots() {
    let models: [fn(); 2] =
        [|| a_snapshot_is_not_older_than_asked(ShardStatus::answered), || a_shard_hears_the_consumer(sleep_until)];
    assert_eq!(trial::needless(&models, &["status.rs"]), Vec::<String>::new());
}

#[test]
#[should_panic(expected = "what is said at last")]
fn snapshots_canary() {
    let looks_first_at_the_snapshot = |status: &ShardStatus, serial| {
        let latest = status.latest();
        (latest.serial >= serial || status.is_gone()).then_some(latest)
    };
    trial::check(move || a_snapshot_is_not_older_than_asked(looks_first_at_the_snapshot));
}

#[test]
fn versions() {
    let models: [fn(); 1] = [|| a_version_brings_its_value(true)];
    assert_eq!(trial::needless(&models, &["book.rs", "credential.rs"]), Vec::<String>::new());
}

#[test]
fn versions_canary() {
    assert!(trial::fails(|| a_version_brings_its_value(false)));
}
