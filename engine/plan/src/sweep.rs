//! Which page of a listing to request next, several at a time, when each page only names the next one.
//!
//! A listing is pages in a row: each names the next. To walk it in several places at once, a stretch of keys that is being listed is
//! split at a key between where it stands and where it ends, chosen without knowing what lies there: by halving what a character
//! may be. A first page from there decides: an empty one shortens the stretch, any other makes a second stretch of
//! it. Empty guesses are bounded by the pages that had keys, so that the worst keys cost an eighth more requests than
//! one walk. Owns where each stretch stands, not what it brought. Never sends a request.

use fuelrail_base::{Error, Kind, Result};
use std::collections::VecDeque;

/// A stretch of keys, by the order it was found in.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Stretch(pub u32);

/// A request for one page.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PageRequest {
    /// The stretch it belongs to: pass it back with the response.
    pub stretch: Stretch,
    /// What all keys begin with: its place among the prefixes given.
    pub prefix: usize,
    /// List what comes after this key. Only on first pages.
    pub after: Option<String>,
    /// The server's continuation token, where there is one.
    pub token: Option<String>,
}

/// A stretch may be split once so many of its pages came: a short listing is over by then.
const PAGES_BEFORE_SPLIT: u32 = 2;
/// Guesses without a key that are made in any case; beyond, one for so many pages that brought some.
const FRUITLESS_FREE: u64 = 8;
const PAGES_PER_FRUITLESS: u64 = 8;
/// Pages without a key that a server may send one after the other.
const EMPTY_PAGES_MAX: u32 = 1000;
/// How many characters after the first that differs a key is looked for.
const DEPTH_MAX: usize = 64;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum State {
    #[default]
    Waiting,
    Asked,
    Done,
}

#[derive(Debug, Default)]
struct Walk {
    prefix: usize,
    /// Its first key: where keys differ from it, they are likely to go on differing.
    first: Option<String>,
    /// Everything up to this key is listed, or another's.
    at: Option<String>,
    token: Option<String>,
    /// The last key that belongs to it.
    until: Option<String>,
    /// Where it was split off from, until its first page proves that there is something.
    guessed_from: Option<usize>,
    /// A guess about its end is on its way.
    is_guessed: bool,
    pages: u32,
    empty_pages: u32,
    split_at: u64,
    state: State,
}

/// A listing under way.
#[derive(Debug)]
pub struct Sweep {
    prefixes: Vec<String>,
    walks: Vec<Walk>,
    /// Walks in the order of their keys.
    order: Vec<u32>,
    waiting: VecDeque<usize>,
    width: usize,
    in_flight: usize,
    splits: u64,
    fruitless: u64,
    pages: u64,
    may_split: bool,
}

impl Sweep {
    /// A listing of everything under these prefixes, none of them the start of another one, with at most `width` pages requested at
    /// once. Where the server cannot list after a key, `may_split` is false: then every prefix is one walk.
    pub fn new(prefixes: Vec<String>, width: usize, may_split: bool) -> Sweep {
        let walks: Vec<Walk> = (0..prefixes.len()).map(|prefix| Walk { prefix, ..Walk::default() }).collect();
        Sweep {
            order: (0..).take(walks.len()).collect(),
            waiting: (0..walks.len()).collect(),
            walks,
            prefixes,
            width: width.max(1),
            in_flight: 0,
            splits: 0,
            fruitless: 0,
            pages: 0,
            may_split,
        }
    }

    /// The next page to request; `None` when enough are on their way, or nothing is left.
    pub fn next_request(&mut self) -> Option<PageRequest> {
        if self.in_flight == self.width {
            return None;
        }
        let at = self.waiting.pop_front().or_else(|| self.split())?;
        self.in_flight += 1;
        let walk = &mut self.walks[at];
        walk.state = State::Asked;
        let after = if walk.token.is_none() { walk.at.clone() } else { None };
        Some(PageRequest { stretch: name(at), prefix: walk.prefix, after, token: walk.token.clone() })
    }

