//! The board's configuration: what is read, what is refused, and with which words.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use copal::config::flasher_conf::{Assignment, FlasherConf, RawConf};
use copal::config::{pattern, shell_conf};
use copal::error::{Code, Error};
use proptest::prelude::*;

fn few(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

fn raw(text: &str) -> Result<RawConf, Error> {
    RawConf::from_bytes(text.as_bytes(), Path::new("/etc/f.conf"))
}

fn typed(text: &str) -> Result<FlasherConf, Error> {
    FlasherConf::from_raw(raw(text).unwrap())
}

fn pairs(conf: &RawConf) -> Vec<(&str, &str)> {
    conf.entries.iter().map(|e| (e.key.as_str(), e.value.as_str())).collect()
}

/// Sources each text in a bash of its own scope and returns the value of `key` there.
fn bash_values(texts: &[String], key: &str) -> Vec<Vec<u8>> {
    let dir = tempfile::tempdir().unwrap();
    for (i, text) in texts.iter().enumerate() {
        fs::write(dir.path().join(i.to_string()), text).unwrap();
    }
    let script = format!(
        "for i in $(seq 0 {}); do (set -ea; HOME=/home/h; . ./$i; printf %s \"${key}\"); printf '\\0'; done",
        texts.len() - 1
    );
    let output =
        Command::new("bash").args(["-c", &script]).current_dir(&dir).env_remove(key).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let values: Vec<Vec<u8>> = output.stdout.split(|&b| b == 0).map(<[u8]>::to_vec).collect();
    assert_eq!(values.len(), texts.len() + 1);
    values[..texts.len()].to_vec()
}

// --- the shell fragment ---

/// Texts that set `K`, and what it is.
const ACCEPTED: &[(&str, &str)] = &[
    ("K=a", "a"),
    ("K=", ""),
    ("K=''", ""),
    ("  \tK=a  \t", "a"),
    ("# K=x\n\n   # more\nK=a # not this\n#", "a"),
    ("K=a#b", "a#b"),
    ("K= # empty", ""),
    ("K=#x", "#x"),
    ("K=\"md/balena{,_*} nvme?n? sd? mmcblk? vd?\"", "md/balena{,_*} nvme?n? sd? mmcblk? vd?"),
    ("K=md/balena{,_*}", "md/balena{,_*}"),
    ("K=[a]?*!^", "[a]?*!^"),
    ("K=a'b c'\"d e\"\\ f", "ab cd e f"),
    ("K='$(reboot) `reboot` $K ${K} \\'", "$(reboot) `reboot` $K ${K} \\"),
    ("K=\"a\\\"b\\\\c\\$d\\`e\\f'#\"", "a\"b\\c$d`e\\f'#"),
    ("K=\\$HOME\\`x\\`\\;\\~", "$HOME`x`;~"),
    ("K=a\\\nb", "ab"),
    ("K=\\\n  # empty", ""),
    ("K=\"a\\\nb\nc\"", "ab\nc"),
    ("K='a\\\nb'", "a\\\nb"),
    ("K=1\nK=2\nK=3", "3"),
    ("K=1\nK=", ""),
    ("export K=a", "a"),
    ("export\t  K='a b' # x", "a b"),
    ("export=no\nK=a", "a"),
    ("K=a$", "a$"),
    ("K=a$.b$/c", "a$.b$/c"),
    ("K=a$\\\n.b\"$\\\n/\"$\\\n", "a$.b$/$"),
    ("K=\"a$ b$'c$\"", "a$ b$'c$"),
    ("K=a~b:c\\~=~", "a~b:c~=~"),
    ("K=\"~\"'~'", "~~"),
    ("K=\"\"~", "~"),
    ("K=a=b=c", "a=b=c"),
    ("K=ä\u{a0}ü", "ä\u{a0}ü"),
    ("_k9=x\nK=a", "a"),
];

#[test]
fn values_are_those_of_a_shell() {
    let texts: Vec<String> = ACCEPTED.iter().map(|(text, _)| (*text).to_owned()).collect();
    for ((text, expected), bash) in ACCEPTED.iter().zip(bash_values(&texts, "K")) {
        assert_eq!(raw(text).unwrap().get("K"), Some(*expected), "{text}");
        assert_eq!(String::from_utf8(bash).unwrap(), *expected, "bash: {text}");
    }
}

#[test]
fn line_ends_of_editors_are_taken() {
    let crlf = raw("\u{feff}# x\r\nA=1\r\n\r\nB=\"2\" # y\r\nC=a\\\r\nb\r\nD=\r\nE=5\r").unwrap();
    assert_eq!(pairs(&crlf), [("A", "1"), ("B", "2"), ("C", "ab"), ("D", ""), ("E", "5")]);
    let lines: Vec<usize> = crlf.entries.iter().map(|e| e.line).collect();
    assert_eq!(lines, [2, 4, 5, 7, 8]);
    assert_eq!(raw("").unwrap().entries, []);
    assert_eq!(raw("\\\n").unwrap().entries, []);
}

/// Texts that are refused, the code, and line:column.
const REFUSED: &[(&str, Code, &str)] = &[
    // expansion
    ("K=$(reboot)", Code::ConfExpansion, "1:3"),
    ("A=1\nK=a`reboot`", Code::ConfExpansion, "2:4"),
    ("K=$HOME", Code::ConfExpansion, "1:3"),
    ("K=${HOME}", Code::ConfExpansion, "1:3"),
    ("K=\"a $HOME\"", Code::ConfExpansion, "1:6"),
    ("K=\"ä\nb $(x)\"", Code::ConfExpansion, "2:3"),
    ("K=\"`x`\"", Code::ConfExpansion, "1:4"),
    ("K='a'\"b\"$1", Code::ConfExpansion, "1:9"),
    ("K=$'a'", Code::ConfExpansion, "1:3"),
    ("K=$\"a\"", Code::ConfExpansion, "1:3"),
    ("K=$[1+1]", Code::ConfExpansion, "1:3"),
    ("K=$?", Code::ConfExpansion, "1:3"),
    ("K=$$", Code::ConfExpansion, "1:3"),
    ("K=:'a'~$\\\na", Code::ConfExpansion, "1:8"),
    ("K=\"$\\\n\\\n{a}\"", Code::ConfExpansion, "1:4"),
    ("K=$\\\n(reboot)", Code::ConfExpansion, "1:3"),
    ("K=~", Code::ConfExpansion, "1:3"),
    ("K=a:~/b", Code::ConfExpansion, "1:5"),
    ("$(reboot)", Code::ConfExpansion, "1:1"),
    ("K$X=1", Code::ConfExpansion, "1:2"),
    ("`reboot`", Code::ConfExpansion, "1:1"),
    // syntax
    ("K=a b", Code::ConfSyntax, "1:5"),
    ("K= a", Code::ConfSyntax, "1:4"),
    ("A=1 B=2", Code::ConfSyntax, "1:5"),
    ("K=a;reboot", Code::ConfSyntax, "1:4"),
    ("K=a ; reboot", Code::ConfSyntax, "1:5"),
    ("K=a&b", Code::ConfSyntax, "1:4"),
    ("K=a|b", Code::ConfSyntax, "1:4"),
    ("K=a>b", Code::ConfSyntax, "1:4"),
    ("K=<(b)", Code::ConfSyntax, "1:3"),
    ("K=(a b)", Code::ConfSyntax, "1:3"),
    ("K=a)", Code::ConfSyntax, "1:4"),
    ("# x\n\tK='a\nb", Code::ConfSyntax, "2:4"),
    ("K=a\"b", Code::ConfSyntax, "1:4"),
    ("K=a\\", Code::ConfSyntax, "1:4"),
    ("K=a\rb", Code::ConfSyntax, "1:4"),
    ("K =a", Code::ConfSyntax, "1:1"),
    ("K ?= mmcblk?", Code::ConfSyntax, "1:1"),
    ("K ??= mmcblk?", Code::ConfSyntax, "1:1"),
    ("K += a", Code::ConfSyntax, "1:1"),
    ("K+=a", Code::ConfSyntax, "1:1"),
    ("K[0]=a", Code::ConfSyntax, "1:1"),
    ("=a", Code::ConfSyntax, "1:1"),
    ("1K=a", Code::ConfSyntax, "1:1"),
    ("Ä=a", Code::ConfSyntax, "1:1"),
    ("reboot", Code::ConfSyntax, "1:1"),
    ("reboot now", Code::ConfSyntax, "1:1"),
    ("export K", Code::ConfSyntax, "1:8"),
    ("export", Code::ConfSyntax, "1:1"),
    ("if true; then\nK=a\nfi", Code::ConfSyntax, "1:1"),
    ("K=a\n}", Code::ConfSyntax, "2:1"),
    ("K=a\n# \0", Code::ConfSyntax, "2:3"),
    ("K=\"a\0\"", Code::ConfSyntax, "1:5"),
];

#[test]
fn what_takes_a_shell_is_refused_with_its_place() {
    for (text, code, place) in REFUSED {
        let e = raw(text).expect_err(text);
        assert_eq!(e.code(), *code, "{text}: {e}");
        assert_eq!(e.subject(), Some(format!("/etc/f.conf:{place}").as_str()), "{text}: {e}");
        assert!(e.message().starts_with(&format!("/etc/f.conf:{place}: ")), "{e}");
    }
    let latin1 = RawConf::from_bytes(b"A=1\n# M\xe4rz\n", Path::new("f")).unwrap_err();
    assert_eq!((latin1.code(), latin1.subject()), (Code::ConfSyntax, Some("f:2:4")));
}

#[test]
fn messages_say_what_to_do() {
    let text = |conf: &str| raw(conf).unwrap_err().to_string();
    assert_eq!(
        text("INTERNAL_DEVICE_KERNEL_asus-tinker-board-s=mmcblk1"),
        "/etc/f.conf:1:1: `INTERNAL_DEVICE_KERNEL_asus-tinker-board-s` is not a variable name [conf-syntax]; overrides such \
         as KEY:machine or KEY_my-board belong in the recipe that writes this file"
    );
    assert!(text("K ?= a").contains("operators such as `?=` belong in the recipe"), "{}", text("K ?= a"));
    assert!(text("K=a b").contains("a second word after the value"));
    assert!(text(&"x".repeat(100_000)).len() < 300, "a long line is not repeated in full");
}

#[test]
fn missing_unreadable_and_huge_files_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("f.conf");
    let code = |p: &Path| RawConf::load(p).unwrap_err().code();
    assert_eq!(code(&file), Code::ConfMissing);
    assert_eq!(code(dir.path()), Code::ConfMissing);
    let size = usize::try_from(shell_conf::MAX_BYTES).unwrap();
    fs::write(&file, "#".repeat(size)).unwrap();
    assert_eq!(RawConf::load(&file).unwrap().entries, []);
    fs::write(&file, "#".repeat(size + 1)).unwrap();
    assert_eq!(code(&file), Code::ConfSyntax);
    fs::write(&file, "K=a").unwrap();
    assert_eq!(FlasherConf::load(&file).unwrap().raw().get("K"), Some("a"));
}

