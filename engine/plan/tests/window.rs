//! The window against small models of servers, in virtual time.

use fuelrail_base::{Duration, Instant, Kind, prng::Prng};
use fuelrail_plan::window::{Window, WindowConfig};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A server, the way to it, and the client's core. Times in microseconds.
#[derive(Clone, Copy)]
struct World {
    /// From request to first byte, on a connection of its own; requests on one connection are answered in turn.
    latency_us: u64,
    /// The server starts one request per this time, over all connections.
    service_us: u64,
    /// What the client's core needs per response.
    client_us: u64,
    /// All bodies share this link.
    link_bytes_per_us: u64,
    block_bytes: u64,
}

const NEAR: World =
    World { latency_us: 50, service_us: 1, client_us: 1, link_bytes_per_us: 100_000, block_bytes: 100_000 };
const FAR: World = World { latency_us: 55_000, ..NEAR };

struct Connection {
    usable_from_us: u64,
    free_at_us: u64,
    requests: usize,
}

/// One response: when it is complete, on which connection, when its request was sent and its first byte came.
type Response = Reverse<(u64, usize, u64, u64)>;

struct Shard {
    world: World,
    window: Window,
    random: Prng,
    connections: Vec<Connection>,
    responses: BinaryHeap<Response>,
    clock_us: u64,
    server_free_us: u64,
    link_free_us: u64,
    /// Fetches still to be sent.
    work: u64,
    landed: u64,
    /// Microseconds spent wanting each number of connections.
    wanted_us: std::collections::BTreeMap<usize, u64>,
}

impl Shard {
    fn new(world: World, work: u64) -> Shard {
        let connections_blind_max = WindowConfig::blind_for(world.block_bytes);
        let config = WindowConfig { connections_blind_max, ..WindowConfig::default() };
        Shard {
            world,
            window: Window::new(config).unwrap(),
            random: Prng::new(1),
            connections: Vec::new(),
            responses: BinaryHeap::new(),
            clock_us: 0,
            server_free_us: 0,
            link_free_us: 0,
            work,
            landed: 0,
            wanted_us: Default::default(),
        }
    }

    fn now(&self) -> Instant {
        Instant(self.clock_us * 1_000)
    }

    fn in_flight(&self) -> usize {
        self.responses.len()
    }

    fn send(&mut self, on: usize) {
        let World { latency_us, service_us, link_bytes_per_us, block_bytes, .. } = self.world;
        let connection = &mut self.connections[on];
        let start = self.clock_us.max(connection.usable_from_us).max(connection.free_at_us);
        let jitter = self.random.below(latency_us / 4 + 1);
        self.server_free_us = self.server_free_us.max(start) + service_us;
        let first_us = self.server_free_us + latency_us + jitter;
        let bytes = block_bytes / 2 + self.random.below(block_bytes);
        self.link_free_us = self.link_free_us.max(first_us) + bytes / link_bytes_per_us;
        let done_us = self.link_free_us;
        connection.free_at_us = done_us;
        connection.requests += 1;
        self.work -= 1;
        self.responses.push(Reverse((done_us, on, self.clock_us, first_us)));
    }

    fn issue(&mut self) {
        while self.connections.len() < self.window.connections() {
            // A connection takes a round trip to open, shorter than a request that the server has to think about.
            let usable_from_us = self.clock_us + self.world.latency_us / 4;
            self.connections.push(Connection { usable_from_us, free_at_us: 0, requests: 0 });
        }
        let depth = self.window.depth(self.world.block_bytes);
        while self.work > 0 && self.in_flight() < self.window.in_flight_max() {
            let usable = self.connections.iter().take(self.window.connections()).enumerate();
            let (on, least) = usable.min_by_key(|(_, connection)| connection.requests).unwrap();
            if least.requests >= depth {
                break;
            }
            self.send(on);
        }
    }

    /// Runs until `end_us`, or until all work is done.
    fn run(&mut self, end_us: u64) {
        while self.clock_us < end_us {
            self.issue();
            let Some(&Reverse((next_us, ..))) = self.responses.peek() else { return };
            let mut until = next_us;
            if next_us > self.clock_us {
                let (in_flight, waiting) = (self.in_flight(), self.work as usize);
                let before = self.window.connections();
                let again = self.window.idle(self.now(), in_flight, waiting);
                until = again.map_or(next_us, |at| next_us.min(at.0 / 1_000));
                if self.window.connections() > before {
                    continue;
                }
            }
            *self.wanted_us.entry(self.window.connections()).or_default() += until.saturating_sub(self.clock_us);
            self.clock_us = self.clock_us.max(until);
            if until == next_us {
                self.land();
            }
        }
    }

    fn land(&mut self) {
        let Reverse((_, on, sent_us, first_us)) = self.responses.pop().unwrap();
        self.connections[on].requests -= 1;
        self.clock_us += self.world.client_us;
        *self.wanted_us.entry(self.window.connections()).or_default() += self.world.client_us;
        self.landed += 1;
        let since = |us: u64| Duration::from_micros(us - sent_us);
        self.window.landed(self.now(), self.world.block_bytes, since(first_us), since(self.clock_us));
    }

