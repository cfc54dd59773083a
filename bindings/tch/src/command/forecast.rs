//! How long a run will take and what it will cost, from its own pace; and when it has to stop.

use crate::ffi::Group;
use crate::meter::Meter;
use crate::notice::Notice;
use clap::Args;
use fuelrail::Stats;
use fuelrail_base::{Error, Kind, Result, read_duration};
use fuelrail_cost::diagnosis::{Diagnosis, Shares, diagnose};
use serde::Serialize;
use std::time::{Duration, Instant};

/// What bounds a run besides its work.
#[derive(Args, Clone, Debug)]
pub(crate) struct Limits {
    /// Stop with a checkpoint after so long (45m, 8h), and say as soon as the run will not end before
    #[arg(long, value_name = "TIME", value_parser = |text: &str| read_duration(text, "s"))]
    pub finish_by: Option<Duration>,
    /// What all ranks' machines cost together, per hour
    #[arg(long, value_name = "PRICE")]
    pub price_per_hour: Option<f64>,
    /// Stop with a checkpoint when this start has cost so much
    #[arg(long, value_name = "COST", requires = "price_per_hour")]
    pub stop_at_cost: Option<f64>,
}

impl Limits {
    /// The notice, which is also given when a limit is reached.
    ///
    /// # Errors
    /// `Usage` for a price or cost that is none.
    pub(crate) fn bound(&self, notice: Notice, begun: Instant) -> Result<Notice> {
        for (name, number) in [("price_per_hour", self.price_per_hour), ("stop_at_cost", self.stop_at_cost)] {
            if let Some(number) = number.filter(|number| !(*number > 0.0 && number.is_finite())) {
                let error = Error::new(Kind::Usage, format!("{name} is {number}"));
                return Err(error.with_hint("give a number above 0, in one currency"));
            }
        }
        let by_time = self.finish_by.map(|time| (time, "the time of --finish-by is over".to_owned()));
        let by_cost = self.price_per_hour.zip(self.stop_at_cost).map(|(price, cost)| {
            (Duration::from_secs_f64((cost / price * 3600.0).min(1e9)), format!("{cost} is spent (--stop-at-cost)"))
        });
        let first = by_time.into_iter().chain(by_cost).min_by_key(|(time, _)| *time);
        Ok(first.into_iter().fold(notice, |notice, (time, why)| notice.also_at(begun + time, why)))
    }
}

/// The pace of this start of a run, and what follows from it.
#[derive(Debug)]
pub(crate) struct Forecast {
    limits: Limits,
    begun: Instant,
    /// Samples of the whole run.
    pub total: u64,
    /// Samples and time at the end of the first step, in which much starts.
    first: Option<(u64, Instant)>,
    early: Option<f64>,
    late: bool,
}

/// How right a forecast was.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Judgement {
    /// Seconds this start would take, said when a tenth of its work was done.
    pub predicted_s: f64,
    /// Seconds it took.
    pub took_s: f64,
}

/// Share of the work after which the forecast is made that is judged at the end, and of the time to finish by after which it is believed.
const EARLY: f64 = 0.1;

impl Forecast {
    pub(crate) fn new(limits: Limits, begun: Instant, total: u64) -> Forecast {
        Forecast { limits, begun, total, first: None, early: None, late: false }
    }

    /// Takes a step's end. Returns what is to be said at once.
    pub(crate) fn step(&mut self, samples: u64, now: Instant) -> Option<String> {
        let Some((from, _)) = self.first else {
            self.first = Some((samples, now));
            return None;
        };
        let all = now.duration_since(self.begun) + self.left(samples, now)?;
        if samples.saturating_sub(from) as f64 >= EARLY * self.total.saturating_sub(from) as f64 {
            self.early.get_or_insert(all.as_secs_f64());
        }
        let believed = |time: &Duration| now.duration_since(self.begun) >= time.mul_f64(EARLY);
        let over = all.checked_sub(self.limits.finish_by.filter(|time| !self.late && believed(time))?)?;
        self.late = true;
        Some(format!(
            "at this pace the run ends {} after --finish-by; it will stop there with a checkpoint",
            shown(over)
        ))
    }

