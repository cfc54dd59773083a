//! A job on spot machines, what it runs on, and what is safe for its deadline.

use fuelrail_base::Result;
use serde::Serialize;

use crate::usage;

/// Most ticks between start and deadline.
const TICKS_MAX: f64 = 1e6;
/// What rounding may take from a sum over all ticks, as a share of the deadline.
const ROUNDING: f64 = 1e-9;

/// The job and its prices.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Job {
    /// Work, hours on a machine.
    pub job_hours: f64,
    /// From the start to the deadline, hours.
    pub deadline_hours: f64,
    /// From the start of a machine to its first work, hours.
    pub changeover_hours: f64,
    /// Price of a spot machine, an hour.
    pub spot_price: f64,
    /// Price of an on-demand machine, an hour.
    pub on_demand_price: f64,
}

/// What the job runs on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Machine {
    None,
    Spot,
    OnDemand,
}

/// All that a policy sees.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View {
    pub(crate) elapsed_hours: f64,
    pub(crate) left_hours: f64,
    /// Of the machine's changeover.
    pub(crate) pending_hours: f64,
    pub(crate) available: bool,
    pub(crate) machine: Machine,
}

impl Job {
    /// # Errors
    /// `Usage` for numbers that are out of range (1e-9 to 1e9), and for a deadline that no machine can meet.
    pub fn validate(&self) -> Result<()> {
        let Job { job_hours, deadline_hours, changeover_hours, spot_price, on_demand_price } = *self;
        let named = [
            ("the job's hours", job_hours),
            ("the deadline", deadline_hours),
            ("the spot price", spot_price),
            ("the on-demand price", on_demand_price),
        ];
        if let Some((name, value)) = named.into_iter().find(|(_, value)| !(1e-9..=1e9).contains(value)) {
            return usage(format!("{name} is {value}"), "give a number from 1e-9 to 1e9");
        }
        if !(changeover_hours.is_finite() && changeover_hours >= 0.0) {
            return usage(format!("the changeover is {changeover_hours} hours"), "give 0 or more");
        }
        if job_hours + changeover_hours > deadline_hours {
            return usage(
                format!(
                    "{job_hours} hours of work and {changeover_hours} of changeover do not fit into {deadline_hours}"
                ),
                "give a later deadline: not even an on-demand machine meets this one",
            );
        }
        Ok(())
    }

    pub(super) fn rounding_hours(&self) -> f64 {
        self.deadline_hours * ROUNDING
    }

    /// Ticks from the start to the deadline.
    pub(super) fn ticks(&self, tick_hours: f64) -> Result<usize> {
        let ticks = (self.deadline_hours / tick_hours).ceil();
        if ticks > TICKS_MAX {
            return usage(
                format!("the deadline is {ticks} ticks after the start, more than {TICKS_MAX}"),
                "check the trace's gap_seconds",
            );
        }
        Ok(ticks as usize)
    }

    /// Whether the deadline is met in the worst case when the next `tick_hours` are spent on `machine`.
    pub(super) fn is_safe(&self, view: &View, machine: Machine, tick_hours: f64) -> bool {
        let pending = if machine == view.machine { view.pending_hours } else { self.changeover_hours };
        let worked = if machine == Machine::None { 0.0 } else { (tick_hours - pending).max(0.0) };
        let left = view.left_hours - worked;
        let restart =
            if machine == Machine::OnDemand { (pending - tick_hours).max(0.0) } else { self.changeover_hours };
        let end_hours = match left <= 0.0 {
            // It ends within these hours.
            true => view.elapsed_hours + pending + view.left_hours,
            false => view.elapsed_hours + tick_hours + restart + left,
        };
        end_hours <= self.deadline_hours + self.rounding_hours()
    }
}
