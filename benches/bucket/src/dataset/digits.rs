//! `digits`: 28×28 8-bit greyscale PNGs of the ten digits, drawn from bitmaps with random shift, rotation, size, weight
//! and noise, so a model can learn them.
//!
//! Pixels are stored without compression and a seeded `tEXt` chunk varies the length, so a size needs one draw, not a
//! picture. Drawing takes about ten microseconds.

use png::{BitDepth, ColorType, Compression, Encoder, Filter};

use crate::random::{Draws, mix, sin_cos};

const SIDE: usize = 28;

/// Bytes of the file besides the text of its `tEXt` chunk.
const FRAME_BYTES: u64 = 900;
const TEXT_BYTES_MIN: u64 = 16;
const TEXT_BYTES_SPREAD: u64 = 240;

const COLUMNS: usize = 7;
const ROWS: usize = 10;

/// One glyph a digit, ten rows of seven columns, the leftmost column in the highest of seven bits.
const GLYPHS: [[u8; ROWS]; 10] = [
    [0x1c, 0x22, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x22, 0x1c],
    [0x08, 0x18, 0x28, 0x08, 0x08, 0x08, 0x08, 0x08, 0x08, 0x3e],
    [0x3c, 0x42, 0x01, 0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x7f],
    [0x7c, 0x02, 0x01, 0x02, 0x1c, 0x02, 0x01, 0x01, 0x42, 0x3c],
    [0x06, 0x0a, 0x12, 0x22, 0x42, 0x42, 0x7f, 0x02, 0x02, 0x02],
    [0x7e, 0x40, 0x40, 0x40, 0x7c, 0x02, 0x01, 0x01, 0x42, 0x3c],
    [0x0c, 0x10, 0x20, 0x40, 0x5c, 0x62, 0x41, 0x41, 0x22, 0x1c],
    [0x7f, 0x01, 0x02, 0x02, 0x04, 0x04, 0x08, 0x08, 0x10, 0x10],
    [0x1c, 0x22, 0x41, 0x22, 0x1c, 0x22, 0x41, 0x41, 0x22, 0x1c],
    [0x1c, 0x22, 0x41, 0x41, 0x23, 0x1d, 0x01, 0x02, 0x04, 0x38],
];

pub(super) fn size(seed: u64) -> u64 {
    FRAME_BYTES + text_bytes(seed)
}

pub(super) fn fill(class: u64, seed: u64, stream: u64, offset: u64, out: &mut [u8]) {
    let image = encode(&draw(class as usize % 10, stream), &text(seed, stream));
    let from = offset as usize;
    out.copy_from_slice(&image[from..from + out.len()]);
}

fn text_bytes(seed: u64) -> u64 {
    TEXT_BYTES_MIN + Draws::new(mix(seed ^ 0x7E87)).below(TEXT_BYTES_SPREAD)
}

fn text(seed: u64, stream: u64) -> String {
    let mut draws = Draws::new(stream ^ 0x7E87);
    (0..text_bytes(seed)).map(|_| char::from(b"0123456789abcdef"[(draws.word() >> 60) as usize])).collect()
}

/// The mapping from the picture's pixels to the glyph: the inverse of shift, rotation and scaling.
struct Pose {
    sin: f32,
    cos: f32,
    shift: (f32, f32),
    per_pixel: (f32, f32),
}

impl Pose {
    fn draw(draws: &mut Draws) -> Pose {
        let (sin, cos) = sin_cos((draws.unit() - 0.5) * 0.5);
        let shift = ((draws.unit() - 0.5) * 4.0, (draws.unit() - 0.5) * 4.0);
        let size = 0.85 + 0.3 * draws.unit();
        Pose {
            sin: sin as f32,
            cos: cos as f32,
            shift: (shift.0 as f32, shift.1 as f32),
            per_pixel: ((1.0 / (2.1 * size)) as f32, (1.0 / (1.95 * size)) as f32),
        }
    }

