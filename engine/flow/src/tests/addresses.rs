//! Which of a bucket's addresses connections go to.

use super::fetch::{Rig, kind_of};
use super::world::{Bucket, LIVE};
use fuelrail_base::{Duration, Instant, Kind};
use fuelrail_io::Ring;
use std::net::SocketAddr;

#[test]
fn an_address_that_takes_long_to_connect_is_left_for_another() {
    let slow: SocketAddr = "10.0.0.3:80".parse().unwrap();
    let mut bucket = Bucket::new(&[100; 4]);
    bucket.connects =
        Box::new(move |addr| if addr == slow { Duration::from_secs(2) } else { Duration::from_millis(1) });
    let mut rig = Rig::new(bucket, &["10.0.0.3:80", LIVE], 8);
    rig.request(0..1);
    rig.run(1);
    let waited = rig.ring.now().since(Instant::ZERO);
    assert!(waited >= Duration::from_millis(250) && waited < Duration::from_millis(260), "{waited:?}");
    let outcome = rig.ended.pop().unwrap();
    assert_eq!(kind_of(&outcome), Some(Kind::Cancelled), "{outcome:?}");
    rig.request(0..4);
    rig.run(4);
    rig.check_landed(4);
    assert!(rig.ring.now().since(Instant::ZERO) < Duration::from_millis(300));
    assert_eq!(rig.fetch.stats().connections_failed, 0, "given up is not failed");
}

#[test]
fn addresses_of_a_family_that_the_machine_refuses_are_passed_over() {
    let mut rig = Rig::new(Bucket::new(&[100; 8]), &["[2001:db8::1]:80", LIVE, "[2001:db8::2]:80"], 8);
    rig.world.refuse_ipv6();
    (rig.wanted, rig.depth) = (4, 1);
    rig.request(0..4);
    rig.run(4);
    rig.check_landed(4);
    assert_eq!((rig.fetch.stats().connections, rig.fetch.stats().connections_failed), (4, 0));
}

#[test]
fn the_only_address_has_all_the_time_it_needs() {
    let mut bucket = Bucket::new(&[100]);
    bucket.connects = Box::new(|_| Duration::from_secs(2));
    let mut rig = Rig::new(bucket, &[LIVE], 8);
    rig.request(0..1);
    rig.run(1);
    rig.check_landed(1);
}
