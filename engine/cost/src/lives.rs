//! How long spot machines live: what was seen of them (Kaplan and Meier 1958), and lives drawn for a plan.

use fuelrail_base::Result;
use fuelrail_base::prng::Prng;
use serde::Serialize;

use crate::scenario::Machine;
use crate::table::{Row, Table};
use crate::{HOUR_S, ONE_IN_TWENTY, usage};

/// Hours of a day.
const DAY: usize = 24;
/// Ages of a curve that a plan takes.
const AGES_MAX: usize = 96;

/// An age, and the share of machines that were taken away up to it.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Age {
    /// Hours.
    pub hours: f64,
    /// Share taken away.
    pub ended: f64,
    /// Its interval, 90 % (Greenwood).
    pub low: f64,
    /// See `low`.
    pub high: f64,
}

/// The lives of one device in one region.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Curve {
    /// The region.
    pub region: String,
    /// The device.
    pub device: String,
    /// Machines seen.
    pub lives: usize,
    /// Those that were taken away; the others still lived when they were seen last.
    pub ended: usize,
    /// Every age at which one was taken away, and the highest that was seen.
    pub ages: Vec<Age>,
    /// For each hour of the day, how many times as often as in the mean machines are taken away; where the table has `started_hour`.
    pub hourly: Option<[f64; DAY]>,
}

/// One machine.
struct Life {
    hours: f64,
    ended: bool,
    started: Option<f64>,
}

/// The curves of a table with the columns `region,device,age_hours,ended` and perhaps `started_hour`, in the order of their first rows.
///
/// # Errors
/// `Usage` naming the line.
pub fn curves(table: &Table) -> Result<Vec<Curve>> {
    if !table.has(&["region", "device", "age_hours", "ended"]) {
        return usage(
            format!("lives need the columns region,device,age_hours,ended, not {}", table.columns()),
            "give one machine a line; ended is 1 where it was taken away, and 0 where it still lived",
        );
    }
    let mut groups: Vec<((&str, &str), Vec<Life>)> = Vec::new();
    for row in table.rows() {
        let key = (row.text("region").unwrap_or_default(), row.text("device").unwrap_or_default());
        let life = life(&row, table.has(&["started_hour"]))?;
        match groups.iter_mut().find(|(known, _)| *known == key) {
            Some((_, lives)) => lives.push(life),
            None => groups.push((key, vec![life])),
        }
    }
    Ok(groups.into_iter().map(|((region, device), lives)| curve(region, device, lives)).collect())
}

fn life(row: &Row<'_>, has_hours: bool) -> Result<Life> {
    let hours = row.positive("age_hours")?;
    let ended = match row.text("ended") {
        Some("1" | "true" | "ended") => true,
        Some("0" | "false" | "censored") => false,
        other => {
            let cause = format!("line {}: ended is '{}'", row.line(), other.unwrap_or_default());
            return usage(cause, "write 1 where the machine was taken away, 0 where it still lived");
        }
    };
    if !has_hours {
        return Ok(Life { hours, ended, started: None });
    }
    let text = row.text("started_hour").unwrap_or_default();
    match text.parse::<f64>() {
        Ok(hour) if (0.0..DAY as f64).contains(&hour) => Ok(Life { hours, ended, started: Some(hour) }),
        _ => usage(format!("line {}: started_hour is '{text}'", row.line()), "give the hour of the day, 0 to below 24"),
    }
}

fn curve(region: &str, device: &str, mut lives: Vec<Life>) -> Curve {
    lives.sort_by(|a, b| a.hours.total_cmp(&b.hours));
    let (count, ended) = (lives.len(), lives.iter().filter(|life| life.ended).count());
    let (mut alive, mut variance, mut ages) = (1.0, 0.0, Vec::new());
    let mut at = 0;
    for group in lives.chunk_by(|a, b| a.hours == b.hours) {
        // Machines that were last seen at this age were at risk, too.
        let (risk, gone) = ((count - at) as f64, group.iter().filter(|life| life.ended).count() as f64);
        at += group.len();
        let is_last = at == count;
        if gone == 0.0 && !is_last {
            continue;
        }
        // The share that is alive never reaches 0: half a machine is left.
        alive = (alive * (1.0 - gone / risk)).max(0.5 / count as f64);
        variance += if gone < risk { gone / (risk * (risk - gone)) } else { 0.0 };
        let spread = ONE_IN_TWENTY * alive * f64::sqrt(variance);
        let (low, high) = ((1.0 - alive - spread).max(0.0), (1.0 - alive + spread).min(1.0));
        ages.push(Age { hours: group[0].hours, ended: 1.0 - alive, low, high });
    }
    let (region, device) = (region.to_owned(), device.to_owned());
    Curve { region, device, lives: count, ended, ages, hourly: hourly(&lives) }
}

/// The hazard of each hour of the day over that of all: lives taken away over hours lived, with one more life of the mean hazard in each.
fn hourly(lives: &[Life]) -> Option<[f64; DAY]> {
    let (mut lived, mut gone) = ([0.0; DAY], [0.0; DAY]);
    for life in lives {
        let (mut hour, mut left) = (life.started?, life.hours % DAY as f64);
        lived.iter_mut().for_each(|hours| *hours += (life.hours / DAY as f64).floor());
        while left > 0.0 {
            let part = (hour.floor() + 1.0 - hour).min(left);
            lived[hour as usize % DAY] += part;
            (hour, left) = ((hour.floor() + 1.0) % DAY as f64, left - part);
        }
        let end = (life.started? + life.hours) % DAY as f64;
        gone[end as usize % DAY] += f64::from(u8::from(life.ended));
    }
    let mean = gone.iter().sum::<f64>() / lived.iter().sum::<f64>();
    (mean > 0.0).then(|| core::array::from_fn(|hour| (gone[hour] + 1.0) / (lived[hour] * mean + 1.0)))
}