    /// Returns the glyph position (columns, rows; glyph centre at 0, 0) of the centre of pixel (x, y).
    fn on_glyph(&self, x: usize, y: usize) -> (f32, f32) {
        let middle = (SIDE as f32 - 1.0) / 2.0;
        let (dx, dy) = (x as f32 - middle - self.shift.0, y as f32 - middle - self.shift.1);
        ((dx * self.cos + dy * self.sin) * self.per_pixel.0, (dy * self.cos - dx * self.sin) * self.per_pixel.1)
    }
}

fn draw(digit: usize, stream: u64) -> [u8; SIDE * SIDE] {
    let mut draws = Draws::new(stream);
    let pose = Pose::draw(&mut draws);
    let weight = 190.0 + 65.0 * draws.unit() as f32;
    let glyph = padded(digit);
    let mut pixels = [0u8; SIDE * SIDE];
    let mut noise = 0u64;
    for (place, pixel) in pixels.iter_mut().enumerate() {
        if place % 8 == 0 {
            noise = draws.word();
        }
        let (x, y) = pose.on_glyph(place % SIDE, place / SIDE);
        let ink = sample(&glyph, x, y) * weight;
        let grain = (noise & 0xFF) as f32 * 0.15;
        noise >>= 8;
        *pixel = (ink + grain).min(255.0) as u8;
    }
    pixels
}

const PADDED_COLUMNS: usize = COLUMNS + 4;
const PADDED_ROWS: usize = ROWS + 4;

/// Returns the glyph with two empty cells on every side, so that interpolation needs no edge cases.
fn padded(digit: usize) -> [[f32; PADDED_COLUMNS]; PADDED_ROWS] {
    let mut cells = [[0.0; PADDED_COLUMNS]; PADDED_ROWS];
    for (row, line) in GLYPHS[digit].iter().enumerate() {
        for column in 0..COLUMNS {
            cells[row + 2][column + 2] = f32::from(line >> (COLUMNS - 1 - column) & 1);
        }
    }
    cells
}

/// Returns the ink at a glyph position, interpolated between the four cells around it.
fn sample(glyph: &[[f32; PADDED_COLUMNS]; PADDED_ROWS], x: f32, y: f32) -> f32 {
    let (x, y) = (x + (PADDED_COLUMNS as f32 - 1.0) / 2.0, y + (PADDED_ROWS as f32 - 1.0) / 2.0);
    if x < 0.0 || y < 0.0 || x >= (PADDED_COLUMNS - 1) as f32 || y >= (PADDED_ROWS - 1) as f32 {
        return 0.0;
    }
    let (column, row) = (x as usize, y as usize);
    let (right, down) = (x - column as f32, y - row as f32);
    let upper = glyph[row][column] * (1.0 - right) + glyph[row][column + 1] * right;
    let lower = glyph[row + 1][column] * (1.0 - right) + glyph[row + 1][column + 1] * right;
    // Strokes are one cell wide; the gain keeps them solid where the sampling point falls between cells.
    ((upper * (1.0 - down) + lower * down) * 1.4).min(1.0)
}

fn encode(pixels: &[u8; SIDE * SIDE], text: &str) -> Vec<u8> {
    let mut file = Vec::with_capacity((FRAME_BYTES + TEXT_BYTES_MIN + TEXT_BYTES_SPREAD) as usize);
    let mut encoder = Encoder::new(&mut file, SIDE as u32, SIDE as u32);
    encoder.set_color(ColorType::Grayscale);
    encoder.set_depth(BitDepth::Eight);
    encoder.set_compression(Compression::NoCompression);
    encoder.set_filter(Filter::NoFilter);
    encoder
        .add_text_chunk("Comment".to_owned(), text.to_owned())
        .and_then(|()| encoder.write_header())
        .and_then(|mut writer| writer.write_image_data(pixels).and_then(|()| writer.finish()))
        .expect("a 28×28 greyscale image with a short ASCII comment is always encodable into memory");
    file
}
