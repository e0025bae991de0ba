//! What the integrator's guide tells a board layer to write is what copal takes.

use crate::kit::needs::{needs, tools};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use copal::config::bootloaders_conf::BootloadersConf;
use copal::config::flasher_conf::{BootNames, FlasherConf, RawConf};
use copal::config::paths::Paths;
use copal::config::{pattern, update_conf};
use copal::error::Code;

const FLASHER_CONF: &str = "/etc/resin-init-flasher.conf";
/// The heading over the keys that the recipe writes as they are.
const LINES: &str = "Lines of the file that are no variables";
const BOOTLOADERS_CONF: &str = copal::config::bootloaders_conf::PATH;

fn source(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

fn guide() -> String {
    source("docs/integrating.md")
}

/// A fenced block: the heading above it, its language, its text without the indentation of a list.
#[derive(Clone)]
struct Block {
    heading: String,
    language: String,
    text: String,
}

impl Block {
    /// Whether its first line names this file.
    fn is(&self, file: &str) -> bool {
        self.text.lines().next() == Some(&format!("# {file}"))
    }
}

fn blocks() -> Vec<Block> {
    let (mut blocks, mut heading, mut open): (Vec<Block>, String, Option<Block>) = Default::default();
    for line in guide().lines() {
        match (line.trim_start().strip_prefix("```"), &mut open) {
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(language), None) => {
                let (heading, language) = (heading.clone(), language.to_owned());
                open = Some(Block { heading, language, text: String::new() });
            }
            (None, Some(block)) => {
                block.text += line.strip_prefix("  ").unwrap_or(line);
                block.text += "\n";
            }
            (None, None) if line.starts_with('#') => {
                line.trim_start_matches(['#', ' ']).clone_into(&mut heading);
            }
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "a block that does not end");
    blocks
}

fn flasher_conf(text: &str) -> copal::error::Result<FlasherConf> {
    FlasherConf::from_raw(RawConf::parse(text, Path::new(FLASHER_CONF))?)
}

/// A root folder with a medium's boot partition, and an image.
struct Rig {
    dir: tempfile::TempDir,
}

impl Rig {
    fn new() -> Rig {
        let rig = Rig { dir: tempfile::tempdir().unwrap() };
        for folder in ["sys/block", "sys/class/block", "proc/self", "dev", "etc", "mnt/boot"] {
            fs::create_dir_all(rig.at(folder)).unwrap();
        }
        fs::write(rig.at("proc/self/mountinfo"), "").unwrap();
        fs::write(rig.at("proc/swaps"), "Filename Type Size Used Priority\n").unwrap();
        fs::write(rig.at("mnt/boot/config.json"), "{}").unwrap();
        for name in ["grub.cfg_internal", "grub.cfg_internal_luks"] {
            fs::write(rig.at("mnt/boot").join(name), "menuentry").unwrap();
        }
        fs::write(rig.at("image"), vec![7; 4 << 20]).unwrap();
        rig
    }

    fn at(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    /// The program's plan by this configuration.
    fn plan(&self, conf: &str) -> Output {
        fs::write(self.at("etc/resin-init-flasher.conf"), conf).unwrap();
        Command::new(env!("CARGO_BIN_EXE_copal"))
            .args(["flash", "--plan", "--force-raw", "--target", "/disk", "--root"])
            .arg(self.dir.path())
            .arg("--conf")
            .arg(self.at("etc/resin-init-flasher.conf"))
            .arg("--image")
            .arg(self.at("image"))
            .env_remove("COPAL_LOG")
            .env_remove("CONFIG_PATH")
            .output()
            .unwrap()
    }
}

/// Code of a refusal with nothing written.
fn refusal(out: &Output) -> String {
    let text = String::from_utf8(out.stderr.clone()).unwrap();
    assert_eq!(out.status.code(), Some(3), "{text}");
    text.rsplit_once(" [").unwrap().1.split(']').next().unwrap().to_owned()
}

#[test]
fn every_configuration_of_the_flasher_is_taken_as_it_stands() {
    let rig = Rig::new();
    let confs: Vec<Block> = blocks().into_iter().filter(|b| b.is(FLASHER_CONF)).collect();
    assert!(confs.len() >= 4, "GRUB, U-Boot in NOR flash with and without an SPL, an eMMC boot partition");
    for Block { heading, text, .. } in &confs {
        let out = rig.plan(text);
        let said = String::from_utf8(out.stderr.clone()).unwrap();
        assert!(out.status.success(), "{heading}: {said}");
        assert!(!said.contains("is ignored"), "{heading}: {said}");

        let conf = flasher_conf(text).unwrap();
        conf.check_medium(&rig.at("mnt/boot")).unwrap();
        let patterns = conf.internal_device.as_deref().expect(heading);
        assert!(!pattern::expand(patterns).unwrap().is_empty(), "{heading}");
        assert!(conf.balena_image.is_some(), "{heading}");

        // And whatever the page calls needed is needed.
        let needed = ["_BOOTLOADER_CONFIG_PATH=", "BOOTLOADER_IMAGE", "BOOTLOADER_BLOCK_SIZE_OFFSET"];
        for line in text.lines().filter(|l| needed.iter().any(|n| l.contains(n))) {
            let without = text.replacen(&format!("{line}\n"), "", 1);
            assert_eq!(refusal(&rig.plan(&without)), "conf-invalid", "{heading}: without {line}");
        }
    }
    let writes: usize = confs.iter().map(|b| flasher_conf(&b.text).unwrap().bootloader_writes.len()).sum();
    assert!(writes >= 4, "{writes}");
}

/// What stands above a configuration as the layer's lines gives that configuration, and the list below it is the one that they name.
#[test]
fn lines_of_the_layer_the_configuration_and_the_list_agree() {
    let all = blocks();
    let (mut compared, mut with_list) = (0, 0);
    for (at, block) in all.iter().enumerate().filter(|(_, b)| b.language == "bitbake" && b.heading != LINES) {
        let heading = &block.heading;
        let (append, hooks_append) = block.text.split_once("# hostapp-update-hooks.bbappend").unwrap();
        let conf = &all[at + 1];
        assert!(conf.is(FLASHER_CONF) && conf.heading == *heading, "{heading}");
        let assigned: BTreeMap<&str, &str> = append
            .lines()
            .filter_map(|l| l.split_once(" = "))
            .map(|(key, value)| (key, value.trim_matches('"')))
            .collect();
        let read = RawConf::parse(&conf.text, Path::new(FLASHER_CONF)).unwrap();
        let written: BTreeMap<&str, &str> = read
            .entries
            .iter()
            .map(|e| (e.key.as_str(), e.value.as_str()))
            .filter(|e| e.0 != "BALENA_IMAGE")
            .collect();
        assert_eq!(assigned, written, "{heading}");
        compared += 1;

        let value = |start: &str| {
            let line = hooks_append.lines().find_map(|l| l.strip_prefix(start));
            line.map(|l| l.trim_matches('"').to_owned())
        };
        let hooks = value("HOSTAPP_HOOKS += ").unwrap();
        let hooks: Vec<&str> = hooks.split(' ').collect();
        let names = copal::names::applets().map(|a| a.name);
        let known: Vec<&str> = names.filter(|n| hooks.contains(n)).collect();
        assert_eq!(known.len(), hooks.len(), "{hooks:?}");
        let selects = |h: &&&str| ["99-resin-grub", "99-resin-uboot", "99-balena-bootloader"].contains(*h);
        assert_eq!(hooks.iter().filter(selects).count(), 1, "{hooks:?}");

        // A board's medium and its updates write the same loaders to the same places.
        let list = all.get(at + 2).filter(|b| b.is(BOOTLOADERS_CONF) && b.heading == *heading);
        let named = value("COPAL_BOOTLOADERS_CONF = ");
        assert_eq!(named.as_deref(), list.map(|_| "bootloaders.conf"), "{heading}");
        let found = value("FILESEXTRAPATHS:prepend := ");
        assert_eq!(found.as_deref(), list.map(|_| "${THISDIR}/files:"), "{heading}: where the list is");
        let Some(list) = list else { continue };
        let name = |path: &Path| path.file_name().unwrap().to_owned();
        let by_medium = flasher_conf(&conf.text).unwrap().bootloader_writes;
        let by_medium: Vec<_> =
            by_medium.iter().map(|w| (w.device.clone(), name(&w.image), w.offset())).collect();
        let by_update = BootloadersConf::parse(&list.text, Path::new(BOOTLOADERS_CONF)).unwrap().writes;
        let by_update: Vec<_> =
            by_update.iter().map(|w| (w.device.clone(), name(&w.image), w.offset())).collect();
        assert_eq!(by_medium, by_update, "{heading}");
        with_list += 1;
    }
    assert!(compared >= 4 && with_list >= 3, "{compared} configurations, {with_list} with a list");
}

#[test]
fn the_rules_for_updates_are_taken_as_they_stand() {
    let block = blocks().into_iter().find(|b| b.is(update_conf::FILE)).unwrap();
    let root = tempfile::tempdir().unwrap();
    fs::create_dir_all(root.path().join("etc/copal")).unwrap();
    fs::write(root.path().join(update_conf::FILE.trim_start_matches('/')), block.text).unwrap();
    let conf = update_conf::UpdateConf::read(&Paths::new(root.path())).unwrap();
    assert_eq!(conf.always_read_slot, Some("A"));
}

/// Each row of the table of boards, as a file.
#[test]
fn the_lines_of_each_family_of_boards_are_taken_as_they_stand() {
    let guide = guide();
    let table = guide.split("| boards | lines |").nth(1).unwrap().split("\n\n").next().unwrap();
    let root = tempfile::tempdir().unwrap();
    fs::create_dir_all(root.path().join("etc/copal")).unwrap();
    let paths = Paths::new(root.path());
    let mut read = 0;
    for row in table.lines().filter(|row| row.starts_with("| ")) {
        let cells: Vec<&str> = row.split(" | ").collect();
        let lines: Vec<&str> = cells[1].split('`').skip(1).step_by(2).collect();
        fs::write(paths.at(update_conf::FILE), lines.join("\n")).unwrap();
        let conf = update_conf::UpdateConf::read(&paths).unwrap_or_else(|e| panic!("{row}: {e}"));
        assert_eq!(conf == update_conf::UpdateConf::default(), lines.is_empty(), "{row}");
        for line in lines {
            let key = line.split('=').next().unwrap();
            assert!(update_conf::KEYS.contains(&key), "{row}: {key}");
        }
        read += 1;
    }
    assert_eq!(read, 19, "families of boards");
}

#[test]
fn every_list_of_bootloaders_is_taken_as_it_stands() {
    let parse = |text: &str| BootloadersConf::parse(text, Path::new(BOOTLOADERS_CONF));
    let lists: Vec<Block> = blocks().into_iter().filter(|b| b.is(BOOTLOADERS_CONF)).collect();
    for block in &lists {
        parse(&block.text).unwrap_or_else(|e| panic!("{}: {e}", block.heading));
        for line in block.text.lines().filter(|l| l.starts_with("device") || l.starts_with("image")) {
            let without = block.text.replacen(&format!("{line}\n"), "", 1);
            assert_eq!(parse(&without).unwrap_err().code(), Code::ConfInvalid, "without {line}");
        }
    }
    assert!(lists.len() >= 5, "{}", lists.len());
}

/// The guide's part about the flasher's variables, and within it the one about lines that are none.
fn parts() -> (String, String) {
    let text = guide();
    let part = text.split("\n### Of `resin-init-flasher`").nth(1).unwrap().split("\n### ").next().unwrap();
    let (variables, lines) = part.split_once("\n#### ").unwrap();
    (variables.to_owned(), lines.to_owned())
}

/// The rows of both tables: name, meaning, default, example, what is refused.
fn rows() -> Vec<Vec<String>> {
    let (variables, lines) = parts();
    [variables, lines].iter().flat_map(|text| rows_of(text)).collect()
}

fn rows_of(text: &str) -> Vec<Vec<String>> {
    let rows: Vec<Vec<String>> = text
        .lines()
        .filter(|l| l.starts_with("| `"))
        .map(|l| l.trim_matches('|').split('|').map(|c| c.trim().to_owned()).collect())
        .collect();
    assert!(rows.iter().all(|r| r.len() == 5), "{rows:?}");
    rows
}

fn bare(cell: &str) -> &str {
    cell.split(['`', ',']).nth(1).unwrap_or(cell)
}

#[test]
fn the_table_has_the_variables_that_the_program_reads() {
    let code = source("src/config/flasher_conf.rs");
    let is_key = |w: &&str| w.len() > 5 && w.chars().all(|c| c.is_ascii_uppercase() || c == '_' || c == '1');
    let read: BTreeSet<&str> = code.split('"').skip(1).step_by(2).filter(is_key).collect();
    let rows = rows();
    let documented: BTreeSet<&str> = rows.iter().map(|r| bare(&r[0])).collect();
    assert_eq!(documented, read);
    assert!(read.len() == 23, "{}", read.len());

    // Whether it is read shows in the warning about an override of it.
    let rig = Rig::new();
    let overrides: String = documented.iter().map(|key| format!("{key}_mymachine=1\n")).collect();
    let said = String::from_utf8(rig.plan(&overrides).stderr).unwrap();
    for key in documented {
        assert!(
            said.contains(&format!("{key}_mymachine is ignored; an override of {key} belongs")),
            "{key}: {said}"
        );
    }
}

/// The value of `NAME = "…"` in a recipe, with its continued lines.
fn assigned(recipe: &str, name: &str) -> String {
    let text = recipe.split(&format!("\n{name} = \"")).nth(1).unwrap();
    text.split('"').next().unwrap().replace('\\', " ")
}

/// A key that the recipe writes as it is looks like a variable, and an assignment to it does nothing.
#[test]
fn variables_and_mere_lines_are_distinguished_as_the_recipe_does() {
    let class = source("recipes/classes/copal_flasher_conf.bbclass");
    let set = assigned(&class, "COPAL_FLASHER_VARIABLES");
    let set: BTreeSet<&str> = set.split_whitespace().collect();
    let (variables, lines) = parts();
    let (variables, rest) = (rows_of(&variables), rows_of(&lines));
    let names: BTreeSet<&str> = variables.iter().map(|r| bare(&r[0])).collect();
    assert_eq!(names, set);
    for key in rest.iter().map(|r| bare(&r[0])) {
        // Those that a migration or a layer adds.
        let written = class.contains(&format!("\"{key}="));
        assert_eq!(written, !matches!(key, "POSTINSTALL_REBOOT" | "INSTALLER_CONFIRM"), "{key}");
        assert!(!set.contains(key), "{key}");
    }
    assert!(rest.len() >= 8, "{rest:?}");

    // The example adds a line that counts.
    let example = lines.split("```bitbake").nth(1).unwrap().split("```").next().unwrap();
    let body = example.split("do_install:append() {\n").nth(1).unwrap().split("\n}").next().unwrap();
    let place = tempfile::tempdir().unwrap();
    fs::create_dir(place.path().join("etc")).unwrap();
    let file = place.path().join("etc/resin-init-flasher.conf");
    fs::write(&file, "INTERNAL_DEVICE_KERNEL=\"sda\"\nPOSTINSTALL_REBOOT=0\n").unwrap();
    let end =
        Command::new("sh").args(["-euc", body]).env("D", place.path()).env("sysconfdir", "/etc").status();
    assert!(end.unwrap().success());
    assert!(flasher_conf(&fs::read_to_string(&file).unwrap()).unwrap().postinstall_reboot);

    // In the other recipe, what a machine's configuration may assign is copal's own.
    let text = guide();
    let part = text.split("\n### Of `hostapp-update-hooks`").nth(1).unwrap().split("\n### ").next().unwrap();
    let append = source(
        "recipes/dynamic-layers/balena-common/recipes-support/hostapp-update-hooks/hostapp-update-hooks.bbappend",
    );
    let own = part.lines().filter_map(|l| l.strip_prefix("| `COPAL_")?.split('`').next());
    let own: Vec<&str> = own.collect();
    assert!(!own.is_empty());
    for name in own {
        assert!(append.contains(&format!("\nCOPAL_{name} ?= ")), "COPAL_{name}");
    }

    // A third recipe takes the machine's, and writes those keys that the program reads.
    let class = source("recipes/classes/copal_update_conf.bbclass");
    let set = assigned(&class, "COPAL_UPDATE_VARIABLES");
    let part = text.split("\n### Of the machine").nth(1).unwrap().split("\n## ").next().unwrap();
    let rows: Vec<(String, String)> = part
        .lines()
        .filter(|l| l.starts_with("| `"))
        .map(|l| l.split(" | ").map(|cell| bare(cell).to_owned()))
        .map(|mut cells| (cells.next().unwrap(), cells.next().unwrap()))
        .collect();
    let mut keys: Vec<&str> = rows.iter().map(|(_, key)| key.as_str()).collect();
    assert!(rows.iter().all(|(name, key)| name.strip_prefix("COPAL_") == Some(key)), "{rows:?}");
    assert_eq!(rows.len(), set.split_whitespace().count());
    assert!(set.split_whitespace().all(|name| rows.iter().any(|row| row.0 == name)), "{set}");
    let mut read = update_conf::KEYS.to_vec();
    keys.sort_unstable();
    read.sort_unstable();
    assert_eq!(keys, read);
}

#[test]
fn examples_defaults_and_codes_of_the_table_are_those_of_the_program() {
    let rows = rows();
    let conf: String = rows.iter().map(|r| format!("{}='{}'\n", bare(&r[0]), bare(&r[3]))).collect();
    let read = flasher_conf(&conf).unwrap();
    assert_eq!(read.bootloader_writes.len(), 2);
    assert!(read.postinstall_reboot && read.use_luks == Some(false));
    assert!(pattern::expand(read.internal_device.as_deref().unwrap()).is_ok());
    let said = Rig::new().plan(&conf);
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));

    let default = |key: &str| bare(&rows.iter().find(|r| bare(&r[0]) == key).unwrap()[2]).to_owned();
    let names = BootNames {
        splash: default("BALENA_SPLASH_CONFIG"),
        bootloader_config: default("BALENA_BOOTLOADER_CONFIG"),
        nm_config: default("BALENA_NM_CONFIG"),
        nm_dispatcher: default("BALENA_NM_DISPATCHER"),
        proxy_config: default("BALENA_PROXY_CONFIG"),
    };
    assert_eq!(names, BootNames::default());

    let codes: BTreeSet<&str> = Code::ALL.iter().map(|c| c.as_str()).collect();
    let mut named = 0;
    for cell in rows.iter().map(|r| &r[4]) {
        for word in cell.split('`').skip(1).step_by(2).filter(|w| w.contains('-')) {
            assert!(codes.contains(word), "{word}");
            named += 1;
        }
    }
    assert!(named > 15, "{named}");
}