    /// Share of the time in which no more than this many connections were wanted.
    fn share_up_to(&self, connections: usize) -> f64 {
        let up_to: u64 = self.wanted_us.range(..=connections).map(|(_, us)| us).sum();
        up_to as f64 / self.wanted_us.values().sum::<u64>() as f64
    }
}

const ENDLESS: u64 = 1 << 40;

#[test]
fn a_far_server_gets_all_connections_within_a_few_round_trips() {
    let mut shard = Shard::new(FAR, ENDLESS);
    shard.run(8 * FAR.latency_us);
    assert_eq!(shard.window.connections(), 256, "after {} landings", shard.landed);
    assert_eq!(shard.window.depth(1_000), 1, "another connection serves better than a place behind a slow answer");
    shard.run(100 * FAR.latency_us);
    assert!(shard.share_up_to(128) < 0.2, "it stays open: {:?}", shard.wanted_us);
}

#[test]
fn it_settles_where_littles_law_says() {
    // A request per millisecond and 60 ms of latency: 60 in flight saturate it, 32 do not.
    let world = World { service_us: 1_000, ..FAR };
    let mut shard = Shard::new(world, ENDLESS);
    shard.run(200 * world.latency_us);
    assert!(shard.share_up_to(32) < 0.1, "{:?}", shard.wanted_us);
    assert!(shard.share_up_to(128) > 0.9, "{:?}", shard.wanted_us);
    let possible = shard.clock_us / world.service_us;
    assert!(shard.landed * 10 > possible * 9, "{} of {possible}", shard.landed);
}

#[test]
fn a_busy_core_opens_nothing() {
    let world = World { client_us: 20, ..NEAR };
    let mut shard = Shard::new(world, ENDLESS);
    shard.run(1_000_000);
    assert!(shard.wanted_us.keys().all(|n| *n <= 8), "{:?}", shard.wanted_us);
    assert!(shard.landed > 45_000, "the core is the limit: {}", shard.landed);
}

#[test]
fn a_near_server_that_is_the_limit_is_left_alone() {
    let world = World { service_us: 100, ..NEAR };
    let mut shard = Shard::new(world, ENDLESS);
    shard.run(20_000_000);
    assert!(shard.share_up_to(8) > 0.95, "{:?}", shard.wanted_us);
    assert!(shard.landed > 195_000, "the server is the limit: {}", shard.landed);
}

#[test]
fn what_was_opened_blindly_is_given_back_where_fewer_serve_as_well() {
    // The server is the limit, and so near that two connections keep it busy.
    let world = World { service_us: 100, latency_us: 20, block_bytes: 10_000, ..NEAR };
    let mut shard = Shard::new(world, ENDLESS);
    shard.run(1_000_000);
    assert!(shard.wanted_us.keys().any(|n| *n > 8), "small blocks open wide: {:?}", shard.wanted_us);
    assert!(shard.share_up_to(8) > 0.95, "by the first landings: {:?}", shard.wanted_us);
    assert!(shard.landed > 9_500, "the server is the limit: {}", shard.landed);
}

#[test]
fn a_core_that_is_the_limit_gives_connections_back() {
    let world = World { client_us: 20, block_bytes: 10_000, ..NEAR };
    let mut shard = Shard::new(world, ENDLESS);
    shard.window = Window::new(WindowConfig { connections_start: 64, ..WindowConfig::default() }).unwrap();
    shard.run(1_000_000);
    assert!(shard.share_up_to(8) > 0.6, "{:?}", shard.wanted_us);
    assert!(shard.landed > 45_000, "the core is the limit: {}", shard.landed);
}

#[test]
fn a_slow_link_does_not_end_with_all_connections() {
    // 10 MB/s: one 1 MiB block takes 105 ms, 8 connections are more than enough.
    let world = World { link_bytes_per_us: 10, block_bytes: 1 << 20, ..FAR };
    let mut shard = Shard::new(world, ENDLESS);
    shard.run(600_000_000);
    assert!(shard.share_up_to(32) > 0.9 && shard.window.connections() <= 16, "{:?}", shard.wanted_us);
    assert!(shard.landed > 5_000, "the link is the limit: {}", shard.landed);
}

/// Every connection is needed, and no more are allowed.
fn all_are_needed() -> Shard {
    let mut shard = Shard::new(FAR, ENDLESS);
    shard.window = Window::new(WindowConfig { connections_max: 15, ..WindowConfig::default() }).unwrap();
    shard
}

#[test]
fn half_as_many_are_not_tried_where_fetches_stand_in_no_queue() {
    let mut shard = all_are_needed();
    shard.run(400 * FAR.latency_us);
    assert!(shard.share_up_to(14) < 0.01, "{:?}", shard.wanted_us);
}

