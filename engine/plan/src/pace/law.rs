//! How fast requests may go while a server refuses some of them: the arithmetic of one round.
//!
//! The anchor is what the server *served*: while it refuses, that is the limit itself, whatever was sent. A cut goes just
//! below it, as rate-based congestion control does (BBR; Cardwell et al. 2016), not to half of what was sent. From there
//! the rate grows along a cubic, flat around the last limit and steep beyond it (CUBIC, RFC 9438; the adaptive mode of the
//! AWS SDKs does the same to a rate). The cubic is taken of the logarithm, so that it is the same shape at 20 and at 20 000
//! requests a second, and after a few quiet seconds it multiplies. Refusals that do not go away below the limit have
//! another cause than the rate, and cut nothing. Plain numbers in, plain numbers out.

use fuelrail_base::{Duration, Instant};

/// A cut goes to this share of what was served (the cubic at its begin): e^-[`STEEPNESS`].
const STEEPNESS: f64 = 0.08;
/// Time to grow back to the last limit, at least, and in round trips. In 2.4 times that, a server that lets a tenth of a second
/// of requests through at once has begun to refuse; in 5 times that, the rate is over a hundred times the limit.
const PLATEAU: Duration = Duration::from_secs(1);
const PLATEAU_ROUND_TRIPS: u32 = 4;
/// One cut leaves at least this share, so that a server which refuses everything for a moment does not stop us.
const CUT_LEAST: f64 = 0.25;
/// A server that serves nothing at all is down, whatever the rate: no more cuts than these.
const MUTE_CUTS: f64 = 2.0;
/// Requests that an estimate of what is served rests on, within these bounds of time.
const SERVED_REQUESTS: f64 = 32.0;
const SERVED_S: (f64, f64) = (1.0, 4.0);
/// So soon after a cut there is no other, unless more than half is refused of so many requests.
const SETTLING: Duration = Duration::from_millis(600);
const SEVERE: f64 = 0.5;
const JUDGED_LEAST: f64 = 4.0;
/// Refusals beyond those that do not go away cut when they are more than this share.
const REFUSED_SHARE: f64 = 0.02;
/// So many cuts in a row that brought nothing show that refusals do not go away. They are not counted then, with some slack; and
/// are forgotten in a while. Fewer may mean that other processes, which know nothing of this one, press against the same limit: if each took that
/// for refusals that stay, all would go on sending against it.
const EARLY_CUTS: f64 = 5.0;
const NOISE_SLACK: f64 = 1.3;
const NOISE_S: f64 = 20.0;
/// Requests that judging refusals rests on.
const JUDGED_REQUESTS: f64 = 32.0;
/// Rates are kept within these bounds, requests a second.
pub(super) const RATE_LEAST: f64 = 0.5;
pub(super) const RATE_MOST: f64 = 1e8;
/// After so long without a refusal and without a request held back, the rate is no longer in force.
const CALM: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    pub(super) now: Instant,
    pub(super) elapsed: Duration,
    pub(super) served: u64,
    pub(super) refused: u64,
    /// A request was held back by the rate.
    pub(super) limited: bool,
    pub(super) round_trip: Duration,
}

/// A law in force. Survives as plain numbers in shared memory.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct Law {
    /// Requests a second.
    pub(super) rate: f64,
    /// What was served when it was cut last, requests a second.
    pub(super) known: f64,
    pub(super) cut_at: Instant,
    /// Time since then in which requests were held back, s: only that counts as growth without a refusal.
    pub(super) grown_s: f64,
    /// Requests served lately, and in how much time, s.
    pub(super) served: f64,
    pub(super) served_s: f64,
    /// Served and refused of the few last requests.
    pub(super) judged: [f64; 2],
    /// Share of refusals that does not go away.
    pub(super) noise: f64,
    /// Cuts in a row below the last limit, and the rate before the first of them.
    pub(super) early: f64,
    pub(super) before: f64,
    /// Cuts since anything was served.
    pub(super) mute: f64,
    /// Last time of a refusal, or of a request held back.
    pub(super) busy_at: Instant,
}