fn any_conf() -> impl Strategy<Value = RawConf> {
    let value = prop_oneof!["[^\0]{0,20}", "[a-z'\"\\\\$`~:#;& \n\r\t={}*]{0,20}"];
    prop::collection::vec(("[A-Za-z_][A-Za-z0-9_]{0,8}", value), 0..8).prop_map(|pairs| {
        let entries = pairs.into_iter().map(|(key, value)| Assignment { key, value, line: 0 }).collect();
        RawConf { file: PathBuf::from("f"), entries }
    })
}

proptest! {
    #![proptest_config(few(256))]

    #[test]
    fn print_then_parse_is_the_same(conf in any_conf()) {
        let again = raw(&conf.to_string()).unwrap();
        prop_assert_eq!(pairs(&again), pairs(&conf));
    }

    #[test]
    fn no_input_makes_the_parsers_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        text in "[K=a'\"\\\\$`~:#;&{},\\[\\]*?./ \n\r\t0-9é\0-]{0,60}",
    ) {
        for input in [bytes.as_slice(), text.as_bytes()] {
            match RawConf::from_bytes(input, Path::new("f")) {
                Ok(conf) => prop_assert!(FlasherConf::from_raw(conf).is_ok(), "no key of this input is a known one"),
                Err(e) => prop_assert!(matches!(e.code(), Code::ConfSyntax | Code::ConfExpansion), "{}", e),
            }
            match pattern::expand(&String::from_utf8_lossy(input)) {
                Ok(patterns) => {
                    let leaves = |name: &str| name.split('/').any(|part| part == "..");
                    prop_assert!(!patterns.iter().any(|p| p.alternatives().any(leaves)));
                }
                Err(e) => prop_assert_eq!(e.code(), Code::TargetPattern),
            }
        }
    }
}