    /// Takes the response to a [`PageRequest`]: its keys in the server's order, and the token of the next page, if there is one. Returns how
    /// many keys, from the first on, belong to the stretch; other stretches bring the rest.
    ///
    /// # Errors
    /// `Protocol` when the server repeats a page, or keys do not come in the order that its earlier pages kept to.
    pub fn answered<'k>(
        &mut self,
        stretch: Stretch,
        len: usize,
        key: impl Fn(usize) -> &'k str,
        next: Option<String>,
    ) -> Result<usize> {
        let at = stretch.0 as usize;
        self.in_flight -= 1;
        if let Some(from) = self.walks[at].guessed_from.take() {
            self.walks[from].is_guessed = false;
            if !self.proved(at, from, (len, &key), next.is_some()) {
                self.walks[at].state = State::Done;
                return Ok(0);
            }
        }
        self.check_order(at, len, &key)?;
        let walk = &mut self.walks[at];
        if next.is_some() && next == walk.token {
            return Err(Error::new(Kind::Protocol, "the listing repeats one page for ever")
                .with_hint("the server's continuation tokens are broken: use a manifest"));
        }
        let keys = match &walk.until {
            Some(until) => (0..len).take_while(|n| key(*n) <= until.as_str()).count(),
            None => len,
        };
        walk.pages += 1;
        self.pages += u64::from(len > 0);
        walk.empty_pages = if len == 0 { walk.empty_pages + 1 } else { 0 };
        if walk.empty_pages > EMPTY_PAGES_MAX {
            return Err(Error::new(
                Kind::Protocol,
                "the listing has a thousand pages without a key, one after the other",
            )
            .with_hint("the server's continuation tokens are broken: use a manifest"));
        }
        if len > 0 {
            walk.first.get_or_insert_with(|| key(0).to_owned());
            walk.at = Some(key(len - 1).to_owned());
        }
        let is_at_end = keys < len || walk.until.is_some() && walk.at >= walk.until;
        walk.token = next;
        if walk.token.is_none() || is_at_end {
            walk.state = State::Done;
        } else {
            walk.state = State::Waiting;
            self.waiting.push_back(at);
        }
        Ok(keys)
    }

    /// Whether every page has come.
    pub fn is_done(&self) -> bool {
        self.in_flight == 0 && self.waiting.is_empty()
    }

    /// The stretches in the order of their keys. What was a guess and brought nothing is not among them.
    pub fn in_order(&self) -> impl Iterator<Item = Stretch> + '_ {
        self.order.iter().map(|at| Stretch(*at))
    }

    /// Splits the walk whose last split is longest ago. Returns the guess to request.
    fn split(&mut self) -> Option<usize> {
        if !self.may_split || self.fruitless >= FRUITLESS_FREE + self.pages / PAGES_PER_FRUITLESS {
            return None;
        }
        let fits = |walk: &Walk| {
            walk.state == State::Asked
                && walk.guessed_from.is_none()
                && !walk.is_guessed
                && walk.pages >= PAGES_BEFORE_SPLIT
        };
        let mut found: Vec<usize> = (0..self.walks.len()).filter(|at| fits(&self.walks[*at])).collect();
        found.sort_by_key(|at| self.walks[*at].split_at);
        let (from, guess) = found.into_iter().find_map(|from| {
            let Walk { prefix, first, at, until, .. } = &self.walks[from];
            let fixed = self.prefixes[*prefix].len();
            Some((from, between(first.as_deref()?, at.as_deref()?, until.as_deref(), fixed)?))
        })?;
        self.splits += 1;
        let lower = &mut self.walks[from];
        (lower.is_guessed, lower.split_at) = (true, self.splits);
        let upper = Walk {
            prefix: lower.prefix,
            at: Some(guess),
            until: lower.until.clone(),
            guessed_from: Some(from),
            split_at: self.splits,
            ..Walk::default()
        };
        self.walks.push(upper);
        Some(self.walks.len() - 1)
    }

    /// Decides by the first page of a guess whether it becomes a stretch of its own.
    fn proved<'k>(
        &mut self,
        at: usize,
        from: usize,
        (len, key): (usize, &impl Fn(usize) -> &'k str),
        has_more: bool,
    ) -> bool {
        let guess = self.walks[at].at.clone().unwrap_or_default();
        if len > 0 && key(0) <= guess.as_str() {
            // This server does not list after a key, or not in order: from now on each prefix is one walk.
            self.may_split = false;
            return false;
        }
        let lower = &self.walks[from];
        let is_passed = lower.state == State::Done || lower.at.as_deref() >= Some(guess.as_str());
        let is_empty = len == 0 || lower.until.as_deref().is_some_and(|until| key(0) > until);
        if is_passed || is_empty {
            self.fruitless += 1;
        }
        if is_passed || is_empty && has_more && len == 0 {
            return false;
        }
        self.walks[at].until = self.walks[from].until.replace(guess);
        if !is_empty {
            let place = self.order.iter().position(|n| *n as usize == from).unwrap_or(self.order.len());
            self.order.insert(place + 1, name(at).0);
        }
        !is_empty
    }

    /// Keys out of order are fine within one walk, but prevent a split.
    fn check_order<'k>(&mut self, at: usize, len: usize, key: &impl Fn(usize) -> &'k str) -> Result<()> {
        let walk = &self.walks[at];
        let from_before = len == 0 || walk.at.as_deref().is_none_or(|before| before < key(0));
        if from_before && (1..len).all(|n| key(n - 1) < key(n)) {
            return Ok(());
        }
        self.may_split = false;
        if self.walks.iter().all(|walk| walk.until.is_none()) {
            return Ok(());
        }
        Err(Error::new(Kind::Protocol, "the listing's keys come out of order")
            .with_hint("the server does not list as S3 does: name the objects in a manifest"))
    }
}