impl Law {
    /// Puts the rate in force after `served` requests in `time`, the first one having been refused now.
    pub(super) fn new(now: Instant, served: f64, time: Duration) -> Law {
        let served_s = time.as_secs_f64().max(1e-3);
        let known = (served / served_s).clamp(RATE_LEAST, RATE_MOST);
        Law { rate: known, known, cut_at: now, served, served_s, busy_at: now, ..Law::default() }
    }

    /// Takes a round in. False when the rate no longer limits any request.
    pub(super) fn step(&mut self, round: &Round) -> bool {
        let elapsed_s = round.elapsed.as_secs_f64();
        let (served, refused) = (round.served as f64, round.refused as f64);
        let memory_s = (SERVED_REQUESTS / self.rate).clamp(SERVED_S.0, SERVED_S.1);
        let keep = (-elapsed_s / memory_s).exp();
        self.served = self.served * keep + served;
        self.served_s = self.served_s * keep + elapsed_s;
        let keep = (1.0 - (served + refused) / JUDGED_REQUESTS).clamp(0.0, 0.9);
        self.judged = [self.judged[0] * keep + served, self.judged[1] * keep + refused];
        if round.served > 0 {
            self.mute = 0.0;
        }
        if round.limited || round.refused > 0 {
            self.busy_at = round.now;
        }
        let plateau_s = PLATEAU.max(round.round_trip * PLATEAU_ROUND_TRIPS).as_secs_f64();
        // What was sent before the cut is answered one round trip later.
        let since_cut = round.now.since(self.cut_at);
        let deaf = since_cut < round.elapsed + round.round_trip;
        if deaf {
            self.judged = [0.0; 2];
        } else if self.refuses_too_much(since_cut, plateau_s) && self.mute < MUTE_CUTS {
            self.cut(round.now);
            self.mute += 1.0;
            return true;
        }
        if round.limited {
            self.grown_s += elapsed_s;
        }
        let beyond = self.grown_s / plateau_s - 1.0;
        self.noise *= (-elapsed_s / NOISE_S).exp();
        self.rate = (self.known * (STEEPNESS * beyond.powi(3)).exp()).clamp(RATE_LEAST, RATE_MOST);
        round.now.since(self.busy_at) < CALM
    }

    fn refuses_too_much(&mut self, since_cut: Duration, plateau_s: f64) -> bool {
        let [served, refused] = self.judged;
        let sent = served + refused;
        let severe = refused > SEVERE * sent && sent >= JUDGED_LEAST;
        if since_cut < SETTLING && !severe {
            return false;
        }
        let expected = (self.noise * NOISE_SLACK + REFUSED_SHARE) * sent;
        if !severe && refused <= expected + 2.0 * expected.sqrt() {
            return false;
        }
        // Below the last limit nothing should be refused. If that goes on, cut for cut, it is not the rate's doing.
        let early = self.grown_s < plateau_s && !severe;
        if self.early == 0.0 {
            self.before = self.rate;
        }
        self.early = if early { self.early + 1.0 } else { 0.0 };
        if self.early > EARLY_CUTS {
            (self.noise, self.early) = (refused / sent, 0.0);
            self.known = self.before;
            return false;
        }
        true
    }

    fn cut(&mut self, now: Instant) {
        let below = (-STEEPNESS).exp();
        let served = if self.served_s > 0.0 { self.served / self.served_s } else { 0.0 };
        let to = (served * below).max(self.rate * CUT_LEAST).min(self.rate * below).clamp(RATE_LEAST, RATE_MOST);
        (self.rate, self.known) = (to, to / below);
        (self.cut_at, self.grown_s, self.judged) = (now, 0.0, [0.0; 2]);
    }
}