#[test]
fn a_try_that_costs_half_the_rate_ends_after_its_first_rounds() {
    let mut shard = all_are_needed();
    shard.run(20 * FAR.latency_us);
    // One fetch is so quick that the others seem to stand in a queue.
    let quick = Duration::from_micros(FAR.latency_us / 10);
    shard.window.landed(shard.now(), FAR.block_bytes, quick, quick);
    shard.run(400 * FAR.latency_us);
    // Tries at 40, 110 and 250 round trips or so, of four rounds each instead of ten.
    let tried = shard.share_up_to(7);
    assert!((0.01..0.06).contains(&tried), "{:?}", shard.wanted_us);
    assert!(shard.share_up_to(14) - tried < 0.02, "{:?}", shard.wanted_us);
}

#[test]
fn what_others_leave_of_a_link_is_taken_within_a_few_round_trips() {
    let mut shard = Shard::new(World { service_us: 20_000, ..FAR }, ENDLESS);
    shard.run(600 * FAR.latency_us);
    assert!(shard.window.connections() <= 8, "all that others leave: {:?}", shard.wanted_us);
    shard.world.service_us = FAR.service_us;
    let moment = shard.clock_us;
    shard.run(moment + 30 * FAR.latency_us);
    assert!(shard.window.connections() >= 64, "after {} landings: {:?}", shard.landed, shard.wanted_us);
}

#[test]
fn timeouts_shrink_the_window_once_a_round_and_never_below_one() {
    let mut window = Window::new(WindowConfig::default()).unwrap();
    let ms = |ms: u64| Instant(ms * 1_000_000);
    let most = window.in_flight_max();
    window.landed(ms(1), 1_000, Duration::from_millis(50), Duration::from_millis(50));
    (0..8).for_each(|_| window.timed_out(ms(2), 8));
    assert_eq!((window.in_flight_max(), window.connections()), (7, 7));
    for round in 1..40 {
        window.timed_out(ms(2 + 60 * round), 8);
    }
    assert_eq!((window.in_flight_max(), window.connections()), (1, 1));
    (0..8).for_each(|_| window.landed(ms(2_000), 1_000, Duration::from_millis(50), Duration::from_millis(50)));
    assert!((3..=4).contains(&window.in_flight_max()), "won back one by one: {}", window.in_flight_max());
    (0..100_000).for_each(|_| window.landed(ms(2_000), 1_000, Duration::from_millis(50), Duration::from_millis(50)));
    assert!(window.in_flight_max() >= most, "to the last: {}", window.in_flight_max());
}

#[test]
fn a_server_that_asks_to_slow_down_takes_no_connections_away() {
    let mut window = Window::new(WindowConfig::default()).unwrap();
    let before = (window.in_flight_max(), window.connections());
    (0..100).for_each(|n| window.throttled(Instant(n * 100_000_000)));
    assert_eq!((window.in_flight_max(), window.connections()), before, "the pace sees to that");
}

#[test]
fn depth_follows_size_and_distance() {
    let mut window = Window::new(WindowConfig::default()).unwrap();
    assert_eq!(window.depth(1), 1, "nothing is known yet");
    window.landed(Instant(1), 1_000, Duration::from_micros(60), Duration::from_micros(80));
    let depths = [0, 784, 16 << 10, 110 << 10, 8 << 20].map(|bytes| window.depth(bytes));
    assert_eq!(depths, [32, 32, 4, 2, 2]);
    let mut far = Window::new(WindowConfig::default()).unwrap();
    far.landed(Instant(1), 1_000, Duration::from_millis(3), Duration::from_millis(3));
    assert_eq!([784, 8 << 20].map(|bytes| far.depth(bytes)), [1, 1]);
}

#[test]
fn refuses_bounds_beyond_the_limits() {
    let good = WindowConfig::default();
    for bad in [
        WindowConfig { connections_start: 0, ..good },
        WindowConfig { connections_start: 9, connections_max: 8, ..good },
        WindowConfig { connections_max: 257, ..good },
        WindowConfig { depth_max: 0, ..good },
        WindowConfig { depth_max: 33, ..good },
    ] {
        assert_eq!(Window::new(bad).unwrap_err().kind(), Kind::Usage, "{bad:?}");
    }
}

#[test]
fn small_blocks_open_wide_before_anything_lands_and_large_ones_do_not() {
    assert_eq!([1_000, 110 << 10, 8 << 20].map(WindowConfig::blind_for), [128, 37, 8]);
    let config = WindowConfig { connections_blind_max: 128, ..WindowConfig::default() };
    let mut window = Window::new(config).unwrap();
    let mut now = 0;
    while let Some(again) = window.idle(Instant(now), window.connections(), 500) {
        now = again.0;
    }
    assert_eq!(window.connections(), 128);
    assert!(now <= 2_000_000, "long before a far server answers: {now} ns");
    let mut narrow = Window::new(WindowConfig { connections_max: 12, ..config }).unwrap();
    let calls = (0..100).take_while(|n| narrow.idle(Instant(n * 250_000), 12, 500).is_some()).count();
    assert!(narrow.connections() == 12 && calls < 10, "nothing more to open, and nothing to wake for: {calls} calls");
}