/// Between two boot files an update leaves files of two releases: whoever makes a board has to know.
#[test]
fn what_an_update_asks_of_a_board_is_in_its_table_of_power_cuts() {
    let text = guide();
    let row = text.lines().find(|l| l.starts_with("| boot partition: boot files | update |")).unwrap();
    assert!(row.contains("of two releases") && row.contains("(design.md#an-update-1)"), "{row}");
    let book = source("docs/design.md");
    let part = book.split("\n### An update\n").nth(1).unwrap().split("\n### ").next().unwrap();
    assert!(part.contains("asks something of a board") && part.contains("a mix"), "{part}");
}

/// The lines of the commands of a part, without their comments.
fn commands(heading: &str) -> Vec<String> {
    let all = blocks().into_iter().filter(|b| b.heading == heading && b.language == "sh");
    let lines: Vec<String> =
        all.flat_map(|b| b.text.lines().map(str::to_owned).collect::<Vec<_>>()).collect();
    lines.iter().map(|l| l.split(" #").next().unwrap().trim_end().to_owned()).collect()
}

/// The medium flashes by itself unless its unit is masked, which cannot be started then; and nobody reboots but who is told to.
#[test]
fn the_first_device_can_be_followed_line_by_line() {
    let unit = "resin-init-flasher.service";
    assert!(source(&format!("systemd/{unit}")).contains("\nWantedBy=multi-user.target\n"));
    let text = guide();
    let part = text.split("\n## The first device\n").nth(1).unwrap();
    let masked = part.find(&format!("`systemd.mask={unit}`")).unwrap();
    assert!(masked < part.find("```sh").unwrap() && !part.contains("systemctl start"));
    assert!(source("docs/operating.md").contains(&format!("`systemd.mask={unit}`")));

    let commands = commands("The first device");
    let at = |line: &str| commands.iter().position(|c| c == line).unwrap_or_else(|| panic!("no {line}"));
    assert!(at("copal doctor") < at("copal flash --plan") && at("copal flash --plan") < at("copal flash"));
    let update = commands.iter().position(|c| c.starts_with("copal update ")).unwrap();
    assert!(!commands[update].contains(" -r"));
    assert!(update < at("copal status") && at("copal status") < at("reboot"));
}