proptest! {
    #![proptest_config(few(1))]

    #[test]
    fn a_shell_reads_what_is_printed(values in prop::collection::vec("[^\0]{0,30}", 64)) {
        let print = |value: &String| {
            let entry = Assignment { key: "COPAL_K".into(), value: value.clone(), line: 1 };
            RawConf { file: PathBuf::new(), entries: vec![entry] }.to_string()
        };
        let texts: Vec<String> = values.iter().map(print).collect();
        for (value, bash) in values.iter().zip(bash_values(&texts, "COPAL_K")) {
            prop_assert_eq!(value.as_bytes(), bash);
        }
    }

    /// Only accepted texts are given to the shell: those consist of assignments.
    #[test]
    fn what_is_accepted_means_the_same_to_a_shell(tails in prop::collection::vec("[ab '\"\\\\#=:~$.{*\n\t]{0,12}", 600)) {
        let accepted: Vec<(String, RawConf)> =
            tails.iter().map(|t| format!("K={t}")).filter_map(|t| raw(&t).ok().map(|c| (t, c))).collect();
        prop_assume!(!accepted.is_empty());
        let texts: Vec<String> = accepted.iter().map(|(text, _)| text.clone()).collect();
        for ((text, conf), bash) in accepted.iter().zip(bash_values(&texts, "K")) {
            prop_assert_eq!(conf.get("K").unwrap().as_bytes(), bash, "{:?}", text);
        }
    }
}

