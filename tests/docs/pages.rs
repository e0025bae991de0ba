//! The documentation says what the program does.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use copal::error::{Code, exit};
use serde_json::Value;

fn doc(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(name)).unwrap()
}

/// The cells of every table row of `text` whose first cell is in backticks, that one without them.
fn rows(text: &str) -> Vec<Vec<String>> {
    text.lines()
        .filter_map(|l| l.strip_prefix("| `")?.strip_suffix(" |"))
        .map(|l| {
            let mut cells: Vec<String> =
                l.replace("\\|", "\0").split(" | ").map(|c| c.replace('\0', "|")).collect();
            cells[0] = cells[0].trim_end_matches('`').to_owned();
            cells
        })
        .collect()
}

fn help(verb: &str) -> String {
    let out = Command::new(env!("CARGO_BIN_EXE_copal"))
        .args(["help", verb].iter().filter(|a| !a.is_empty()))
        .output()
        .unwrap();
    assert!(out.status.success(), "help {verb}");
    String::from_utf8(out.stdout).unwrap()
}

/// Every `--flag` in `text`.
fn flags(text: &str) -> BTreeSet<String> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'))
        .filter(|w| w.starts_with("--") && w.len() > 2)
        .map(str::to_owned)
        .collect()
}

/// `docs/errors.md`, as the table in `src/error/code.rs` and the exit codes of verbs have it.
fn errors_md() -> String {
    let cell = |text: &str| text.replace('|', "\\|");
    let mut text = String::from(ERRORS_HEAD);
    for &code in Code::ALL {
        let mut exits: Vec<String> = exit::of_code(code).iter().map(|(exit, _)| exit.to_string()).collect();
        let last = exits.pop().unwrap();
        let exits = if exits.is_empty() { last } else { format!("{} or {last}", exits.join(", ")) };
        let (cause, remedy) = (cell(code.cause().trim()), cell(code.remedy()));
        text.push_str(&format!("| `{code}` | {exits} | {cause} | {remedy} |\n"));
    }
    text
}

const ERRORS_HEAD: &str = "\
# Error codes

<!-- Made of src/error/code.rs and src/error/exit.rs: `UPDATE_DOCS=1 cargo test --test docs errors` -->

An error is one line: what could not be done, to which object, why; the code in brackets; what to do. With `--json` it is
the last line ([json.md](json.md)). The codes are stable: scripts may branch on them. The remedy at hand may be more exact
than the one here. `copal explain CODE` prints a row of this table, `copal explain` lists all codes. What to do with a
device after that is in [operating.md](operating.md).

*Exit* is the exit code of a `copal` verb. Of several, the first means that nothing was written, the second that it failed after
writing had begun. Where the job was done and only what came after it failed, the exit code is 1 (except for `usage`), also in
rows that have no 1. Legacy names have 1, and 2 for `usage`.

| code | exit | cause | remedy |
|---|---|---|---|
";

/// A cause that says so is marked in the table, so that the page lists no exit code of a failure after a write.
#[test]
fn a_code_that_says_that_nothing_was_done_never_comes_after_a_write() {
    for &code in Code::ALL {
        let says_so =
            ["Nothing was ", "The disk was not written"].iter().any(|words| code.cause().contains(words));
        assert!(!says_so || code.never_after_write(), "{code}");
    }
    let marked = Code::ALL.iter().filter(|code| code.never_after_write()).count();
    assert!(marked > 10, "{marked}");
}

/// The page is made of the code; with `UPDATE_DOCS=1` it is written, else it has to be there already.
#[test]
fn errors_md_is_made_of_the_code() {
    let wanted = errors_md();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/errors.md");
        std::fs::write(page, &wanted).unwrap();
    }
    let (found, command) = (doc("errors.md"), "`UPDATE_DOCS=1 cargo test --test docs errors` writes it");
    for (line, (found, wanted)) in found.lines().zip(wanted.lines()).enumerate() {
        assert_eq!(found, wanted, "docs/errors.md, line {}: {command}", line + 1);
    }
    assert_eq!(found, wanted, "docs/errors.md ends elsewhere: {command}");
}