fn name(at: usize) -> Stretch {
    Stretch(u32::try_from(at).unwrap_or(u32::MAX))
}

/// A text after `at`, up to which everything from `first` on is listed, and before `until`: one character before those that
/// differed so far, because the nearer one surely hits and brings little, and the farther ones hardly ever do. `None` when the keys
/// are too near.
fn between(first: &str, at: &str, until: Option<&str>, fixed: usize) -> Option<String> {
    let bound = until.map_or(fixed, |until| same(at, until));
    let differs = same(first, at);
    let before = at[..differs].char_indices().next_back().map_or(0, |(before, _)| before);
    let from = before.max(bound).max(fixed);
    let mut head = at.get(..from)?.to_owned();
    let mut rest = at[from..].chars();
    let mut limit = until.filter(|_| from == bound).and_then(|until| until[from..].chars().next()).map(u32::from);
    for _ in 0..DEPTH_MAX {
        let low = rest.next();
        let bottom = low.map_or(0x1F, u32::from);
        let top = limit.take().unwrap_or(if bottom < 0x7E { 0x7F } else { char::MAX as u32 });
        // Keys of digits and letters mostly continue with those.
        let usual = match low {
            Some('0'..='9') => '9' as u32 + 1,
            Some('a'..='z') => 'z' as u32 + 1,
            Some('A'..='Z') => 'Z' as u32 + 1,
            _ => top,
        };
        let middle = |top: u32| (top > bottom + 1).then(|| char::from_u32(bottom + (top - bottom) / 2)).flatten();
        if let Some(middle) = middle(usual.min(top)).or_else(|| middle(top)) {
            head.push(middle);
            return Some(head);
        }
        head.push(low?);
    }
    None
}

/// Length of what two texts begin with.
fn same(one: &str, other: &str) -> usize {
    one.chars().zip(other.chars()).take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum()
}