// --- the typed configuration ---

#[test]
fn an_empty_file_gives_the_defaults() {
    let conf = typed("").unwrap();
    assert_eq!(conf.names.splash, "splash");
    assert_eq!(conf.names.bootloader_config, "resinOS_uEnv.txt");
    assert_eq!(conf.names.nm_config, "system-connections");
    assert_eq!(conf.names.nm_dispatcher, "dispatcher.d");
    assert_eq!(conf.names.proxy_config, "system-proxy");
    assert_eq!(conf, typed("").unwrap());
    let empty = "INTERNAL_DEVICE_KERNEL=\"\"\nBALENA_IMAGE=\nBOOTLOADER_FLASH_DEVICE=\nBOOTLOADER_IMAGE=\nUSE_LUKS=\n\
        BALENA_NM_CONFIG=\nPOSTINSTALL_REBOOT=\n";
    let empty = typed(empty).unwrap();
    assert_eq!((empty.internal_device, empty.balena_image, empty.use_luks), (None, None, None));
    assert_eq!(empty.names.nm_config, "system-connections");
    assert!(empty.bootloader_writes.is_empty() && !empty.postinstall_reboot);
}

#[test]
fn the_last_line_counts_and_unknown_keys_are_kept() {
    let conf = typed("USE_LUKS=1\nUSE_LUKS=0\nPOSTINSTALL_REBOOT=1\nBOARD_SPECIFIC='a b'\n").unwrap();
    assert_eq!((conf.use_luks, conf.postinstall_reboot), (Some(false), true));
    assert_eq!(conf.raw().get("BOARD_SPECIFIC"), Some("a b"));
    assert!(!typed("POSTINSTALL_REBOOT=yes").unwrap().postinstall_reboot, "as the shell compared it");
}

const WRITE: &str =
    "BOOTLOADER_FLASH_DEVICE=mmcblk0boot0\nBOOTLOADER_IMAGE=u-boot.bin\nBOOTLOADER_BLOCK_SIZE_OFFSET=1024\n";