/// Without `--full` the hooks that run before and after an update are not listed, and those behind the verdict never are.
#[test]
fn every_hook_is_listed_by_one_of_the_guide_s_commands() {
    let hooks = tempfile::tempdir().unwrap();
    let names = ["1-before", "2-plain", "3-forward", "4-after", "5-commit"];
    for name in names {
        // Those of a phase other than the first format's are in folders.
        let place = if name == "2-plain" { name.to_owned() } else { format!("50-x/{name}") };
        let place = hooks.path().join(place);
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        fs::write(place, "#!/bin/sh\n").unwrap();
    }
    for part in ["Without a device", "The first device"] {
        let mut listed = BTreeSet::new();
        let commands = commands(part);
        for command in commands.iter().filter_map(|c| c.strip_prefix("copal hooks ")) {
            let flags = command.split(' ').take_while(|w| *w != "--dir");
            let out = Command::new(env!("CARGO_BIN_EXE_copal"))
                .arg("hooks")
                .args(flags)
                .arg("--dir")
                .arg(hooks.path())
                .output()
                .unwrap();
            assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
            let text = String::from_utf8(out.stdout).unwrap();
            listed.extend(text.lines().map(|l| l.rsplit('/').next().unwrap().to_owned()));
        }
        assert_eq!(listed, names.map(str::to_owned).into(), "{part}");
    }
}

