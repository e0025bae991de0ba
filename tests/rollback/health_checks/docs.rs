//! The documentation has the checks and the keys of the program.

use std::path::Path;

use copal::config::rollback_conf::{
    FILE, NUMBERS, REQUIRE_DEVICE_TREE, REQUIRE_UNITS, RollbackConf, SWITCHES,
};
use copal::rollback::checks::TABLE;

fn doc() -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/health-checks.md")).unwrap()
}

/// The cells of the table rows below a heading, the first one without its backticks.
fn rows(heading: &str) -> Vec<Vec<String>> {
    let text = doc();
    let part = text.split(&format!("\n## {heading}\n")).nth(1).unwrap_or_else(|| panic!("{heading}"));
    let part = part.split("\n## ").next().unwrap();
    let rows = part.lines().filter_map(|l| l.strip_prefix("| `")?.strip_suffix(" |"));
    rows.map(|l| l.replacen('`', "", 1).split(" | ").map(str::to_owned).collect()).collect()
}

#[test]
fn every_check_has_its_row_in_its_place() {
    let rows = rows("What is checked");
    let documented: Vec<&str> = rows.iter().map(|r| r[0].trim_end_matches("/NAME")).collect();
    assert_eq!(documented, TABLE.iter().map(|row| row.name).collect::<Vec<_>>());
    for (text, row) in rows.iter().zip(TABLE) {
        let with = |units_required, device_tree_required| {
            (row.required)(&RollbackConf { units_required, device_tree_required, ..RollbackConf::default() })
        };
        let expected = match (with(false, false), with(true, false), with(false, true)) {
            (true, ..) => "yes".to_owned(),
            (false, true, false) => format!("with `{}=1`", REQUIRE_UNITS.key),
            (false, false, true) => format!("unless `{}=0`", REQUIRE_DEVICE_TREE.key),
            _ => "no".to_owned(),
        };
        assert_eq!(text[1], expected, "{}", row.name);
    }
}

#[test]
fn every_key_has_its_row_with_default_and_range() {
    let text = doc();
    assert!(text.contains(FILE));
    let rows = rows("Configuration");
    let (numbers, switches) = rows.split_at(NUMBERS.len());
    for (row, number) in numbers.iter().zip(NUMBERS) {
        let range = format!("{} to {}", number.range.start(), number.range.end());
        assert_eq!(row[..3], [number.key.to_owned(), number.default.to_string(), range]);
    }
    assert_eq!(switches.len(), SWITCHES.len());
    for (row, switch) in switches.iter().zip(SWITCHES) {
        let default = u8::from(switch.default).to_string();
        assert_eq!(row[..3], [switch.key.to_owned(), default, "0 or 1".to_owned()]);
    }
}
