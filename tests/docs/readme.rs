//! README.md is short, and its figures come from the benchmarks. The pictures (`./dev picture`) exist in both themes and show what the program says today.

use crate::kit::needs::{needs, tools};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use copal::state::phase::Phase;
use roxmltree::{Document, Node};

/// Bytes of one picture.
const MAX_BYTES: usize = 60_000;

fn read(path: &str) -> String {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(top.join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// The text of the first element of that name.
fn element(svg: &Document, name: &str) -> String {
    let found = svg.descendants().find(|n| n.has_tag_name(("http://www.w3.org/2000/svg", name)));
    found.and_then(|n| n.text()).unwrap_or_else(|| panic!("no {name}")).to_owned()
}

/// All of its texts, and whether the end state has them.
fn texts(svg: &Document) -> Vec<(String, bool)> {
    let text = |n: Node| (n.text().unwrap().to_owned(), n.attribute("aria-hidden").is_none());
    svg.descendants().filter(|n| n.tag_name().name() == "text").map(text).collect()
}

/// The lines of the terminal at the end, without the caption above it.
fn lines_at_the_end(name: &str) -> Vec<String> {
    let text = read(&format!("docs/pictures/{name}-light.svg"));
    let svg = Document::parse(&text).unwrap();
    texts(&svg).into_iter().filter(|(_, stays)| *stays).skip(1).map(|(line, _)| line).collect()
}

/// What a page names between two words.
fn named<'a>(page: &'a str, before: &str, after: &str) -> Vec<&'a str> {
    page.split(before).skip(1).map(|rest| rest.split(after).next().unwrap()).collect()
}

#[test]
fn each_picture_is_there_in_both_themes_and_says_the_same() {
    assert_eq!(named(&read("README.md"), "<picture>", "</picture>").len(), 1);
    let page = read("README.md").replace("docs/pictures/", "pictures/") + &read("docs/rollback.md");
    let dark =
        named(&page, "<source media=\"(prefers-color-scheme: dark)\" srcset=\"pictures/", "-dark.svg\"");
    let light = named(&page, "src=\"pictures/", "-light.svg\"");
    assert!(light.len() >= 2 && dark == light, "{dark:?}, {light:?}");
    let about = named(&page, "<img alt=\"", "\"");
    assert!(about.len() == light.len() && about.iter().all(|text| text.len() > 40), "{about:?}");
    let made: BTreeSet<String> =
        std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/pictures"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
    let wanted = light.iter().flat_map(|name| [format!("{name}-light.svg"), format!("{name}-dark.svg")]);
    assert_eq!(made, wanted.collect());

    for name in light {
        let [one, other] = ["light", "dark"].map(|theme| read(&format!("docs/pictures/{name}-{theme}.svg")));
        assert!(one.len() < MAX_BYTES && one != other, "{name}: {} bytes", one.len());
        let [one, other] = [&one, &other].map(|text| Document::parse(text).unwrap());
        assert_eq!(texts(&one), texts(&other), "{name}");
        assert!(texts(&one).iter().filter(|(_, stays)| *stays).count() > 4, "{name}");
        for part in ["title", "desc", "metadata"] {
            assert!(
                !element(&one, part).trim().is_empty() && element(&one, part) == element(&other, part),
                "{name}: {part}"
            );
        }
        assert!(element(&one, "metadata").contains(concat!("copal ", env!("CARGO_PKG_VERSION"))), "{name}");
        // It is shown as an image: nothing may be fetched or run.
        for node in one.descendants().filter(Node::is_element) {
            assert!(
                !["script", "image", "foreignObject", "a", "use"].contains(&node.tag_name().name()),
                "{name}: {node:?}"
            );
            assert!(
                node.attributes().all(|a| a.name() != "href" && !a.name().starts_with("on")),
                "{name}: {node:?}"
            );
        }
    }
}

