//! Manual pages and completions of a release: nothing is left out, and shells take the completions.

use std::io::Write as _;
use std::process::{Command, Stdio};

use crate::contents::rows;
use crate::kit::needs::not_run;
use crate::{pages, said};

/// What is made is what a release installs.
#[test]
fn every_page_and_completion_has_its_row_and_every_row_its_page() {
    let is_made = |source: &str| source.starts_with("man/") || source.starts_with("completions/");
    let mut listed: Vec<String> =
        rows().into_iter().filter(|r| r.kind == "file" && is_made(&r.source)).map(|r| r.source).collect();
    listed.sort();
    assert_eq!(listed, pages::all().unwrap().into_keys().collect::<Vec<_>>());
}

#[test]
fn what_an_earlier_program_left_in_the_folder_goes() {
    let dir = tempfile::tempdir().unwrap();
    let at = |path: &str| dir.path().join(path);
    std::fs::create_dir(at("man")).unwrap();
    std::fs::write(at("man/copal-gone.1"), "").unwrap();
    std::fs::write(at("copal-x86_64"), "").unwrap();
    pages::write(dir.path()).unwrap();
    assert!(!at("man/copal-gone.1").exists() && at("copal-x86_64").exists());
    for (path, text) in pages::all().unwrap() {
        assert_eq!(std::fs::read_to_string(at(&path)).unwrap(), text, "{path}");
    }
}

#[test]
fn pages_have_their_name_and_a_synopsis() {
    let all = pages::all().unwrap();
    for name in ["copal", "copal-flash", "copal-rollback-health", "fatrw-write", "hostapp-update-hooks"] {
        let text = &all[&format!("man/{name}.1")];
        assert!(text.lines().any(|l| l.starts_with(&format!(".TH {name} 1 "))), "{text}");
        assert!(text.contains("\n.SH SYNOPSIS\n"), "{text}");
    }
}

/// The words after the name in the synopsis of a page.
fn synopsis(page: &str) -> String {
    let line = page.split(".SH SYNOPSIS\n").nth(1).unwrap().lines().next().unwrap();
    line.replace("\\-", "-").replace("\\fB", "").replace("\\fR", "").replace("\\fI", "")
}

#[test]
fn the_synopsis_has_the_values_of_options() {
    let all = pages::all().unwrap();
    let of = |name: &str| synopsis(&all[&format!("man/{name}.1")]);
    let flash = of("copal-flash");
    for call in ["[--image FILE]", "[--sha256[=HEX]]", "[--plan]", "[IMAGE] [TARGET]"] {
        assert!(flash.contains(call), "{call} in {flash}");
    }
    assert!(!flash.contains("--root"), "{flash}");
    assert!(of("copal-verify").contains("[IMAGE] [TARGET]"), "{}", of("copal-verify"));
    assert!(of("copal-update").contains("(--file FILE | --image IMAGE)"), "{}", of("copal-update"));
    assert!(of("copal-rollback").trim_end().ends_with("COMMAND"), "{}", of("copal-rollback"));
}

/// Options and verbs that help does not list, with those of verbs.
fn hidden(command: &clap::Command) -> Vec<String> {
    let options = command.get_arguments().filter(|a| a.is_hide_set());
    let mut found: Vec<String> = options.filter_map(|a| a.get_long()).map(|l| format!("--{l}")).collect();
    for sub in command.get_subcommands() {
        found.extend(sub.is_hide_set().then(|| sub.get_name().to_owned()));
        found.extend(hidden(sub));
    }
    found.sort();
    found.dedup();
    found
}