/// [`exit::of_code`] has one for them: wherever the program makes such an error, the job was done.
#[test]
fn errors_that_always_come_after_success_are_made_so() {
    fn sources(folder: &Path, found: &mut Vec<std::path::PathBuf>) {
        for path in std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()) {
            if path.is_dir() {
                sources(&path, found);
            } else {
                found.push(path);
            }
        }
    }
    let mut files = Vec::new();
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    sources(&top, &mut files);
    let mut made = 0;
    for file in &files {
        let text = std::fs::read_to_string(file).unwrap();
        let flat: String = text.split_whitespace().collect();
        for code in ["Code::ShutdownFailed,", "Code::RebootFailed,"] {
            for made_there in flat.split(&format!("Error::new({code}")).skip(1) {
                let rest: String = made_there.chars().take(150).collect();
                assert!(rest.contains(".after_success()"), "{}: {code} {rest}", file.display());
                made += 1;
            }
        }
    }
    assert!(made >= 3, "{made}");
}

/// What the head of that page says of the exit codes that have no column.
#[test]
fn exit_codes_after_success_and_of_legacy_names_are_as_documented() {
    use copal::error::{Effect, Error};

    for &code in Code::ALL {
        let error = Error::new(code, "");
        let usage = code == Code::Usage;
        let legacy = match code {
            Code::Usage => 2,
            Code::Aborted => 3,
            _ => 1,
        };
        assert_eq!(exit::of_legacy(&error), legacy, "{code}");
        let behind = exit::of_verb(&error.with_effect(Effect::Completed));
        assert_eq!(behind, if usage { 2 } else { 1 }, "{code}");
    }
}

#[test]
fn every_json_example_is_valid_and_every_key_of_it_documented() {
    let text = doc("json.md");
    let keys: BTreeSet<String> = rows(&text).into_iter().map(|r| r[0].clone()).collect();
    let mut used = BTreeSet::new();
    for block in text.split("```json\n").skip(1) {
        for line in block.split("```").next().unwrap().lines() {
            let value: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
            used.extend(value.as_object().unwrap().keys().cloned());
            assert_eq!(value["version"], 1, "{line}");
        }
    }
    assert_eq!(keys, used, "documented and used in examples");
}

#[test]
fn json_of_the_program_has_documented_keys_only() {
    let keys: BTreeSet<String> = rows(&doc("json.md")).into_iter().map(|r| r[0].clone()).collect();
    let out = Command::new(env!("CARGO_BIN_EXE_copal")).args(["flash", "--json", "--what"]).output().unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    let found: BTreeSet<String> = last.as_object().unwrap().keys().cloned().collect();
    assert!(found.len() == 11 && found.is_subset(&keys), "{text}");
}

/// Verbs, keys of results and events that `json.md` names are those that there are.
#[test]
fn verbs_keys_and_events_of_json_lines_are_documented() {
    fn takes_json(verb: &clap::Command) -> bool {
        verb.get_arguments().any(|a| a.get_long() == Some("json")) || verb.get_subcommands().any(takes_json)
    }
    let text = doc("json.md");
    let first = text.split("take `--json`").next().unwrap();
    let named: BTreeSet<&str> =
        first.split("`copal ").skip(1).map(|rest| rest.split('`').next().unwrap()).collect();
    let main = copal::cli::command();
    let taken: BTreeSet<&str> = main
        .get_subcommands()
        .filter(|c| takes_json(c) && !c.is_hide_set())
        .map(clap::Command::get_name)
        .collect();
    assert_eq!(named, taken);
    assert!(taken.contains("update") && taken.contains("rollback"));

    let (mut results, mut events) = (BTreeSet::new(), BTreeSet::new());
    for file in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cli")).unwrap() {
        let Ok(code) = std::fs::read_to_string(file.unwrap().path()) else { continue };
        let gather = |call: &str, to: &mut BTreeSet<String>| {
            to.extend(code.split(call).skip(1).map(|rest| rest.split('"').next().unwrap().to_owned()));
        };
        gather("ui.result(\"", &mut results);
        gather("ui.finding(\"", &mut events);
    }
    assert!(results.len() >= 9 && events.len() >= 3, "{results:?} {events:?}");
    let part = text.split("one more key may hold").nth(1).unwrap().split("\n\n").next().unwrap();
    for key in results {
        assert!(part.contains(&format!("`{key}`")), "{key}");
    }
    let row = text.lines().find(|l| l.starts_with("| `event` |")).unwrap();
    for event in ["stage", "progress", "result"] {
        assert!(row.contains(&format!("`{event}`")), "{event}");
    }
    for event in events {
        assert!(row.contains(&format!("`{event}`")), "{event}");
        assert!(text.contains(&format!("\n- `{{\"event\":\"{event}\",")), "{event}");
    }
}

