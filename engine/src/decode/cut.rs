//! Chooses which part of a picture becomes the sample, and whether it is mirrored: arithmetic on sizes, and random draws
//! that are a pure function of seed, epoch and sample, so a resumed run or another number of ranks sees the same pixels.
//!
//! Reads and writes no pixels.

use super::{Decode, Fit};
use fuelrail_base::SampleId;
use fuelrail_base::prng::{Prng, mix64};

/// A part of a picture, in pixels, and whether it is mirrored left to right.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Cut {
    pub left: u32,
    pub top: u32,
    pub width: u32,
    pub height: u32,
    pub flip: bool,
}

/// What one sample's draws in one epoch are derived from.
#[derive(Clone, Copy, Debug)]
pub(super) struct DrawKey {
    pub seed: u64,
    pub epoch: u64,
    pub id: SampleId,
}

/// Separates the draws for augmentation from those for the order, which use the same seed.
const AUGMENTATION: u64 = 0xA06_3E47_A710_0001;

impl DrawKey {
    fn draws(self) -> Prng {
        let run = mix64(self.seed ^ AUGMENTATION);
        Prng::new(mix64(mix64(run ^ self.epoch) ^ self.id.0))
    }
}

/// Bounds of a random crop's area, as a share of the picture's, and the number of draws before the centre crop is used instead.
const AREA: (f64, f64) = (0.08, 1.0);
const DRAWS_MAX: u32 = 10;
/// Natural logarithm of 4/3: the ratio of width to height is drawn between e^-this and e^this, uniformly in the logarithm.
const RATIO_LOG: f64 = 0.287_682_072_451_780_9;

/// Returns the cut of a picture of `width` × `height` pixels; `None` when `Fit::Exact` wants another size.
pub(super) fn cut(wanted: &Decode, width: u32, height: u32, draw_key: DrawKey) -> Option<Cut> {
    let mut draws = draw_key.draws();
    let flip = wanted.flip && draws.next() >> 63 == 1;
    let part = match wanted.fit {
        Fit::Exact if (width, height) != (wanted.width, wanted.height) => return None,
        Fit::Exact => whole(width, height),
        Fit::CenterCrop => centre(width, height, wanted.width, wanted.height),
        Fit::RandomCrop => random(width, height, &mut draws),
    };
    Some(Cut { flip, ..part })
}

/// Of a sound of `frames`, where the part that becomes the sample begins, and how many frames it has; `None` when `Fit::Exact` wants another
/// length.
pub(super) fn stretch(wanted: &Decode, frames: u64, draw_key: DrawKey) -> Option<(u64, u64)> {
    let taken = frames.min(wanted.width.into());
    let spare = frames - taken;
    match wanted.fit {
        Fit::Exact => (frames == u64::from(wanted.width)).then_some((0, taken)),
        Fit::CenterCrop => Some((spare / 2, taken)),
        Fit::RandomCrop => Some((draw_key.draws().below(spare + 1), taken)),
    }
}

fn whole(width: u32, height: u32) -> Cut {
    Cut { left: 0, top: 0, width, height, flip: false }
}

/// Returns the largest centred part whose sides have the ratio `across` to `down`.
fn centre(width: u32, height: u32, across: u32, down: u32) -> Cut {
    let (w, h, a, d) = (u64::from(width), u64::from(height), u64::from(across), u64::from(down));
    let rounded = |n: u64, by: u64, most: u32| u32::try_from((n + by / 2) / by).map_or(most, |n| n.clamp(1, most));
    let (cut_width, cut_height) =
        if w * d >= h * a { (rounded(h * a, d, width), height) } else { (width, rounded(w * d, a, height)) };
    Cut {
        left: (width - cut_width) / 2,
        top: (height - cut_height) / 2,
        width: cut_width,
        height: cut_height,
        flip: false,
    }
}

/// Draws a random resized crop as ImageNet training usually does.
fn random(width: u32, height: u32, draws: &mut Prng) -> Cut {
    let area = f64::from(width) * f64::from(height);
    for _ in 0..DRAWS_MAX {
        let share = area * (AREA.0 + (AREA.1 - AREA.0) * draws.unit());
        let ratio = exp((2.0 * draws.unit() - 1.0) * RATIO_LOG);
        let (across, down) = ((share * ratio).sqrt().round(), (share / ratio).sqrt().round());
        if (1.0..=f64::from(width)).contains(&across) && (1.0..=f64::from(height)).contains(&down) {
            let (across, down) = (across as u32, down as u32);
            return Cut {
                left: draws.below(u64::from(width - across) + 1) as u32,
                top: draws.below(u64::from(height - down) + 1) as u32,
                width: across,
                height: down,
                flip: false,
            };
        }
    }
    // The picture is so elongated that hardly any crop fits: take as much of its middle as the ratio allows.
    if u64::from(width) * 3 > u64::from(height) * 4 {
        centre(width, height, 4, 3)
    } else if u64::from(width) * 4 < u64::from(height) * 3 {
        centre(width, height, 3, 4)
    } else {
        whole(width, height)
    }
}