/// Paths are those of devices, of the board, and of copal's own places there.
#[test]
fn no_picture_shows_the_machine_that_it_was_made_on() {
    let places = ["/dev/loop", "/dev/vd", "/releases/", "/mnt/"];
    for name in ["flash", "rollback"] {
        let text = read(&format!("docs/pictures/{name}-light.svg"));
        let svg = Document::parse(&text).unwrap();
        let said: Vec<String> =
            texts(&svg).into_iter().map(|(line, _)| line).chain([element(&svg, "metadata")]).collect();
        for word in
            said.iter().flat_map(|line| line.split([' ', '\n', '"'])).filter(|word| word.starts_with('/'))
        {
            assert!(
                places.iter().any(|place| word.starts_with(place) || place.starts_with(word)),
                "{name}: {word}"
            );
        }
        for (line, _) in texts(&svg).iter().filter(|(line, _)| line.contains('@') || line.starts_with('#')) {
            assert!(
                line.starts_with("root@board:")
                    || line.starts_with("# copal")
                    || "# copal".starts_with(line.as_str()),
                "{name}: {line}"
            );
        }
    }
}

/// What a terminal of so many columns gets from copal, by lines, without what was overwritten.
fn on_terminal(folder: &Path, columns: u16, words: &str) -> Vec<String> {
    let run = format!("stty cols {columns} rows 24 && exec {} {words}", env!("CARGO_BIN_EXE_copal"));
    let out = Command::new("timeout")
        .args(["60", "script", "-qec", &run, "/dev/null"])
        .current_dir(folder)
        .env("TERM", "xterm")
        .env_remove("NO_COLOR")
        .env_remove("COPAL_LOG")
        .output()
        .unwrap();
    let shown = String::from_utf8(out.stdout).unwrap();
    assert!(out.status.success(), "{shown}");
    shown.trim_end().split("\r\n").map(|line| line.rsplit("\r\u{1b}[K").next().unwrap().to_owned()).collect()
}

/// Columns of the terminal in the pictures.
fn columns() -> u16 {
    named(&read("scripts/screen.py"), "\nCOLUMNS = ", "\n")[0].parse().unwrap()
}

/// The words of a line that are the same in each run.
fn words_of(line: &str) -> Vec<&str> {
    line.split_whitespace()
        .filter(|w| !w.contains(|c: char| c.is_ascii_digit()) && !w.contains("iB"))
        .collect()
}

/// A flash of today ends as the one in the picture does.
#[test]
fn the_flash_in_the_picture_ends_as_one_of_today() {
    needs!(tools);
    let dir = tempfile::tempdir().unwrap();
    // One partition, some data in it, and much that is empty.
    let mut image = vec![0; 4 << 20];
    image[446..462].copy_from_slice(&[0x80, 0, 0, 0, 0x83, 0, 0, 0, 0, 8, 0, 0, 0, 16, 0, 0]);
    image[510..512].copy_from_slice(&[0x55, 0xaa]);
    image[1 << 20..(1 << 20) + 65536].fill(7);
    std::fs::write(dir.path().join("balena.img"), image).unwrap();
    std::fs::write(dir.path().join("disk1"), vec![0xa5; 4 << 20]).unwrap();
    let packed = Command::new("zstd").args(["-q", "balena.img"]).current_dir(dir.path()).status().unwrap();
    assert!(packed.success());
    let today = on_terminal(dir.path(), columns(), "flash --yes --force-raw balena.img.zst disk1");
    let picture = lines_at_the_end("flash");
    // The command, the ending, and the prompt.
    assert!(picture[0].starts_with("# copal flash balena.img.zst /dev/"), "{picture:?}");
    let ending: Vec<_> = picture[1..picture.len() - 1].iter().map(|line| words_of(line)).collect();
    // Before it there is a warning: this image is none of balenaOS.
    let wanted: Vec<_> = today[today.len() - 4..].iter().map(|line| words_of(line)).collect();
    assert_eq!(ending, wanted, "run ./dev picture: {today:#?}");
}

