//! Links between the pages of the documentation lead somewhere, down to the heading.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

/// Folders whose pages are looked at, with all below them.
const FOLDERS: [&str; 3] = ["docs", "qemu", "recipes"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every Markdown page: those at the top, and those below [`FOLDERS`].
fn pages() -> Vec<PathBuf> {
    fn below(folder: &Path, deep: bool, pages: &mut Vec<PathBuf>) {
        let Ok(entries) = std::fs::read_dir(folder) else { return };
        for path in entries.map(|e| e.unwrap().path()) {
            if path.is_dir() && deep {
                below(&path, true, pages);
            } else if path.extension().is_some_and(|e| e == "md") {
                pages.push(path);
            }
        }
    }
    let mut pages = Vec::new();
    below(root(), false, &mut pages);
    for folder in FOLDERS {
        below(&root().join(folder), true, &mut pages);
    }
    pages.sort();
    pages
}

/// The lines of `text` outside of fenced blocks, with their numbers.
fn prose(text: &str) -> Vec<(usize, &str)> {
    let mut fence: Option<&str> = None;
    let mut lines = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let mark = ["```", "~~~"].into_iter().find(|m| line.trim_start().starts_with(m));
        match (fence, mark) {
            (None, Some(mark)) => fence = Some(mark),
            (Some(open), Some(mark)) if open == mark => fence = None,
            (None, None) => lines.push((number + 1, line)),
            _ => {}
        }
    }
    lines
}

/// A line without what is in backticks.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("`")
}

/// Where the links of a line lead: `[text](target)`.
fn targets(line: &str) -> Vec<String> {
    without_code(line)
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next())
        .map(|target| target.split(' ').next().unwrap().to_owned())
        .collect()
}

/// The anchors of a page, as GitHub and GitLab make them of its headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let mut anchors = BTreeSet::new();
    for (_, line) in prose(text) {
        let title = line.trim_start_matches('#');
        if title.len() == line.len() || !title.starts_with(' ') {
            continue;
        }
        let slug: String = title
            .trim()
            .to_lowercase()
            .chars()
            .filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_' | ' '))
            .map(|c| if c == ' ' { '-' } else { c })
            .collect();
        let times = seen.entry(slug.clone()).or_default();
        anchors.insert(if *times == 0 { slug } else { format!("{slug}-{times}") });
        *times += 1;
    }
    anchors
}

/// What is wrong with a link to `target` on `page`.
fn objection(page: &Path, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = target.split_once('#').map_or((target, None), |(p, a)| (p, Some(a)));
    let file = if path.is_empty() { page.to_owned() } else { page.parent().unwrap().join(path) };
    if !file.exists() {
        return Some(format!("there is no {path}"));
    }
    if !file.canonicalize().unwrap().starts_with(root().canonicalize().unwrap()) {
        return Some(format!("{path} leads out of the repository"));
    }
    let anchor = anchor?;
    if file.extension().is_none_or(|e| e != "md") {
        return Some(format!("{path} is no page with headings"));
    }
    let known = anchors(&std::fs::read_to_string(&file).unwrap());
    (!known.contains(anchor)).then(|| format!("{} has no heading #{anchor}, only {known:?}", file.display()))
}

#[test]
fn every_link_leads_to_a_file_and_a_heading() {
    let (mut wrong, mut links) = (Vec::new(), 0);
    let pages = pages();
    for page in &pages {
        let text = std::fs::read_to_string(page).unwrap();
        for (number, line) in prose(&text) {
            for target in targets(line) {
                links += 1;
                let place = page.strip_prefix(root()).unwrap().display().to_string();
                wrong.extend(objection(page, &target).map(|why| format!("{place}:{number}: {why}")));
            }
        }
    }
    assert!(pages.len() > 25 && links > 150, "{} pages with {links} links", pages.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Each page of `docs/` can be found from its first one.
#[test]
fn the_first_page_lists_every_page() {
    let docs = root().join("docs");
    let readme = std::fs::read_to_string(docs.join("README.md")).unwrap();
    let listed: BTreeSet<String> = prose(&readme).into_iter().flat_map(|(_, line)| targets(line)).collect();
    let missing: Vec<PathBuf> = pages()
        .into_iter()
        .filter_map(|p| p.strip_prefix(&docs).ok().map(Path::to_owned))
        .filter(|p| p != Path::new("README.md") && !listed.contains(p.to_str().unwrap()))
        .collect();
    assert!(missing.is_empty(), "docs/README.md does not link {missing:?}");
}

#[test]
fn a_broken_link_would_be_found() {
    let page = root().join("docs/status.md");
    assert_eq!(objection(&page, "history.md"), None);
    assert_eq!(objection(&page, "#copal-doctor"), None);
    assert_eq!(objection(&page, "https://example.org/#x"), None);
    for target in ["nowhere.md", "history.md#nowhere", "#nowhere", "history.schema.json#x", "../../etc"] {
        assert!(objection(&page, target).is_some(), "{target}");
    }
    let text = "# A `b`: c_d\n## A b c_d\n```\n# none [x](y)\n```\n[a](b.md#c) `[d](e)` [f](g)";
    assert_eq!(anchors(text), ["a-b-c_d", "a-b-c_d-1"].map(str::to_owned).into());
    let found: Vec<String> = prose(text).into_iter().flat_map(|(_, l)| targets(l)).collect();
    assert_eq!(found, ["b.md#c", "g"]);
}