#[test]
fn bootloader_writes_are_read_with_their_offsets() {
    let offsets = |text: &str| -> Vec<Option<u64>> {
        typed(text)
            .unwrap()
            .bootloader_writes
            .iter()
            .map(copal::config::flasher_conf::BootloaderWrite::offset)
            .collect()
    };
    assert_eq!(offsets(WRITE), [Some(0)], "no blocks are skipped by default");
    assert_eq!(offsets(&format!("{WRITE}BOOTLOADER_SKIP_OUTPUT_BLOCKS=33")), [Some(33 * 1024)]);
    let size = |size: &str| {
        offsets(&format!("{WRITE}BOOTLOADER_BLOCK_SIZE_OFFSET={size}\nBOOTLOADER_SKIP_OUTPUT_BLOCKS=2"))
    };
    // GNU dd 9.1 on 1 block: the sizes it reports
    for (text, bytes) in
        [("010", 10), ("1c", 1), ("1w", 2), ("1b", 512), ("1kB", 1000), ("1k", 1024), ("1K", 1024)]
    {
        assert_eq!(size(text), [Some(2 * bytes)], "{text}");
    }
    assert_eq!(size("128KiB"), [Some(2 * 131_072)]);
    let both = WRITE.replace("=", "_1=").replace("u-boot.bin", "/sub//./u-boot.img")
        + "BOOTLOADER_SKIP_OUTPUT_BLOCKS_1=1\n";
    let conf = typed(&format!("{both}{WRITE}")).unwrap();
    assert_eq!(
        conf.bootloader_writes[0].image,
        Path::new("u-boot.bin"),
        "the plain one first, whatever the order of lines"
    );
    assert_eq!(conf.bootloader_writes[1].image, Path::new("sub/u-boot.img"));
    assert_eq!(conf.bootloader_writes[1].offset(), Some(1024));
    assert_eq!(
        typed(&format!("{WRITE}BOOTLOADER_FLASH_DEVICE=/dev/mtd:U-Boot' 'env")).unwrap().bootloader_writes[0]
            .device,
        "mtd:U-Boot env"
    );
    // without a device nothing is written, and what else is set does not matter
    assert!(
        typed("BOOTLOADER_IMAGE=x\nBOOTLOADER_BLOCK_SIZE_OFFSET=none").unwrap().bootloader_writes.is_empty()
    );
}

