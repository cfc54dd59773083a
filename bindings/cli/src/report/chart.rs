//! Charts as SVG elements for a page: horizontal bars, lanes of spans, curves and points, on linear and logarithmic axes.
//!
//! Owns their layout. Colours are readable on light and dark backgrounds; the page's style sheet colours text and grid.

use std::error::Error;
use std::ops::Range;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{BoldPoints, KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Width of every chart and height of a curve chart, in drawing units; the page scales them.
const SIZE: (u32, u32) = (460, 280);
/// Height of one bar with its label, and of the axis below.
const ROW: u32 = 38;
const AXIS: u32 = 26;
const FONT: (&str, u32) = ("sans-serif", 15);
/// Placeholders that the style sheet replaces.
const GRID: RGBColor = RGBColor(128, 128, 128);
const INK: RGBColor = RGBColor(0, 0, 0);

/// The colour of a bar or a curve, by its meaning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hue {
    /// Fuelrail.
    Rail,
    /// DELI, or another rival.
    Deli,
    /// Local disk, or a lower bound.
    Disk,
    /// Everything else.
    Plain,
}

impl Hue {
    fn color(self) -> RGBColor {
        match self {
            Hue::Rail => RGBColor(0x4a, 0x86, 0xe8),
            Hue::Deli => RGBColor(0xd9, 0x86, 0x2b),
            Hue::Disk => RGBColor(0x2f, 0xa0, 0x88),
            Hue::Plain => RGBColor(0x8b, 0x8f, 0x99),
        }
    }
}

/// A bar, with its name and its value as text above it.
#[derive(Clone, Debug)]
pub struct Bar {
    /// The bar's name.
    pub name: String,
    /// The value as text.
    pub text: String,
    /// The value that gives its length.
    pub value: f64,
    /// Marks across it: the ends of a range, or a value to compare with.
    pub marks: Vec<f64>,
    /// Its colour.
    pub hue: Hue,
}

/// A curve: points in ascending order of `x`.
#[derive(Clone, Debug)]
pub struct Curve {
    /// Its points.
    pub points: Vec<(f64, f64)>,
    /// Its colour.
    pub hue: Hue,
}

/// A point with its name and its intervals.
#[derive(Clone, Debug)]
pub struct Point {
    /// Its name.
    pub name: String,
    /// Low end, value and high end across.
    pub x: [f64; 3],
    /// Low end, value and high end upwards.
    pub y: [f64; 3],
    /// Its colour.
    pub hue: Hue,
}

/// Spans side by side, with a name and a text above them.
#[derive(Clone, Debug, Default)]
pub struct Lane {
    /// Its name.
    pub name: String,
    /// A text on the right.
    pub text: String,
    /// From, to and colour of each.
    pub spans: Vec<(f64, f64, Hue)>,
    /// Marks across them.
    pub marks: Vec<f64>,
}

/// How values are placed along an axis, and how its ticks are written.
#[derive(Clone, Copy, Debug)]
pub struct Axis {
    /// Whether it is logarithmic, in whole powers of ten; values up to 0 are then drawn at its start.
    pub log: bool,
    /// Formats a tick.
    pub tick: fn(f64) -> String,
}

/// An axis with the range of its values.
#[derive(Clone, Copy)]
struct Scale {
    axis: Axis,
    low: f64,
    high: f64,
}

impl Scale {
    /// A scale from 0, or from a power of ten, that covers all values.
    fn over(axis: Axis, values: impl Iterator<Item = f64>) -> Scale {
        let shown = values.filter(|value| value.is_finite() && (!axis.log || *value > 0.0));
        let (least, most) = shown.fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), v| (a.min(v), b.max(v)));
        let (low, high) = match (axis.log, least.is_finite()) {
            (_, false) => (1.0, 1.0),
            (true, _) => (10f64.powf(least.log10().floor()), 10f64.powf(most.log10().ceil())),
            (false, _) => (least.min(0.0), most.max(0.0)),
        };
        Scale { axis, low, high: if high > low { high } else { low * 10.0 + 1.0 } }
    }
}

