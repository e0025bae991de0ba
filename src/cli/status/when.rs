//! Times of records for people. They are in UTC, by the device's clock, which may have been wrong.

use std::time::{Duration, SystemTime};

use crate::state::history::Record;
use crate::sys::log::printable;

/// A record cannot be older: then the program did not exist. Devices without a battery start in 1970 or 2000.
const EARLIEST: Duration = Duration::from_secs(1_577_836_800); // 2020-01-01

/// A smaller correction of the clock does not mislead.
const SLACK: Duration = Duration::from_secs(3600);

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// `22 Nov`, or `22 Nov 2025` in another year. Another text as it is.
pub(super) fn day(time: &str, now: SystemTime) -> String {
    let Some((day, year, _)) = parts(time) else { return printable(time).into_owned() };
    let this_year = humantime::format_rfc3339_seconds(now).to_string();
    if this_year.starts_with(&year) { day } else { format!("{day} {year}") }
}

/// `22 Nov 2025 16:20`, without `UTC`.
pub(super) fn minute(time: &str) -> String {
    match parts(time) {
        Some((day, year, minute)) => format!("{day} {year} {minute}"),
        None => printable(time).into_owned(),
    }
}

/// `22 Nov 2025 16:20 UTC`.
pub(super) fn minute_utc(time: &str) -> String {
    let utc = if parts(time).is_some() { " UTC" } else { "" };
    format!("{}{utc}", minute(time))
}

/// Day and month, year, hour and minute.
fn parts(time: &str) -> Option<(String, String, String)> {
    let text = humantime::format_rfc3339_seconds(parse(time)?).to_string();
    let month: usize = text.get(5..7)?.parse().ok()?;
    let day = text.get(8..10)?.trim_start_matches('0');
    let month = MONTHS.get(month.checked_sub(1)?)?;
    Some((format!("{day} {month}"), text.get(..4)?.to_owned(), text.get(11..16)?.to_owned()))
}

fn parse(time: &str) -> Option<SystemTime> {
    humantime::parse_rfc3339(time).ok()
}

/// Why the time of `record`, which follows the records `before`, is not to be believed.
pub(super) fn doubt(record: &Record, before: &[Record], now: SystemTime) -> Option<&'static str> {
    let time = parse(&record.time)?;
    let is_future = |t: SystemTime| t > now + SLACK;
    let is_overtaken = || {
        let known = before.iter().filter_map(|r| parse(&r.time)).filter(|t| !is_future(*t));
        known.max().is_some_and(|latest| latest > time + SLACK)
    };
    if time < SystemTime::UNIX_EPOCH + EARLIEST || is_overtaken() {
        Some("the device's clock was wrong")
    } else if is_future(time) {
        Some("later than the device's clock now")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::history::Event;

    fn at(time: &str) -> Record {
        Record { time: time.into(), ..Record::new("t", Event::Installed) }
    }

    #[test]
    fn the_year_is_told_where_it_is_another() {
        let now = parse("2026-11-30T00:00:00Z").unwrap();
        assert_eq!(day("2026-11-02T16:20:09Z", now), "2 Nov");
        assert_eq!(day("2025-12-31T16:20:09Z", now), "31 Dec 2025");
        assert_eq!(minute_utc("2026-01-02T06:20:59Z"), "2 Jan 2026 06:20 UTC");
        assert_eq!((day("soon\n", now), minute_utc("soon")), ("soon\\n".into(), "soon".into()));
    }

    #[test]
    fn a_clock_that_was_wrong_is_noticed() {
        let now = parse("2026-11-30T00:00:00Z").unwrap();
        let (was, is) = (Some("the device's clock was wrong"), Some("later than the device's clock now"));
        let (right, ahead) = (at("2026-11-21T16:00:00Z"), at("2031-01-01T00:00:00Z"));
        assert_eq!(doubt(&at("1970-01-01T00:01:00Z"), &[], now), was);
        // The time that the system was built at, as systemd takes it; or one that was saved.
        assert_eq!(doubt(&at("2026-08-01T00:00:00Z"), std::slice::from_ref(&right), now), was);
        assert_eq!(doubt(&at("2026-11-21T15:30:00Z"), std::slice::from_ref(&right), now), None);
        assert_eq!(doubt(&ahead, std::slice::from_ref(&right), now), is);
        // It accuses no other record.
        assert_eq!(doubt(&right, &[ahead], now), None);
        assert_eq!(doubt(&at("soon"), &[right], now), None);
    }
}