#[test]
fn flash_flags_are_the_same_in_help_and_documentation() {
    let text = doc("cli.md");
    let documented: BTreeSet<String> = rows(&text)
        .into_iter()
        .filter_map(|r| Some(r[0].split([' ', '[']).next().filter(|f| f.starts_with("--"))?.to_owned()))
        .collect();
    let mut offered = flags(help("flash").split("Examples:").next().unwrap());
    for common in ["--verbose", "--help"] {
        assert!(offered.remove(common), "{common}");
        assert!(text.contains(common), "{common}");
    }
    assert!(documented.len() >= 11, "{documented:?}");
    assert_eq!(documented, offered);
}

#[test]
fn every_verb_and_every_exit_code_is_in_help_and_documentation() {
    let (text, main) = (doc("cli.md"), help(""));
    for verb in copal::cli::verbs() {
        let words = |s: &str| s.split(|c: char| !c.is_ascii_alphanumeric()).any(|w| w == verb);
        if copal::cli::is_listed(&verb) {
            assert!(words(&text), "{verb} in cli.md");
            assert!(words(&main), "{verb} in help");
        } else {
            // A unit runs it, and the page says which one.
            let line = text.lines().find(|l| l.contains(&format!("`copal {verb}")));
            let line = line.unwrap_or_else(|| panic!("copal {verb} in cli.md"));
            assert!(line.contains(".service`"), "{line}");
            assert!(!main.contains(&format!("\n  {verb} ")), "{verb} in help");
        }
    }
    // Nothing is written by the others.
    for (verb, last) in [("flash", 5), ("verify", 3), ("info", 3), ("digest", 3)] {
        let text = if last == 5 { &text } else { section(&text, verb) };
        assert!(!help(verb).contains(&format!("\n  {}  ", last + 1)), "{verb}");
        for code in 0..=last {
            // A line that goes on is indented.
            let text_of_it = help(verb).replace("\n     ", " ");
            let line =
                text_of_it.lines().find_map(|l| l.strip_prefix(&format!("  {code}  ")).map(str::to_owned));
            let line = line.unwrap_or_else(|| panic!("{code} in help {verb}"));
            assert!(text.contains(&format!("| {code} | {line} |")), "{code} in cli.md");
        }
        assert!(help(verb).contains("Examples:"), "{verb}");
    }
}

/// What the page says of one verb.
fn section<'a>(text: &'a str, verb: &str) -> &'a str {
    let (_, after) = text.split_once(&format!("### `copal {verb}`\n")).unwrap();
    after.split("\n#").next().unwrap()
}

/// 1 is not only a comparison's answer: where the job was done, an error keeps nobody from relying on it.
#[test]
fn tables_of_exit_codes_have_what_comes_after_a_job() {
    for text in [doc("cli.md"), doc("README.md")] {
        let row = text.lines().find(|l| l.starts_with("| 1 | failed; ")).unwrap();
        assert!(row.ends_with("; or the job was done, and only what came after it failed |"), "{row}");
        assert!(text.contains("Of `copal verify`, 1 also means"));
    }
}

#[test]
fn what_boards_and_dashboards_rely_on_is_documented() {
    use copal::install::board::{BOARD_LIMIT_VARIABLE, Environment};
    use copal::progress::cloud;

    let progress = doc("progress.md");
    for text in
        [cloud::STARTING, cloud::FLASHING, cloud::POST_PROVISIONING, cloud::NO_DEVICE, cloud::NOT_SUPPORTED]
    {
        assert!(progress.contains(&format!(" `{text}` |")), "{text}");
    }
    let text = doc("board-programs.md");
    assert!(text.contains(&format!("`{BOARD_LIMIT_VARIABLE}`")));
    let documented: BTreeSet<String> = rows(&text).into_iter().map(|r| r[0].clone()).collect();
    let environment = Environment::new(&copal::config::paths::Paths::default(), Path::new("/c"))
        .with_target(Path::new("/dev/x"));
    for (variable, _) in environment.variables() {
        assert!(documented.contains(variable), "{variable}");
    }
}

