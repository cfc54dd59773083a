//! Dates as texts: those of HTTP, of credentials (ISO 8601) and of signatures.

use fuelrail_base::WallTime;

/// A wall time taken apart, in UTC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Civil {
    year: u32,
    /// 1 to 12.
    month: u32,
    /// 1 to 31.
    day: u32,
    second_of_day: u32,
    /// 0 is Sunday.
    weekday: usize,
}

const DAY_SECONDS: u64 = 86_400;
const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const WEEKDAYS: [&str; 7] = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
/// The last second that four digits of a year can tell.
const LAST: u64 = 253_402_300_799;

/// Days from 1970 to a date, by counting years from March (Hinnant, "chrono-Compatible Low-Level Date Algorithms").
fn days_until(year: u32, month: u32, day: u32) -> u64 {
    let shifted = u64::from(year) - u64::from(month <= 2);
    let (era, of_era) = (shifted / 400, shifted % 400);
    let of_year = (153 * u64::from((month + 9) % 12) + 2) / 5 + u64::from(day) - 1;
    (era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year).saturating_sub(719_468)
}

impl Civil {
    fn of(time: WallTime) -> Civil {
        let seconds = time.0.min(LAST);
        let days = seconds / DAY_SECONDS;
        let shifted = days + 719_468;
        let (era, of_era) = (shifted / 146_097, shifted % 146_097);
        let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * of_year + 2) / 153;
        let day = of_year - (153 * month_from_march + 2) / 5 + 1;
        let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
        Civil {
            year: (year_of_era + era * 400 + u64::from(month <= 2)) as u32,
            month: month as u32,
            day: day as u32,
            second_of_day: (seconds % DAY_SECONDS) as u32,
            weekday: ((days + 4) % 7) as usize,
        }
    }

    /// Hours, minutes, seconds.
    fn clock(&self) -> [u32; 3] {
        [self.second_of_day / 3600, self.second_of_day / 60 % 60, self.second_of_day % 60]
    }
}

/// As AWS dates a request: `20130524T000000Z`. The first eight are the day.
#[must_use]
pub fn compact(time: WallTime) -> [u8; 16] {
    let civil = Civil::of(time);
    let [hour, minute, second] = civil.clock();
    let mut out = *b"00000000T000000Z";
    let mut put = |at: usize, width: usize, mut number: u32| {
        for place in (at..at + width).rev() {
            out[place] = b'0' + (number % 10) as u8;
            number /= 10;
        }
    };
    put(0, 4, civil.year);
    put(4, 2, civil.month);
    put(6, 2, civil.day);
    put(9, 2, hour);
    put(11, 2, minute);
    put(13, 2, second);
    out
}

/// As HTTP writes it: `Fri, 24 May 2013 00:00:00 GMT`.
pub fn push_http(out: &mut Vec<u8>, time: WallTime) {
    use std::io::Write as _;
    let civil = Civil::of(time);
    let [hour, minute, second] = civil.clock();
    let (weekday, month) = (WEEKDAYS[civil.weekday], MONTHS[civil.month as usize - 1]);
    let (day, year) = (civil.day, civil.year);
    // Writing to memory cannot fail.
    let _ = write!(out, "{weekday}, {day:02} {month} {year:04} {hour:02}:{minute:02}:{second:02} GMT");
}

/// As ISO 8601 writes it: `2013-05-24T00:00:00Z`.
#[must_use]
pub fn iso(time: WallTime) -> String {
    let civil = Civil::of(time);
    let [hour, minute, second] = civil.clock();
    format!("{:04}-{:02}-{:02}T{hour:02}:{minute:02}:{second:02}Z", civil.year, civil.month, civil.day)
}

/// Reads a Date header in the one form that is still written (RFC 9110, 5.6.7).
#[must_use]
pub fn parse_http(text: &[u8]) -> Option<WallTime> {
    let text = core::str::from_utf8(text).ok()?;
    let rest = text.split_once(", ")?.1;
    let [day, month, year, clock, "GMT"] = pieces(rest, ' ')? else { return None };
    let month = MONTHS.iter().position(|name| *name == month)? as u32 + 1;
    joined((number(year, 4)?, month, number(day, 2)?), time_of_day(clock)?)
}