/// The figures are those that `./dev bench` wrote last: after another run, README.md changes too.
#[test]
fn the_figures_of_the_readme_are_those_of_the_benchmarks() {
    let bench = read("docs/benchmarks.md");
    let rows: Vec<Vec<String>> = bench
        .lines()
        .filter(|line| line.starts_with("| "))
        .map(|line| line.trim_matches('|').split(" | ").map(|cell| cell.trim().replace("**", "")).collect())
        .collect();
    let cell = |scenario: &str, contestant: &str, column: usize| -> String {
        let found = rows.iter().find(|row| row[0] == scenario && row[1].starts_with(contestant));
        found.unwrap_or_else(|| panic!("no {scenario}, {contestant}"))[column].clone()
    };
    let page = read("README.md");
    let table: Vec<&str> =
        page.split("\n| images of ").nth(1).unwrap().split("\n## ").next().unwrap().lines().collect();
    let wrong = |tool: &str| {
        rows.iter().find(|row| row[0].contains(tool)).unwrap()[1].trim_end_matches(" |").to_owned()
    };
    let mut wanted: Vec<Vec<String>> = [
        ("30 % full", "copal, whole", "dd conv=sparse bs=4M + sync + cold cmp"),
        ("30 % full, zstd", "copal, whole", "zstd -dc, dd"),
    ]
    .iter()
    .map(|(scenario, ours, theirs)| {
        vec![
            format!("| {} s |", cell(scenario, ours, 2)),
            format!("| {} s: ", cell(scenario, theirs, 2)),
            format!("| {} times as long |", cell(scenario, ours, 5).trim_end_matches(" |")),
        ]
    })
    .collect();
    let [ours, bmaptool, dd] = ["copal flash", "bmaptool copy", "dd conv=sparse"].map(wrong);
    wanted.push(vec![
        format!("| {ours} |"),
        format!("| {bmaptool}: `bmaptool copy`; {dd}: `dd conv=sparse` |"),
    ]);
    let shown: Vec<&&str> = table.iter().filter(|line| line.starts_with("| ")).collect();
    assert_eq!(shown.len(), wanted.len(), "{shown:#?}");
    for (row, figures) in shown.iter().zip(&wanted) {
        assert!(figures.iter().all(|figure| row.contains(figure)), "{row} has not {figures:?}");
    }
}

/// Its first screen says what copal is, for whom, and where it stands.
#[test]
fn the_readme_is_short_and_says_where_copal_stands() {
    let page = read("README.md");
    let words = page.split_whitespace().count();
    assert!(words <= 600, "README.md has {words} words, more than 600");
    assert!(page.contains(concat!("**Status:** version ", env!("CARGO_PKG_VERSION"), ",")), "{page}");
    // docs/proof.md has the same intervals.
    let proof = read("docs/proof.md");
    for line in page.lines().filter(|line| line.ends_with(" % |")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [_, lost, interval] = cells[..] else { panic!("{line}") };
        assert!(proof.contains(lost) && proof.contains(interval), "docs/proof.md has not {line}");
    }
}

/// What a device says today of the rollback that the picture shows, line by line: the records of the board are with the picture.
#[test]
fn the_rollback_in_the_picture_is_told_as_today() {
    let text = read("docs/pictures/rollback-light.svg");
    let made = element(&Document::parse(&text).unwrap(), "metadata");
    let records: String =
        made.lines().filter(|line| line.starts_with('{')).map(|line| format!("{line}\n")).collect();
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("mnt/state/copal")).unwrap();
    std::fs::write(dir.path().join("mnt/state/copal/history.jsonl"), &records).unwrap();
    let today = on_terminal(dir.path(), columns(), "status --root .");
    // A long line goes on in the next one, wherever its words end.
    let dense = |line: &str| line.split_whitespace().collect::<String>();
    let shown: String = lines_at_the_end("rollback").iter().map(|line| dense(line)).collect();
    // This folder has no disks and no boot state. Long lines go on below their text.
    let mut is_other = false;
    let told: Vec<&String> = today
        .iter()
        .filter(|line| {
            if !line.starts_with(' ') {
                is_other = line.starts_with("phase ") || line.starts_with("problem ");
            }
            !is_other
        })
        .collect();
    for line in &told {
        assert!(shown.contains(&dense(line)), "the picture has not {line:?}: run ./dev picture");
    }
    assert!(told.len() >= 5 && told[0].starts_with("rolled back from 5.1.1"), "{told:#?}");
    let phase = format!("phase {}: {}", Phase::Healthy.as_str(), Phase::Healthy.meaning());
    assert!(shown.contains(&dense(&phase)), "{shown}");
}