#[test]
fn what_help_does_not_list_is_in_no_completion() {
    let hidden = hidden(&copal::cli::command());
    assert!(["--root", "--idle", "job", "reboot"].iter().all(|name| hidden.contains(&(*name).to_owned())));
    let all = pages::all().unwrap();
    let options = hidden.iter().filter_map(|name| name.strip_prefix("--"));
    // An option of another verb may have the name of a hidden verb.
    let verbs = hidden.iter().filter(|name| !name.starts_with("--"));
    let bash = &all["completions/copal.bash"];
    for name in options {
        assert!(!bash.contains(&format!("--{name}")), "bash: --{name}");
        assert!(!all["completions/_copal"].contains(&format!("--{name}")), "zsh: --{name}");
        assert!(!all["completions/copal.fish"].contains(&format!("-l {name} ")), "fish: --{name}");
    }
    for verb in verbs {
        assert!(!bash.contains(&format!("copal,{verb})")), "bash: {verb}");
        assert!(!all["completions/_copal"].contains(&format!("'{verb}:")), "zsh: {verb}");
        assert!(!all["completions/copal.fish"].contains(&format!("-a \"{verb}\"")), "fish: {verb}");
    }
}

/// Every verb that help lists has a page with each of its options; the page says what the help says.
#[test]
fn pages_leave_nothing_out() {
    let all = pages::all().unwrap();
    let plain =
        |text: &str| text.replace("\\-", "-").replace("\\fB", "").replace("\\fR", "").replace("\\fI", "");
    let verbs: Vec<String> = copal::cli::verbs().into_iter().filter(|v| v != "help").collect();
    let (listed, others): (Vec<&String>, Vec<&String>) = verbs.iter().partition(|v| copal::cli::is_listed(v));
    for verb in others {
        assert!(!all.contains_key(&format!("man/copal-{verb}.1")), "only units run {verb}");
    }
    for verb in listed {
        let text = plain(&all[&format!("man/copal-{verb}.1")]);
        let help = said(&[verb, "--help"]).unwrap();
        for flag in help.split_whitespace().filter(|w| w.starts_with("--")) {
            let flag = flag.trim_matches(|c: char| !c.is_ascii_alphanumeric() && c != '-');
            let flag = flag.split(['=', '[', '.', ',']).next().unwrap();
            assert!(text.contains(flag), "{flag} in the page of {verb}");
        }
        for heading in ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS"] {
            assert!(text.contains(&format!(".SH {heading}\n")), "{heading} in the page of {verb}");
        }
    }
    let flash = &all["man/copal-flash.1"];
    assert!(flash.contains(".SH EXAMPLES\n.nf\n") && flash.contains(".SH \"EXIT CODES\"\n.nf\n"), "{flash}");
    assert!(all.contains_key("man/fatrw-write.1") && all.contains_key("man/copal-rollback-health.1"));
}

/// Whether `shell` accepts `script` without running it.
fn accepts(shell: &str, script: &str) {
    let child = Command::new(shell).arg("-n").stdin(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let Ok(mut child) = child else {
        return not_run(&format!("completions for {shell}"), &format!("needs {shell}"));
    };
    child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    let o = child.wait_with_output().unwrap();
    let error = String::from_utf8_lossy(&o.stderr);
    assert!(o.status.success() && error.is_empty(), "{shell}: {error}");
}

#[test]
fn completions_are_valid_and_know_verbs_and_flags() {
    let all = pages::all().unwrap();
    for (shell, file) in [("bash", "copal.bash"), ("zsh", "_copal"), ("fish", "copal.fish")] {
        let script = &all[&format!("completions/{file}")];
        for word in ["flash", "verify", "digest", "hooks", "mark-good", "single-pass", "no-power-off"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
        assert!(script.contains("bootloader") && script.contains("daemon"), "{shell}");
        accepts(shell, script);
    }
}

#[test]
fn bash_completes_verbs_and_flags() {
    let script = &pages::all().unwrap()["completions/copal.bash"];
    let ask = |words: &str, count: usize| {
        let last = words.split(' ').next_back().unwrap();
        let program = format!(
            "{script}\nCOMP_WORDS=({words}); COMP_CWORD={count}; _copal copal '{last}' ''; echo \"${{COMPREPLY[@]}}\""
        );
        let out = Command::new("bash").args(["--norc", "-c", &program]).output().unwrap();
        String::from_utf8(out.stdout).unwrap()
    };
    assert_eq!(ask("copal ver", 1).trim(), "verify");
    assert_eq!(ask("copal flash --si", 2).trim(), "--single-pass");
}
