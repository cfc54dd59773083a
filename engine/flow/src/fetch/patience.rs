//! What the fetch stage does about connections that take long: to stand, or to say anything.

use super::FetchStage;
use crate::conn::{Conn, Context, State};
use fuelrail_base::{Duration, Error, Instant, Kind};
use fuelrail_io::Ring;

/// A connection that does not stand after so long is given up for one to another address.
const CONNECT_PATIENCE: Duration = Duration::from_millis(250);

impl FetchStage {
    /// Fails connections that have been silent for too long, or say next to nothing. Returns when it wants to look again.
    pub(crate) fn sweep<R: Ring>(&mut self, ring: &mut R, now: Instant) -> Option<Instant> {
        if now >= self.next_sweep {
            self.next_sweep = now.after(self.stall_after / 4);
            let (mut stuck, patience) = (Vec::new(), self.stall_after);
            for (at, conn) in self.conns.iter_mut().filter(|(_, c)| c.state != State::Closing && c.queued() > 0) {
                let secs = patience.as_secs_f64();
                let trickles = conn.trickles(patience, now);
                if now.since(conn.last_heard) >= patience {
                    stuck.push((at, Error::new(Kind::Stalled, format!("no byte came for {secs} s"))));
                } else if let Some(came) = trickles {
                    stuck.push((at, Error::new(Kind::Stalled, format!("only {came} bytes came in {secs} s"))));
                }
            }
            for (_, conn) in &mut self.conns {
                if now.since(conn.last_heard) >= self.stall_after / 4
                    && let Some(op) = conn.lose_patience()
                {
                    ring.cancel(op);
                }
            }
            for (at, error) in stuck {
                if self.conns[at].state == State::Connecting {
                    self.addresses.failed(self.conns[at].addr, now);
                }
                let mut cx = Context {
                    now,
                    predictor: &mut self.predictor,
                    outcomes: &mut self.outcomes,
                    copied_bytes: &mut self.stats.copied_bytes,
                };
                self.conns[at].fail(error, &mut cx);
                self.after(ring, at);
            }
        }
        let hasten = self.hasten(ring, now);
        let sweep = self.is_busy().then_some(self.next_sweep);
        [hasten, sweep].into_iter().flatten().min()
    }

    /// Gives up connections that take long to stand, where another address may be better (as in Happy Eyeballs, RFC 8305):
    /// their requests go there. Returns when it wants to look again.
    fn hasten<R: Ring>(&mut self, ring: &mut R, now: Instant) -> Option<Instant> {
        if self.connecting == 0 {
            return None;
        }
        let late = |conn: &Conn| conn.opened_at.after(CONNECT_PATIENCE);
        while let Some((at, conn)) = self.conns.iter().find(|(_, conn)| {
            conn.state == State::Connecting && late(conn) <= now && self.addresses.has_other(conn.addr, now)
        }) {
            self.addresses.failed(conn.addr, now);
            self.give_up(ring, now, at);
        }
        let waiting = self.conns.iter().map(|(_, conn)| conn).filter(|conn| conn.state == State::Connecting);
        waiting.filter(|conn| self.addresses.has_other(conn.addr, now)).map(late).min().map(|at| at.max(now))
    }
}