#[test]
fn commands_and_scripts_of_the_guide_are_sound() {
    needs!(tools);
    let copal = |args: &[&str]| {
        let out = Command::new(env!("CARGO_BIN_EXE_copal")).args(args).output().unwrap();
        assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    };
    let (mut commands, mut scripts) = (0, 0);
    for block in blocks().iter().filter(|b| b.language == "sh") {
        for line in block.text.lines().filter_map(|l| l.trim_start_matches("exec ").strip_prefix("copal ")) {
            let words: Vec<&str> = line.split(" #").next().unwrap().split_whitespace().collect();
            let verbs: Vec<&str> =
                words.iter().copied().take(2).take_while(|w| !w.starts_with('-')).collect();
            let verbs = if words[0] == "bootloader" { &verbs[..] } else { &verbs[..1] };
            let help = copal(&[&["help"], verbs].concat());
            for flag in words.iter().filter(|w| w.starts_with('-')) {
                let known = help.split(|c: char| c.is_whitespace() || c == ',').any(|w| w == *flag);
                assert!(known, "{line}: {flag}");
            }
            commands += 1;
        }
        if block.text.starts_with("#!/bin/sh\n") {
            let mut check = Command::new("shellcheck")
                .arg("-")
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            check.stdin.take().unwrap().write_all(block.text.as_bytes()).unwrap();
            let out = check.wait_with_output().unwrap();
            assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
            scripts += 1;
        }
    }
    assert!(commands >= 10 && scripts >= 2, "{commands} commands, {scripts} scripts");
}