/// Reads ISO 8601 as credentials are dated: `2013-05-24T00:00:00Z`, with parts of a second or an offset such as `+02:00`.
#[must_use]
pub fn parse_iso(text: &str) -> Option<WallTime> {
    let (date, rest) = text.split_once(['T', ' '])?;
    let [year, month, day] = pieces(date, '-')?;
    let (clock, zone) = rest.split_at(rest.find(['Z', '+', '-'])?);
    let (clock, part) = clock.split_once('.').unwrap_or((clock, "0"));
    if part.is_empty() || !part.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let time = joined((number(year, 4)?, number(month, 2)?, number(day, 2)?), time_of_day(clock)?)?;
    if zone == "Z" {
        return Some(time);
    }
    let (sign, offset) = zone.split_at(1);
    let (hours, minutes) = offset.split_once(':')?;
    let seconds = i64::from(number(hours, 2)? * 3600 + number(minutes, 2)? * 60);
    // East of Greenwich it is later than in UTC.
    Some(time.shifted(if sign == "+" { -seconds } else { seconds })).filter(|time| time.0 <= LAST)
}

fn joined((year, month, day): (u32, u32, u32), second_of_day: u32) -> Option<WallTime> {
    if year < 1970 || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let time = WallTime(days_until(year, month, day) * DAY_SECONDS + u64::from(second_of_day));
    // A 31st of June would be the 1st of July.
    let civil = Civil::of(time);
    ((civil.month, civil.day) == (month, day)).then_some(time)
}

fn time_of_day(text: &str) -> Option<u32> {
    let [hour, minute, second] = pieces(text, ':')?;
    let (hour, minute, second) = (number(hour, 2)?, number(minute, 2)?, number(second, 2)?);
    // A leap second is told as the one before.
    (hour < 24 && minute < 60 && second <= 60).then(|| hour * 3600 + minute * 60 + second.min(59))
}

/// Exactly so many pieces.
fn pieces<const COUNT: usize>(text: &str, between: char) -> Option<[&str; COUNT]> {
    let mut found = [""; COUNT];
    let mut split = text.split(between);
    for place in &mut found {
        *place = split.next()?;
    }
    split.next().is_none().then_some(found)
}

fn number(text: &str, width: usize) -> Option<u32> {
    (text.len() == width && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn http(time: WallTime) -> String {
        let mut out = Vec::new();
        push_http(&mut out, time);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn known_dates_in_every_form() {
        for (seconds, compacted, said, iso_said) in [
            (0, "19700101T000000Z", "Thu, 01 Jan 1970 00:00:00 GMT", "1970-01-01T00:00:00Z"),
            (1_369_353_600, "20130524T000000Z", "Fri, 24 May 2013 00:00:00 GMT", "2013-05-24T00:00:00Z"),
            (951_827_696, "20000229T123456Z", "Tue, 29 Feb 2000 12:34:56 GMT", "2000-02-29T12:34:56Z"),
            (LAST, "99991231T235959Z", "Fri, 31 Dec 9999 23:59:59 GMT", "9999-12-31T23:59:59Z"),
        ] {
            let time = WallTime(seconds);
            assert_eq!(core::str::from_utf8(&compact(time)).unwrap(), compacted);
            assert_eq!((http(time).as_str(), iso(time).as_str()), (said, iso_said));
            assert_eq!((parse_http(said.as_bytes()), parse_iso(iso_said)), (Some(time), Some(time)));
        }
        let time = Some(WallTime(1_369_353_600));
        for text in ["2013-05-24T00:00:00.123456Z", "2013-05-24T02:00:00+02:00", "2013-05-23 23:30:00.0-00:30"] {
            assert_eq!(parse_iso(text), time, "{text}");
        }
    }

    #[test]
    fn what_is_no_date_is_refused() {
        for text in [
            "",
            "2013-05-24",
            "2013-06-31T00:00:00Z",
            "2013-13-01T00:00:00Z",
            "2013-05-24T24:00:00Z",
            "2013-05-24T00:00:00",
            "2013-05-24T00:00:00.Z",
            "2013-05-24T00:00:00+2",
            "1969-12-31T23:59:59Z",
            "2013-5-24T00:00:00Z",
        ] {
            assert_eq!(parse_iso(text), None, "{text}");
        }
        for text in ["", "Fri, 24 May 2013 00:00:00", "Friday, 24-May-13 00:00:00 GMT", "Fri, 24 Mai 2013 00:00:00 GMT"]
        {
            assert_eq!(parse_http(text.as_bytes()), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn comes_back(seconds in 0..=LAST) {
            let time = WallTime(seconds);
            prop_assert_eq!(parse_iso(&iso(time)), Some(time));
            prop_assert_eq!(parse_http(http(time).as_bytes()), Some(time));
        }

        #[test]
        fn no_text_panics(text in "\\PC{0,40}", dated in "[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]{0,12}[Z+-][0-9:]{0,6}") {
            let _ = (parse_iso(&text), parse_http(text.as_bytes()), parse_iso(&dated));
        }
    }
}