impl Machine {
    /// Takes what was seen of machines of its name in the region of its spot price.
    ///
    /// # Errors
    /// `Usage` where there is none, or the machine says otherwise how long it lives; its object is the file's name in the scenario.
    pub fn take_lives(&mut self, curves: &[Curve]) -> Result<()> {
        let file = self.lives.clone().unwrap_or_default();
        let region = self.spot.as_ref().map_or("", |spot| &spot.region);
        let refused = |cause: String, cure: &str| usage(cause, cure).map_err(|error| error.with_object(file.clone()));
        if self.revoked_within_24h.is_some() || !self.revoked_by_age.is_empty() {
            return refused(
                format!("machine '{}' has both lives and a share that is revoked", self.name),
                "leave out revoked_within_24h and revoked_by_age",
            );
        }
        let Some(curve) = curves.iter().find(|curve| curve.device == self.name && curve.region == region) else {
            let there: Vec<String> =
                curves.iter().map(|curve| format!("{} in {}", curve.device, curve.region)).collect();
            let cause = format!("no lives of {} in '{region}', the region of its spot price", self.name);
            return refused(cause, &format!("the table has {}", there.join(", ")));
        };
        let every = curve.ages.len().div_ceil(AGES_MAX).max(1);
        let kept = curve.ages.iter().rev().step_by(every).map(|age| [age.hours, age.ended]);
        self.revoked_by_age = kept.collect();
        self.revoked_by_age.reverse();
        self.hourly = curve.hourly;
        Ok(())
    }
}

/// How long a machine lives.
pub(crate) struct Lifetimes<'m> {
    /// Hours and share taken away up to then.
    ages: &'m [[f64; 2]],
    hourly: Option<&'m [f64; DAY]>,
    /// At the mean hazard of all ages, which holds after them; absent where none is taken away.
    pub(crate) mean_s: Option<f64>,
}

impl<'m> Lifetimes<'m> {
    pub(crate) fn of(machine: &'m Machine, spot: bool) -> Lifetimes<'m> {
        let of_a_day = machine.revoked_within_24h.map(|share| [DAY as f64, share]);
        let known = machine.revoked_by_age.last().copied().or(of_a_day);
        let known = known.filter(|[_, share]| spot && *share > 0.0);
        let mean_s = known.map(|[hours, share]| mean_s(hours, share));
        Lifetimes { ages: &machine.revoked_by_age, hourly: machine.hourly.as_ref(), mean_s }
    }

    /// Whether it matters at which hour a machine starts.
    pub(crate) fn knows_hours(&self) -> bool {
        self.hourly.is_some()
    }

    /// A life that starts at this hour of the day, seconds.
    pub(crate) fn draw_s(&self, hour: f64, prng: &mut Prng) -> f64 {
        let (drawn, mut before) = (prng.unit(), [0.0, 0.0]);
        let Some(mean_s) = self.mean_s else { return f64::INFINITY };
        if let Some(hourly) = self.hourly {
            return self.draw_hours(hourly, hour, -(1.0 - drawn).ln(), mean_s / HOUR_S) * HOUR_S;
        }
        for age in self.ages {
            if drawn < age[1] {
                let within = (drawn - before[1]) / (age[1] - before[1]);
                return (before[0] + within * (age[0] - before[0])) * HOUR_S;
            }
            before = *age;
        }
        before[0] * HOUR_S - mean_s * ((1.0 - drawn) / (1.0 - before[1])).ln()
    }

    /// Hours until the hazard has summed up to `left`.
    fn draw_hours(&self, hourly: &[f64; DAY], hour: f64, mut left: f64, mean: f64) -> f64 {
        let (mut age, mut alive) = (0.0, 1.0);
        for [until, ended] in self.ages {
            let hazard = (alive / (1.0 - ended)).ln() / (until - age);
            if let Some(hours) = within(hourly, hour + age, until - age, hazard, &mut left) {
                return age + hours;
            }
            (age, alive) = (*until, 1.0 - ended);
        }
        // Whole days at once.
        let day = hourly.iter().sum::<f64>() / mean;
        age += DAY as f64 * (left / day).floor();
        left %= day;
        age + within(hourly, hour + age, 2.0 * DAY as f64, 1.0 / mean, &mut left).unwrap_or(0.0)
    }
}

/// Hours from `clock` on in which `left` of the hazard is used up; `None` where `span` hours do not, which are taken off it.
fn within(hourly: &[f64; DAY], clock: f64, span: f64, hazard: f64, left: &mut f64) -> Option<f64> {
    let mut hour = clock.floor();
    while hour < clock + span {
        let (from, to) = (clock.max(hour), (clock + span).min(hour + 1.0));
        let rate = hazard * hourly[hour as usize % DAY];
        let taken = rate * (to - from);
        if taken > 0.0 && taken >= *left {
            return Some(from - clock + *left / rate);
        }
        *left -= taken;
        hour += 1.0;
    }
    None
}

/// Mean life at a constant hazard that takes this share within these hours.
fn mean_s(hours: f64, share: f64) -> f64 {
    -hours * HOUR_S / (1.0 - share).ln()
}