#[test]
fn flags_of_bootloader_verbs_are_in_the_documentation() {
    let text = doc("cli.md");
    let part = text.split("### `copal bootloader`").nth(1).unwrap().split("\n### ").next().unwrap();
    let mut offered = BTreeSet::new();
    for verb in ["show", "write", "protect"] {
        let out =
            Command::new(env!("CARGO_BIN_EXE_copal")).args(["bootloader", verb, "--help"]).output().unwrap();
        let help = String::from_utf8(out.stdout).unwrap();
        assert!(part.contains(&format!("copal bootloader {verb}")), "{verb}");
        offered.extend(flags(help.split("Examples:").next().unwrap()));
    }
    for common in ["--verbose", "--help"] {
        assert!(offered.remove(common), "{common}");
    }
    assert_eq!(flags(part), offered);
}

/// The documentation of the phases has every one of them, in the order in which they are decided, and its diagram no other.
#[test]
fn phases_are_those_of_the_program() {
    use copal::state::phase::Phase;
    let text = doc("phases.md");
    let table = text.split("## How they follow").next().unwrap();
    let documented: BTreeSet<String> =
        rows(table).into_iter().filter(|r| r.len() == 7).map(|r| r[0].clone()).collect();
    let phases: BTreeSet<String> = Phase::ALL.iter().map(ToString::to_string).collect();
    assert_eq!(documented, phases);
    let diagram = text.split("stateDiagram-v2").nth(1).unwrap().split("```").next().unwrap();
    let drawn: BTreeSet<String> = diagram
        .lines()
        .filter_map(|l| l.split_once(" --> "))
        .flat_map(|(from, to)| [from, to.split(':').next().unwrap()])
        .map(|name| name.trim().replace('_', " "))
        .filter(|name| name != "[*]")
        .collect();
    assert_eq!(drawn, phases);
}

/// The operator's guide says of every phase what to do.
#[test]
fn the_operator_s_guide_has_every_phase() {
    use copal::state::phase::Phase;
    let text = doc("operating.md");
    let table = text.split("| phase | by itself |").nth(1).unwrap().split("\n\n").next().unwrap();
    let documented: BTreeSet<String> = rows(table).into_iter().map(|r| r[0].clone()).collect();
    assert_eq!(documented, Phase::ALL.iter().map(ToString::to_string).collect());
}

/// The steps of a release name what has the version in its name, and what is not in git.
#[test]
fn the_steps_of_a_release_have_the_layer() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = doc("releasing.md");
    let steps = text.split("\n## Making one\n").nth(1).unwrap().split("\n## ").next().unwrap();
    let recipe = |version: &str| format!("recipes/recipes-support/copal/copal_{version}.bb");
    assert!(steps.contains(&format!("`git mv {} {}`", recipe("OLD"), recipe("NEW"))), "{steps}");
    assert!(top.join(recipe(env!("CARGO_PKG_VERSION"))).is_file());
    assert!(steps.contains("the same with `copal_OLD+source.bb`"), "{steps}");

    assert!(steps.contains("`recipes/pin FOLDER`") && top.join("recipes/pin").is_file());
    let ignored = std::fs::read_to_string(top.join(".gitignore")).unwrap();
    assert!(ignored.contains("/recipes/conf/copal-sha256.inc\n"));
    let layer = std::fs::read_to_string(top.join("recipes/conf/layer.conf")).unwrap();
    assert!(layer.contains("Not in git: `recipes/pin` writes them.\n# nooelint: oelint.file.requireinclude\ninclude conf/copal-sha256.inc\n"));
}