impl Ranged for Scale {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (from, to): (i32, i32)) -> i32 {
        let place = |value: f64| if self.axis.log { value.log10() } else { value };
        let value = if value.is_nan() { self.low } else { value.clamp(self.low, self.high) };
        let share = (place(value) - place(self.low)) / (place(self.high) - place(self.low));
        from + (share * f64::from(to - from)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        match self.axis.log {
            true => {
                (self.low.log10().round() as i32..=self.high.log10().round() as i32).map(|p| 10f64.powi(p)).collect()
            }
            false => RangedCoordf64::from(self.low..self.high).key_points(BoldPoints(6)),
        }
    }

    fn range(&self) -> Range<f64> {
        self.low..self.high
    }
}

impl ValueFormatter<f64> for Scale {
    fn format_ext(&self, value: &f64) -> String {
        (self.axis.tick)(*value)
    }
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Draws without a background. The namespace is left out, as an element inside a page does not need it.
fn draw(height: u32, paint: impl FnOnce(&Area<'_>) -> Result<(), Box<dyn Error>>) -> String {
    let mut svg = String::new();
    let area = SVGBackend::with_string(&mut svg, (SIZE.0, height)).into_drawing_area();
    paint(&area).and_then(|()| Ok(area.present()?)).expect("writing to a string cannot fail");
    drop(area);
    svg.replacen(" xmlns=\"http://www.w3.org/2000/svg\"", " role=\"img\"", 1)
}

fn words(right: bool) -> TextStyle<'static> {
    let side = if right { HPos::Right } else { HPos::Left };
    TextStyle::from(FONT).color(&INK).pos(Pos::new(side, VPos::Bottom))
}

/// A chart as a standalone SVG file, for light and dark backgrounds, with a margin for overflow such as half of the first tick.
pub fn file(element: &str) -> String {
    const OPEN: &str = "<svg xmlns=\"http://www.w3.org/2000/svg\"";
    const STYLE: &str = "<style>text{fill:#1c1d20}@media(prefers-color-scheme:dark){text{fill:#ecebe7}}</style>";
    const MARGIN: u32 = 30;
    let view = |left: i32, width| format!("viewBox=\"{left} 0 {width} ");
    let wide = view(-(MARGIN as i32), SIZE.0 + 2 * MARGIN);
    let element = element.replacen("<svg", OPEN, 1).replacen(&view(0, SIZE.0), &wide, 1);
    let (head, rest) = element.split_once('>').unwrap_or((&element, ""));
    format!("{head}>\n{STYLE}{rest}")
}

/// A bar chart with one bar per row, from the start of the axis.
pub fn bars(rows: &[Bar], axis: Axis) -> String {
    let lane = |Bar { name, text, value, marks, hue }: &Bar| Lane {
        name: name.clone(),
        text: text.clone(),
        // On a logarithmic axis, its start.
        spans: vec![(0.0, *value, *hue)],
        marks: marks.clone(),
    };
    lanes(&rows.iter().map(lane).collect::<Vec<_>>(), axis)
}

/// A chart with a row of spans for each lane.
pub fn lanes(rows: &[Lane], axis: Axis) -> String {
    let ends = rows.iter().flat_map(|row| &row.spans).flat_map(|(from, to, _)| [*from, *to]);
    let scale = Scale::over(axis, ends.chain(rows.iter().flat_map(|row| row.marks.iter().copied())));
    draw(rows.len() as u32 * ROW + AXIS, |area| {
        let mut chart = ChartBuilder::on(area)
            .margin_left(4)
            .margin_right(14)
            .x_label_area_size(AXIS)
            .build_cartesian_2d(scale, rows.len() as f64..0.0)?;
        let mut mesh = chart.configure_mesh();
        mesh.disable_y_mesh().disable_y_axis().bold_line_style(GRID).light_line_style(TRANSPARENT).axis_style(GRID);
        mesh.label_style(TextStyle::from(FONT).color(&INK)).draw()?;
        for (Lane { name, text, spans, marks }, top) in rows.iter().zip(0u32..) {
            let at = |share: f64| f64::from(top) + share;
            let bar = |(from, to, hue): &(f64, f64, Hue)| {
                Rectangle::new([(*from, at(0.55)), (*to, at(0.8))], hue.color().filled())
            };
            chart.draw_series(spans.iter().map(bar))?;
            chart.draw_series([Text::new(name.clone(), (scale.low, at(0.5)), words(false))])?;
            chart.draw_series([Text::new(text.clone(), (scale.high, at(0.5)), words(true))])?;
            let mark = |mark: &f64| PathElement::new([(*mark, at(0.49)), (*mark, at(0.86))], INK.stroke_width(2));
            chart.draw_series(marks.iter().map(mark))?;
        }
        Ok(())
    })
}

/// A chart with all curves.
pub fn curves(curves: &[Curve], x: Axis, y: Axis) -> String {
    let points = || curves.iter().flat_map(|curve| &curve.points);
    plane(Scale::over(x, points().map(|p| p.0)), Scale::over(y, points().map(|p| p.1)), curves, &[])
}

/// A chart with all points, each as a cross of its intervals with its name.
pub fn points(points: &[Point], x: Axis, y: Axis) -> String {
    let values = |of: fn(&Point) -> [f64; 3]| points.iter().flat_map(of);
    plane(Scale::over(x, values(|point| point.x)), Scale::over(y, values(|point| point.y)), &[], points)
}

fn plane(across: Scale, up: Scale, curves: &[Curve], points: &[Point]) -> String {
    draw(SIZE.1, |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(8)
            .margin_right(20)
            .x_label_area_size(AXIS)
            .y_label_area_size(54)
            .build_cartesian_2d(across, up)?;
        let mut mesh = chart.configure_mesh();
        mesh.bold_line_style(GRID).light_line_style(TRANSPARENT).axis_style(GRID);
        mesh.label_style(TextStyle::from(FONT).color(&INK)).draw()?;
        for curve in curves {
            let color = curve.hue.color();
            chart.draw_series(LineSeries::new(curve.points.iter().copied(), color.stroke_width(2)))?;
        }
        for Point { name, x, y, hue } in points {
            let arms = [vec![(x[0], y[1]), (x[2], y[1])], vec![(x[1], y[0]), (x[1], y[2])]];
            chart.draw_series(arms.map(|arm| PathElement::new(arm, hue.color().stroke_width(2))))?;
            chart.draw_series([Circle::new((x[1], y[1]), 4, hue.color().filled())])?;
            // Towards the side with more room.
            let right = across.map(&x[1], (0, 100)) > 50;
            let beside = if right { -8 } else { 8 };
            let label = EmptyElement::at((x[1], y[1])) + Text::new(name.clone(), (beside, -3), words(right));
            chart.draw_series([label])?;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: fn(f64) -> String = |value| value.to_string();

    #[test]
    fn logarithms_span_whole_decades() {
        let scale = Scale::over(Axis { log: true, tick: TICK }, [0.5, 0.0, 80.0].into_iter());
        assert_eq!(scale.key_points(BoldPoints(6)), [0.1, 1.0, 10.0, 100.0]);
        let places = [0.1, 1.0, 100.0, 0.0, f64::NAN].map(|value| scale.map(&value, (100, 400)));
        assert_eq!((places, scale.format_ext(&10.0)), ([100, 200, 400, 100, 100], "10".to_owned()));
        let empty = Scale::over(Axis { log: true, tick: TICK }, core::iter::empty());
        assert_eq!(empty.map(&0.0, (0, 10)), 0);
    }

    #[test]
    fn words_cannot_break_the_page() {
        let name = "</svg><script>".to_owned();
        let rows = [Bar { name, text: "\"&".into(), value: 1.0, marks: vec![f64::NAN], hue: Hue::Plain }];
        let element = bars(&rows, Axis { log: false, tick: TICK });
        assert!(!element.contains("<script>") && element.matches("</svg>").count() == 1, "{element}");
        assert!(!element.contains("NaN") && !element.contains("http"), "{element}");
    }
}