/// Computes e to a small power by its series: the same bits on every machine, which the platform's function does not guarantee.
fn exp(x: f64) -> f64 {
    let (mut sum, mut term) = (1.0, 1.0);
    for n in 1..16 {
        term *= x / f64::from(n);
        sum += term;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(fit: Fit, flip: bool) -> Decode {
        Decode { fit, flip, ..Decode::exact(30, 40, 3) }
    }

    fn draw_key(epoch: u64, id: u32) -> DrawKey {
        DrawKey { seed: 7, epoch, id: SampleId(id.into()) }
    }

    #[test]
    fn exact_takes_the_whole_or_nothing() {
        assert_eq!(cut(&wanted(Fit::Exact, false), 40, 30, draw_key(0, 0)), Some(whole(40, 30)));
        assert_eq!(cut(&wanted(Fit::Exact, false), 30, 40, draw_key(0, 0)), None);
    }

    #[test]
    fn the_centre_covers_and_stays_inside() {
        let centre = |w, h| cut(&wanted(Fit::CenterCrop, false), w, h, draw_key(0, 0)).unwrap();
        assert_eq!(centre(500, 375), whole(500, 375));
        assert_eq!(centre(600, 300), Cut { left: 100, width: 400, ..whole(0, 300) });
        assert_eq!(centre(40, 300), Cut { top: 135, height: 30, ..whole(40, 0) });
        assert_eq!(centre(1, 5000), Cut { top: 2499, height: 1, ..whole(1, 0) });
        assert_eq!(centre(65_535, 1), Cut { left: 32_767, width: 1, ..whole(0, 1) });
    }

    #[test]
    fn random_cuts_keep_to_their_bounds_and_reach_them() {
        let mut areas = Vec::new();
        for id in 0..4000 {
            let Cut { left, top, width, height, .. } =
                cut(&wanted(Fit::RandomCrop, false), 500, 375, draw_key(0, id)).unwrap();
            assert!(left + width <= 500 && top + height <= 375 && width > 0 && height > 0);
            let ratio = f64::from(width) / f64::from(height);
            assert!((0.74..1.35).contains(&ratio), "{ratio}");
            areas.push(f64::from(width * height) / (500.0 * 375.0));
        }
        areas.sort_by(f64::total_cmp);
        assert!(areas[0] > 0.078 && areas[0] < 0.09 && areas[3999] > 0.97, "{} to {}", areas[0], areas[3999]);
        for (w, h) in [(1, 1), (1, 9000), (9000, 1), (2, 3)] {
            let Cut { left, top, width, height, .. } =
                cut(&wanted(Fit::RandomCrop, false), w, h, draw_key(0, 0)).unwrap();
            assert!(width > 0 && height > 0 && left + width <= w && top + height <= h, "{w} × {h}");
        }
    }

    /// The values are pinned for good: a resumed run may use another build.
    #[test]
    fn golden() {
        let drawn = cut(&wanted(Fit::RandomCrop, true), 500, 375, DrawKey { seed: 1, epoch: 2, id: SampleId(3) });
        assert_eq!(drawn, Some(Cut { left: 120, top: 23, width: 176, height: 218, flip: false }));
    }

    #[test]
    fn half_are_mirrored_and_epochs_differ() {
        let draw = |epoch, id| cut(&wanted(Fit::RandomCrop, true), 500, 375, draw_key(epoch, id)).unwrap();
        let mirrored = (0..4000).filter(|&id| draw(0, id).flip).count();
        assert!((1800..2200).contains(&mirrored), "{mirrored} of 4000");
        assert!((0..100).filter(|&id| draw(0, id) == draw(1, id)).count() < 5);
        assert_eq!(draw(3, 9), draw(3, 9));
    }

    #[test]
    fn the_series_is_the_exponential() {
        for x in [-RATIO_LOG, -0.1, 0.0, 0.2, RATIO_LOG] {
            assert!((exp(x) - x.exp()).abs() < 1e-15, "{x}");
        }
        assert!((exp(RATIO_LOG) - 4.0 / 3.0).abs() < 1e-15);
    }
}
