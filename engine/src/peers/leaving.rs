//! Hands over what this rank keeps, before its machine is taken away: every other rank is asked to fetch what it keeps from then on.
//!
//! Walks one epoch of the order from where the run stands, so that what is used first goes first. Never touches a block: they are
//! asked for as any block is.

use super::Others;
use crate::client::{Client, on_thread, within as no_longer_than};
use crate::ranks::HandOver;
use core::cell::Cell;
use fuelrail_base::{BlockId, Error, Kind, Result};
use fuelrail_plan::homes::Homes;
use fuelrail_plan::order::OrderName;
use fuelrail_plan::run::Cursor;
use fuelrail_plan::schedule::UseTime;
use futures_util::{StreamExt, stream};
use hyper::{Method, StatusCode};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Blocks that are asked for at once, of all ranks together.
const AT_ONCE: usize = 16;
/// How long one may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// No machine stays for so long.
const LONGEST: Duration = Duration::from_secs(1 << 30);
/// A rank that has failed so often in a row is not asked any more.
const FAILURES_MAX: u32 = 3;

/// A block, when it is used, and which rank keeps it afterwards.
type Offer = (BlockId, UseTime, u16);

impl Others {
    /// Hands over what is used from `from` on, for so long.
    pub(super) fn hand_over(&self, from: Cursor, within: Duration) -> Result<HandOver> {
        if self.run.order().name() == OrderName::Sticky && self.shares_node {
            let cause = "handing over under the order sticky, where other ranks of this node leave, too: which rank keeps a block then \
                         depends on how many there are";
            return Err(Error::new(Kind::Usage, cause).with_hint("use order = global, or let the bucket send it again"));
        }
        on_thread("fuelrail-leaving", async || {
            let clients = self.routes.iter().map(|route| route.as_ref().map(|route| Client::new(route, PATIENCE)));
            let clients = clients.map(Option::transpose).collect::<Result<Vec<_>>>()?;
            let failures: Vec<_> = clients.iter().map(|_| Cell::new(0)).collect();
            let handed = Cell::new(HandOver::default());
            let offer = async |(block, at, to): Offer| {
                let (failed, client) = (&failures[usize::from(to)], &clients[usize::from(to)]);
                let taken = match client {
                    Some(client) if failed.get() < FAILURES_MAX => self.offer(client, block, at).await,
                    _ => Err(Error::new(Kind::Network, "it has failed before")),
                };
                failed.set(if taken.is_ok() { 0 } else { failed.get() + 1 });
                let mut sum = handed.get();
                match taken {
                    Ok(true) => {
                        sum.blocks += 1;
                        sum.bytes += self.objects.catalog().block_len(block);
                    }
                    Ok(false) => {}
                    Err(_) => sum.failed += 1,
                }
                handed.set(sum);
            };
            let until = Instant::now() + within.min(LONGEST);
            let goes_on = || Instant::now() < until && !self.closed.load(Ordering::Relaxed);
            let mut afterwards = self.homes.clone();
            afterwards.leaves(self.homes.rank());
            let offers = self.offers(&afterwards, from, &goes_on);
            let work = stream::iter(offers).for_each_concurrent(AT_ONCE, offer);
            let in_time = tokio::time::timeout(within, work).await.is_ok();
            Ok(HandOver { complete: in_time && goes_on(), ..handed.get() })
        })
    }

    /// What this rank keeps of an epoch and others keep `afterwards`, by when it is used, while it `goes_on`: finding the next one of very many
    /// takes a while.
    fn offers(&self, afterwards: &Homes, from: Cursor, goes_on: impl Fn() -> bool) -> impl Iterator<Item = Offer> {
        let (samples, epochs) = (self.run.config().samples, self.run.config().epochs);
        let first = from.epoch.saturating_mul(samples).saturating_add(from.position);
        let end = first.saturating_add(samples).min(epochs.saturating_mul(samples));
        let of = move |at| {
            let (sample, at) = (self.run.sample_at(at / samples, at % samples), UseTime(at));
            let blocks = (0..self.objects.catalog().blocks(sample)).map(move |index| BlockId { sample, index });
            let own = blocks.filter(|block| self.homes.of(*block) == self.homes.rank());
            own.map(move |block| (block, at, afterwards.of(block))).filter(|offer| offer.2 != self.homes.rank())
        };
        (first..end).take_while(move |_| goes_on()).flat_map(of)
    }

    /// Whether the rank has fetched it; it cannot where this one does not have it either.
    async fn offer(&self, client: &Client<'_>, block: BlockId, at: UseTime) -> Result<bool> {
        let (catalog, leaves) = (self.objects.catalog(), format!("&leaves={}", self.homes.rank()));
        let mut ask = self.ask(Method::POST, block.sample, at, leaves);
        let tag = self.objects.strong_etag(block.sample);
        if !tag.is_empty() {
            ask = ask.header("if-match", tag);
        }
        if catalog.blocks(block.sample) > 1 {
            let first = catalog.block_first(block);
            ask = ask.header("range", format!("bytes={first}-{}", first + catalog.block_len(block) - 1));
        }
        let answer = no_longer_than(PATIENCE, async { client.send_whole(&ask).await?.read().await }).await??;
        match answer.status {
            StatusCode::NO_CONTENT => Ok(true),
            StatusCode::GATEWAY_TIMEOUT => Ok(false),
            status => Err(Error::new(Kind::Server, format!("a rank answered {status}"))),
        }
    }
}
