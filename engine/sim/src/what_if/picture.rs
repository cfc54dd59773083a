//! The limits of a few nodes as a picture: one bar a limit, the first one marked.

use super::limits::Forecast;
use core::fmt::Write;

const WIDTH: f64 = 900.0;
const LEFT: f64 = 130.0;
const BAR: f64 = 22.0;
const GAP: f64 = 8.0;
const TITLE: f64 = 34.0;

/// An SVG document; bars are on one logarithmic scale over all nodes.
#[must_use]
pub fn picture(forecasts: &[Forecast]) -> String {
    let rates = || forecasts.iter().flat_map(|forecast| &forecast.ceilings).map(|ceiling| ceiling.bytes_per_s.max(1.0));
    let low = rates().fold(f64::INFINITY, f64::min).log10().floor();
    let high = rates().fold(f64::NEG_INFINITY, f64::max).log10().ceil().max(low + 1.0);
    let span = WIDTH - LEFT - 110.0;
    let length = |rate: f64| ((rate.max(1.0).log10() - low) / (high - low) * span).max(2.0);
    let rows: usize = forecasts.iter().map(|forecast| forecast.ceilings.len()).sum();
    let height = forecasts.len() as f64 * (TITLE + GAP) + rows as f64 * (BAR + GAP) + GAP;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"13\" role=\"img\" aria-label=\"Limits of each node, GB/s\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n"
    );
    let mut y = GAP;
    for forecast in forecasts {
        let node = &forecast.node;
        let title = format!("{} cores, {} Gbit/s", node.cores, node.nic_bits_per_s / 1e9);
        y += TITLE;
        let _ = writeln!(svg, "<text x=\"10\" y=\"{:.1}\" font-weight=\"bold\">{title}</text>", y - 12.0);
        for (place, ceiling) in forecast.ceilings.iter().enumerate() {
            let (colour, long) = (if place == 0 { "#c2410c" } else { "#94a3b8" }, length(ceiling.bytes_per_s));
            let middle = y + BAR * 0.7;
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{middle:.1}\" text-anchor=\"end\">{}</text>",
                LEFT - 8.0,
                ceiling.name
            );
            let _ = writeln!(
                svg,
                "<rect x=\"{LEFT}\" y=\"{y:.1}\" width=\"{long:.1}\" height=\"{BAR}\" fill=\"{colour}\"/>"
            );
            let rate = ceiling.bytes_per_s / 1e9;
            let _ = writeln!(svg, "<text x=\"{:.1}\" y=\"{middle:.1}\">{rate:.1} GB/s</text>", LEFT + long + 6.0);
            y += BAR + GAP;
        }
        y += GAP;
    }
    svg.push_str("</svg>\n");
    svg
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::what_if::limits::{Costs, Node, forecast};

    #[test]
    fn every_limit_has_a_bar_and_the_first_is_marked_once_a_node() {
        let costs = Costs { gb_per_core_s: 5.0, object_bytes: 1e6, scaling: Vec::new(), work_kept: 1.0 };
        let node = Node {
            cores: 8,
            nic_bits_per_s: 100e9,
            packet_bytes: (1448.0, 1538.0),
            memory_bytes_per_s: 200e9,
            memory_crossings: (2.0, 3.0),
            connection_bytes_per_s: 1e8,
            connections: 64,
            latency_s: 0.01,
            requests_per_s: None,
        };
        let svg = picture(&[forecast(&costs, &node, Some(0.9)), forecast(&costs, &Node { cores: 2, ..node }, None)]);
        assert_eq!(svg.matches("#c2410c").count(), 2);
        assert_eq!(svg.matches("<rect x=").count(), 9, "{svg}");
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n") && !svg.contains("NaN"), "{svg}");
    }
}