#[test]
fn invalid_values_name_the_key_and_its_line() {
    let last = |line: &str| format!("{WRITE}{line}\n");
    let cases: &[(String, &str, &str)] = &[
        (
            "#\nBOOTLOADER_FLASH_DEVICE=x\nBOOTLOADER_BLOCK_SIZE_OFFSET=1".into(),
            "BOOTLOADER_FLASH_DEVICE",
            "2: BOOTLOADER_FLASH_DEVICE: `x` needs BOOTLOADER_IMAGE",
        ),
        (
            "BOOTLOADER_FLASH_DEVICE=x\nBOOTLOADER_IMAGE=i".into(),
            "BOOTLOADER_FLASH_DEVICE",
            "needs BOOTLOADER_BLOCK_SIZE_OFFSET",
        ),
        (
            "BOOTLOADER_FLASH_DEVICE_1=x".into(),
            "BOOTLOADER_FLASH_DEVICE_1",
            "needs BOOTLOADER_BLOCK_SIZE_OFFSET_1",
        ),
        (
            last("BOOTLOADER_BLOCK_SIZE_OFFSET=0"),
            "BOOTLOADER_BLOCK_SIZE_OFFSET",
            "4: BOOTLOADER_BLOCK_SIZE_OFFSET: a block",
        ),
        (last("BOOTLOADER_BLOCK_SIZE_OFFSET=1q"), "BOOTLOADER_BLOCK_SIZE_OFFSET", "`1q` is not a number"),
        (last("BOOTLOADER_BLOCK_SIZE_OFFSET=0x400"), "BOOTLOADER_BLOCK_SIZE_OFFSET", "is not a number"),
        (last("BOOTLOADER_BLOCK_SIZE_OFFSET=-1"), "BOOTLOADER_BLOCK_SIZE_OFFSET", "is not a number"),
        (last("BOOTLOADER_BLOCK_SIZE_OFFSET=k"), "BOOTLOADER_BLOCK_SIZE_OFFSET", "is not a number"),
        (
            last("BOOTLOADER_BLOCK_SIZE_OFFSET=99999999999999999999"),
            "BOOTLOADER_BLOCK_SIZE_OFFSET",
            "too large",
        ),
        (last("BOOTLOADER_BLOCK_SIZE_OFFSET=99999999999999G"), "BOOTLOADER_BLOCK_SIZE_OFFSET", "too large"),
        (
            last("BOOTLOADER_SKIP_OUTPUT_BLOCKS=18446744073709551615"),
            "BOOTLOADER_SKIP_OUTPUT_BLOCKS",
            "past the end",
        ),
        (
            last("BOOTLOADER_SKIP_OUTPUT_BLOCKS=9007199254740992"),
            "BOOTLOADER_SKIP_OUTPUT_BLOCKS",
            "past the end",
        ),
        (last("BOOTLOADER_SKIP_OUTPUT_BLOCKS=x"), "BOOTLOADER_SKIP_OUTPUT_BLOCKS", "is not a number"),
        (last("BOOTLOADER_IMAGE=../u-boot"), "BOOTLOADER_IMAGE", "leads out of the boot partition"),
        (last("BOOTLOADER_IMAGE=a/../../u-boot"), "BOOTLOADER_IMAGE", "leads out of the boot partition"),
        (last("BOOTLOADER_IMAGE=/"), "BOOTLOADER_IMAGE", "is a folder"),
        (last("BOOTLOADER_FLASH_DEVICE=../sda"), "BOOTLOADER_FLASH_DEVICE", "below /dev"),
        (last("BOOTLOADER_FLASH_DEVICE=/sys/x"), "BOOTLOADER_FLASH_DEVICE", "below /dev"),
        (
            "BALENA_IMAGE=/opt/image".into(),
            "BALENA_IMAGE",
            "1: BALENA_IMAGE: `/opt/image` is not a file name",
        ),
        ("BALENA_IMAGE=..".into(), "BALENA_IMAGE", "is not a file name"),
        ("BALENA_NM_CONFIG=.".into(), "BALENA_NM_CONFIG", "is not a file name"),
        (
            "INTERNAL_DEVICE_BOOTLOADER_CONFIG_PATH=/EFI/../../etc/passwd".into(),
            "INTERNAL_DEVICE_BOOTLOADER_CONFIG_PATH",
            "leads out",
        ),
        (
            "INTERNAL_DEVICE_BOOTLOADER_LEGACY_CONFIG_PATH=/grub/".into(),
            "INTERNAL_DEVICE_BOOTLOADER_LEGACY_CONFIG_PATH",
            "is a folder",
        ),
        (
            "INTERNAL_DEVICE_BOOTLOADER_CONFIG='a\nb'".into(),
            "INTERNAL_DEVICE_BOOTLOADER_CONFIG",
            "control characters",
        ),
        ("\n\nUSE_LUKS=yes".into(), "USE_LUKS", "/etc/f.conf:3: USE_LUKS: `yes` is neither 0 nor 1"),
    ];
    for (text, key, message) in cases {
        let e = typed(text).expect_err(text);
        assert_eq!((e.code(), e.subject()), (Code::ConfInvalid, Some(*key)), "{text}: {e}");
        assert!(e.message().contains(message), "{text}: {e}");
        assert!(e.message().starts_with("/etc/f.conf:"), "{e}");
    }
}

#[test]
fn a_bootloader_configuration_on_the_medium_needs_a_destination() {
    const CONFIG: &str = "INTERNAL_DEVICE_BOOTLOADER_CONFIG";
    let boot = tempfile::tempdir().unwrap();
    let check = |text: &str| typed(text).unwrap().check_medium(boot.path());
    let (alone, path) =
        (format!("\n{CONFIG}=grub.cfg_internal\n"), format!("{CONFIG}_PATH=/EFI/BOOT/grub.cfg\n"));
    let luks = format!("{CONFIG}_LUKS=grub.cfg_internal_luks\n");
    check(&alone).expect("it is not on the medium");
    fs::create_dir(boot.path().join("grub.cfg_internal")).unwrap();
    check(&alone).expect("a folder is no configuration");
    fs::remove_dir(boot.path().join("grub.cfg_internal")).unwrap();
    fs::write(boot.path().join("grub.cfg_internal_luks"), "").unwrap();
    check(&luks).expect("there is nothing to be replaced");
    check(&format!("{alone}{luks}")).expect_err("the encrypted one needs a destination too");
    fs::write(boot.path().join("grub.cfg_internal"), "").unwrap();
    let e = check(&alone).unwrap_err();
    assert_eq!((e.code(), e.subject()), (Code::ConfInvalid, Some(CONFIG)));
    assert!(
        e.message().starts_with("/etc/f.conf:2: ") && e.message().contains(&format!("{CONFIG}_PATH")),
        "{e}"
    );
    check(&format!("{alone}{path}")).unwrap();
    check(&path).expect("a destination alone does nothing");
}