    /// Time that the rest takes at the pace so far. `None` while there is none.
    pub(crate) fn left(&self, samples: u64, now: Instant) -> Option<Duration> {
        let (from, since) = self.first?;
        let per_sample = now.duration_since(since).as_secs_f64() / samples.checked_sub(from).filter(|&n| n > 0)? as f64;
        Some(Duration::from_secs_f64((per_sample * self.total.saturating_sub(samples) as f64).min(1e9)))
    }

    /// What is left, and what it costs, for the screen.
    pub(crate) fn line(&self, samples: u64, now: Instant) -> Option<String> {
        let left = self.left(samples, now)?;
        let cost = self.limits.price_per_hour.map(|price| {
            let [spent, all] = [Duration::ZERO, left]
                .map(|more| (now.duration_since(self.begun) + more).as_secs_f64() / 3600.0 * price);
            format!(", {spent:.2} of {all:.2} spent")
        });
        Some(format!("{} left{}", shown(left), cost.unwrap_or_default()))
    }

    pub(crate) fn judged(&self, now: Instant) -> Option<Judgement> {
        Some(Judgement { predicted_s: self.early?, took_s: now.duration_since(self.begun).as_secs_f64() })
    }
}

/// A run that takes so much longer than forecast is slow.
const TOLERANCE: f64 = 1.1;

/// Why this start's steps were slower than predicted, or, where nothing was, than forecast after a tenth. All ranks take part.
pub(crate) fn diagnosed(
    predicted_s: Option<[f64; 2]>,
    judged: Option<Judgement>,
    meter: &Meter,
    stats: Option<Stats>,
    group: Option<&Group>,
) -> Result<Option<Diagnosis>> {
    let gates = stats.map_or_else(Vec::new, |stats| stats.gates);
    let decode = gates.iter().find(|gate| gate.name == "decode");
    let own = meter.shares(decode.map_or(0.0, |gate| gate.occupancy_mean / gate.capacity.max(1) as f64));
    let bytes = serde_json::to_vec(&own).expect("a plain structure");
    let all = group.map_or_else(|| Ok(vec![bytes.clone()]), |group| group.gather_bytes(&bytes))?;
    let ranks: Vec<Shares> = all.iter().filter_map(|bytes| serde_json::from_slice(bytes).ok()).collect();
    let forecast = judged.map(|Judgement { predicted_s, took_s }| {
        let step_s = own.wall_s * predicted_s / took_s.max(1e-9);
        [step_s / TOLERANCE, step_s * TOLERANCE]
    });
    Ok(predicted_s.or(forecast).and_then(|predicted_s| diagnose(predicted_s, &ranks)))
}

/// A time as people say it.
fn shown(time: Duration) -> String {
    match time.as_secs() {
        s @ 0..120 => format!("{s} s"),
        s @ 120..7200 => format!("{} min", s / 60),
        s => format!("{}:{:02} h", s / 3600, s / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pace_tells_what_is_left_and_what_it_costs() {
        let finish_by = Some(Duration::from_secs(200));
        let limits = Limits { finish_by, price_per_hour: Some(36.0), stop_at_cost: None };
        let begun = Instant::now();
        let at = |s| begun + Duration::from_secs(s);
        // Resumed at 1000 of 5000; the first step takes 20 s, the others 1 s per 20 samples.
        let mut forecast = Forecast::new(limits, begun, 5000);
        assert_eq!((forecast.step(1020, at(20)), forecast.left(1020, at(20))), (None, None));
        let told = forecast.step(1040, at(21)).unwrap();
        assert_eq!(forecast.left(1040, at(21)), Some(Duration::from_secs(198)));
        assert!(told.contains("19 s after --finish-by") && forecast.step(1420, at(40)).is_none(), "{told}");
        assert_eq!(forecast.line(3020, at(120)).unwrap(), "99 s left, 1.20 of 2.19 spent");
        let judged = forecast.judged(at(230)).unwrap();
        assert_eq!((judged.predicted_s.round(), judged.took_s.round()), (219.0, 230.0));
        assert_eq!([7, 150, 7500].map(|s| shown(Duration::from_secs(s))), ["7 s", "2 min", "2:05 h"]);
    }
}