/// A text that is to be filled in later, as `@@FIGURE@@`, is in no page that is published.
#[test]
fn no_page_has_a_placeholder() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut pages = 0;
    for folder in ["", "docs", "fuzz", "qemu", "qemu/init", "recipes"] {
        for entry in std::fs::read_dir(top.join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|end| end == "md") {
                pages += 1;
                for (number, line) in std::fs::read_to_string(&path).unwrap().lines().enumerate() {
                    assert!(!line.contains("@@"), "{}:{}: {line}", path.display(), number + 1);
                }
            }
        }
    }
    assert!(pages > 30, "{pages} pages");
}

/// "Medium" is what a device is installed from, and never the disk that it is installed on.
#[test]
fn a_disk_is_not_called_a_medium() {
    let text = doc("boot-partition.md");
    let part = text.split("\n## What a power cut costs\n").nth(1).unwrap();
    let words: Vec<&str> = part.split_whitespace().collect();
    for pair in words.windows(2).filter(|p| p[1].starts_with("medium")) {
        assert_eq!(pair[0], "installation", "{pair:?}");
    }
    let book = doc("design.md");
    let principles = book.split("\n## Principles\n").nth(1).unwrap().split("\n## ").next().unwrap();
    assert!(!principles.contains("medium") && principles.contains("On the disk means"), "{principles}");
    let readme = doc("README.md");
    let promise = readme.split("\n## What it promises\n").nth(1).unwrap().split("\n## ").next().unwrap();
    assert!(!promise.contains("medium"), "{promise}");
}

/// Disks and room of the virtual boards are those that the farm goes by.
#[test]
fn the_farm_s_readme_has_its_disks_and_its_space() {
    let read =
        |path: &str| std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap();
    let text = read("qemu/README.md");
    let table = text.split("\n## Boards\n").nth(1).unwrap().split("\n\n").next().unwrap();
    assert!(read("qemu/farm/board.py").contains("\nDISK_KINDS = (\"virtio\", \"nvme\", \"virtio-4096\")\n"));
    let mut boards = BTreeSet::new();
    for row in rows(table) {
        // A scenario may take another one with sectors of the same size.
        let (disk, kind) = match row[0].ends_with("-4096") {
            true => ("virtio with sectors of 4096 bytes", "virtio-4096"),
            false => ("virtio or NVMe", "virtio"),
        };
        assert_eq!(row[2], disk, "{}", row[0]);
        let ini = read(&format!("qemu/boards/{}.ini", row[0]));
        assert!(ini.contains(&format!("\nkind = {kind}\n")), "{}", row[0]);
        boards.insert(row[0].clone());
    }
    assert_eq!(boards.len(), 4);

    assert!(read("qemu/farm/place.py").contains("\nSPACE = 10 << 30\n"));
    assert!(text.contains("it needs 10 GiB for each board"));
}

/// Codes, events and words of errors in the operator's guide are those of the program.
#[test]
fn the_operator_s_guide_quotes_the_program() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = doc("operating.md");
    let catalogue = std::fs::read_to_string(top.join("systemd/copal.catalog")).unwrap();
    let events: Vec<&str> = text.split("MESSAGE_ID=").skip(1).filter_map(|t| t.get(..32)).collect();
    assert!(events.len() > 4);
    for event in events {
        assert!(catalogue.contains(&format!("-- {event}\n")), "{event}");
    }
    let table = text.split("| code |").nth(1).unwrap().split("\n\n").next().unwrap();
    let mut codes = 0;
    for row in rows(table) {
        let first = row[0].split(" in ").next().unwrap().to_owned();
        for word in first.split("`, `").map(|w| w.trim_matches('`')) {
            assert!(Code::named(word).is_some(), "{word}");
            codes += 1;
        }
    }
    assert!(codes > 10, "{codes}");
    for (words, file) in [
        ("a boot sector or partition table may be left on it", "src/flash/write/mod.rs"),
        ("it may boot half installed", "src/install/undo.rs"),
        ("but its boot files could not be restored", "src/update/steps.rs"),
        ("AND THE RUNNING SYSTEM COULD NOT BE SELECTED AGAIN", "src/update/steps.rs"),
        ("the health checks failed", "src/cli/status/history.rs"),
        ("the bootloader fell back", "src/cli/status/history.rs"),
    ] {
        let code = std::fs::read_to_string(top.join(file)).unwrap();
        assert!(code.contains(words) && text.replace('\n', " ").contains(words), "{words}");
    }
}
