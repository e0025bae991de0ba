//! What a board's layer changes in a script that copal replaces stops the build, or goes on being used: nothing is lost in silence.

use serde_json::{Value, json};

use super::answers as answers_of;
use crate::kit::needs::{needs, tools};

const PATCH: &str = "--- a/99-resin-uboot\n+++ b/99-resin-uboot\n@@ -1 +1,2 @@\n #!/bin/sh\n+true\n";

/// As meta-balena has it: the recipe fills in both.
const BOOTFILES: &str = "fingerprint=@BALENA_BOOT_FINGERPRINT@\nblacklist=\"@BALENA_BOOTFILES_BLACKLIST@\"\n";
const UNIT: &str = "[Service]\nExecStart=@BINDIR@/rollback-health\n";

/// The message that stops the build, or what each script is in the end.
fn answers(cases: &[Value]) -> Vec<Value> {
    answers_of("replace.py", cases)
}

#[test]
fn what_a_board_changes_stops_the_build_with_what_there_is_instead() {
    needs!(tools);
    let rows = [
        (
            json!({"recipe": "hostapp-update-hooks", "sources": {"99-resin-uboot": "own"}, "patches": {"board.patch": PATCH}}),
            [
                "board.patch changes 99-resin-uboot",
                "docs/boot-selection.md",
                "COPAL_KEEP_HOOKS += \"99-resin-uboot\"",
            ],
        ),
        (
            json!({"recipe": "resin-init-flasher", "sources": {"resin-init-flasher": "own"},
                "patches": {"board.patch": PATCH.replace("99-resin-uboot", "resin-init-flasher")}}),
            ["board.patch changes resin-init-flasher", "os-helpers-power", "docs/board-programs.md"],
        ),
        (
            json!({"recipe": "resin-init-flasher", "sources": {"resin-init-flasher": "board"}}),
            [
                "/board/resin-init-flasher is in place of the recipe's own",
                "os_helpers_shutdown",
                "resin-init-board",
            ],
        ),
        (
            json!({"recipe": "balena-rollback", "sources": {"rollback-health": "own"},
                "patches": {"board.patch": PATCH.replace("99-resin-uboot", "files/rollback-health")}}),
            ["board.patch changes rollback-health", "/etc/copal/health.d", "docs/health-checks.md"],
        ),
        (
            json!({"recipe": "os-helpers", "sources": {"safe_reboot": "own"}, "edits": {"safe_reboot": "sed was here"}}),
            ["do_install changes /usr/libexec/safe_reboot", "os_helpers_reboot", "docs/board-programs.md"],
        ),
        (
            json!({"recipe": "hostapp-update-hooks", "sources": {"80-rollback": "own"}, "edits": {"80-rollback": "true"}}),
            [
                "do_install changes /etc/hostapp-update-hooks.d/80-rollback",
                "docs/hooks.md",
                "COPAL_KEEP_HOOKS",
            ],
        ),
        // Before the recipe installs it: what was unpacked is changed, too.
        (
            json!({"recipe": "os-helpers", "sources": {"safe_reboot": "own"}, "edits before": {"safe_reboot": "true"}}),
            ["do_install changes /usr/libexec/safe_reboot", "os_helpers_reboot", "docs/board-programs.md"],
        ),
        (
            json!({"recipe": "hostapp-update-hooks", "sources": {"80-rollback": "own"}, "edits before": {"80-rollback": "true"}}),
            [
                "do_install changes /etc/hostapp-update-hooks.d/80-rollback",
                "docs/hooks.md",
                "COPAL_KEEP_HOOKS",
            ],
        ),
        (
            json!({"recipe": "hostapp-update-hooks", "sources": {"1-bootfiles": "own"}, "texts": {"1-bootfiles": BOOTFILES},
                "edits": {"1-bootfiles": "true"}}),
            [
                "do_install changes /etc/hostapp-update-hooks.d/1-bootfiles",
                "BALENA_BOOTFILES_BLACKLIST",
                "docs/hooks-bootfiles.md",
            ],
        ),
        (
            json!({"recipe": "hostapp-update-hooks", "sources": {"1-bootfiles": "own"}, "texts": {"1-bootfiles": BOOTFILES},
                "copies": {"2-rpifiles": "1-bootfiles"}, "edits": {"2-rpifiles": "true"}}),
            [
                "do_install changes /etc/hostapp-update-hooks.d/2-rpifiles",
                "docs/hooks.md",
                "COPAL_KEEP_HOOKS += \"2-rpifiles\"",
            ],
        ),
        (
            json!({"recipe": "balena-rollback", "sources": {"rollback-health.service": "own"}, "texts": {"rollback-health.service": UNIT},
                "edits": {"rollback-health.service": "[Install]"}}),
            [
                "do_install changes /usr/lib/systemd/system/rollback-health.service",
                "settings of a unit",
                "/etc/systemd/system/UNIT.d",
            ],
        ),
        (
            json!({"recipe": "hostapp-update-hooks", "sources": {"hostapp-update-hooks": "own"},
                "copies": {"hostapp-update-hooks-v2": "hostapp-update-hooks"}, "edits": {"hostapp-update-hooks-v2": "true"}}),
            [
                "do_install changes /usr/bin/hostapp-update-hooks-v2",
                "(docs/hooks.md). If no append",
                "bitbake -c clean hostapp-update-hooks",
            ],
        ),
        // Out of a file with another name.
        (
            json!({"recipe": "balena-rollback", "sources": {"my-health": "board"}, "copies": {"rollback-health": "my-health"}}),
            ["do_install changes /usr/bin/rollback-health", "/etc/copal/health.d", "docs/health-checks.md"],
        ),
    ];
    let cases: Vec<Value> = rows.iter().map(|(case, _)| case.clone()).collect();
    for ((case, words), said) in rows.iter().zip(answers(&cases)) {
        let said = said.as_str().unwrap_or_else(|| panic!("not stopped: {case}: {said}"));
        for word in words {
            assert!(said.contains(word), "{word}: {said}");
        }
    }
}

/// A patch applies, since the recipe unpacks its own hooks; copal's take their places afterwards, but for those that a board keeps or brings.
#[test]
fn hooks_that_a_board_keeps_or_brings_are_left_alone() {
    needs!(tools);
    let sources = json!({"80-rollback": "own", "99-resin-uboot": "own", "99-resin-grub": "board", "98-of-the-board": "board"});
    let plain = json!({"80-rollback": "copal", "99-resin-uboot": "copal", "99-resin-grub": "board", "98-of-the-board": "board"});
    let kept = json!({"80-rollback": "copal", "99-resin-uboot": "own sed was here", "99-resin-grub": "board and here",
        "98-of-the-board": "board"});
    let said = answers(&[
        json!({"recipe": "hostapp-update-hooks", "sources": sources}),
        json!({"recipe": "hostapp-update-hooks", "sources": sources, "patches": {"board.patch": PATCH}, "keep": "99-resin-uboot",
            "edits": {"99-resin-uboot": " sed was here", "99-resin-grub": " and here"}}),
        // A patch of what copal does not replace is none of its business.
        json!({"recipe": "os-helpers", "sources": {"os-helpers-fs": "own", "safe_reboot": "own"},
            "patches": {"board.patch": PATCH.replace("99-resin-uboot", "os-helpers-fs")}}),
    ]);
    assert_eq!(said, [plain, kept, json!({"usr/libexec/safe_reboot": "own"})]);
}

#[test]
fn a_hook_that_is_to_stay_and_does_not_exist_stops_the_build() {
    needs!(tools);
    let keep = |names: &str| json!({"recipe": "hostapp-update-hooks", "sources": {"99-resin-uboot": "own"}, "keep": names});
    let said = answers(&[
        keep("99-resin-uboot 99-resin-ubot"),
        keep("99-resin-uboot"),
        keep("75-supervisor-db/75-forward_supervisor-db"),
    ]);
    let refused = said[0].as_str().unwrap();
    assert!(
        refused.starts_with("COPAL_KEEP_HOOKS: copal replaces no hook 99-resin-ubot; it replaces "),
        "{refused}"
    );
    assert!(
        refused.contains("1-bootfiles, ") && refused.contains("75-supervisor-db/75-forward_supervisor-db"),
        "{refused}"
    );
    assert_eq!(said[1], json!({"99-resin-uboot": "own"}));
    assert_eq!(said[2], json!({"99-resin-uboot": "copal"}));
}

/// What the recipe fills in by itself is no change; and copies of a hook become copal's under their own names.
#[test]
fn what_the_recipe_fills_in_is_no_change_and_copies_of_a_hook_are_copal_s() {
    needs!(tools);
    let texts = json!({"1-bootfiles": BOOTFILES, "rollback-health.service": UNIT});
    let of = |copies: Value, keep: &str| json!({"recipe": "hostapp-update-hooks", "sources": {"1-bootfiles": "own"}, "texts": texts, "copies": copies, "keep": keep});
    let filled = "fingerprint=balenaos.fingerprint\nblacklist=\"@BALENA_BOOTFILES_BLACKLIST@\"\n"
        .replace("@BALENA_BOOTFILES_BLACKLIST@", " /config.json /board.txt ");
    let said = answers(&[
        of(json!({"2-rpifiles": "1-bootfiles", "3-of-the-board": "1-bootfiles"}), ""),
        of(json!({"2-rpifiles": "1-bootfiles"}), "1-bootfiles"),
        json!({"recipe": "balena-rollback", "sources": {"rollback-health.service": "own"}, "texts": texts}),
    ]);
    assert_eq!(said[0], json!({"1-bootfiles": "copal", "2-rpifiles": "copal", "3-of-the-board": "copal"}));
    assert_eq!(said[1], json!({"1-bootfiles": filled, "2-rpifiles": filled}));
    let unit = "usr/lib/systemd/system/rollback-health.service";
    assert_eq!(said[2], json!({unit: "[Service]\nExecStart=/usr/bin/rollback-health\n"}));
}

/// meta-balena before 4.1 has no `safe_reboot`, and no package that it would be in.
#[test]
fn nothing_takes_the_place_of_a_program_that_this_meta_balena_does_not_have() {
    needs!(tools);
    let edited = |packages: &str| {
        json!({"recipe": "os-helpers", "packages": packages, "sources": {"safe_reboot": "own"},
            "edits": {"safe_reboot": "sed was here"}})
    };
    let said = answers(&[edited("os-helpers os-helpers-fs"), edited("os-helpers os-helpers-reboot")]);
    assert_eq!(said[0], json!({}));
    assert!(said[1].as_str().unwrap().contains("do_install changes /usr/libexec/safe_reboot"), "{}", said[1]);
}

/// Hooks of copal that a board asks for by name, filled in as the recipe does with its own.
#[test]
fn hooks_that_a_board_asks_for_are_added() {
    needs!(tools);
    let recipe = |more: Value| {
        let mut case = json!({"recipe": "hostapp-update-hooks", "sources": {"bootloaders.conf": "board"}});
        case.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        case
    };
    let said = answers(&[
        recipe(json!({"hooks": "2-rpifiles", "bootloaders": "bootloaders.conf"})),
        recipe(json!({"hooks": "3-nothing"})),
        json!({"recipe": "hostapp-update-hooks", "sources": {"99-resin-uboot": "board"}, "hooks": "99-resin-uboot"}),
    ]);
    let files = said[0].as_object().unwrap_or_else(|| panic!("{}", said[0]));
    let mut names: Vec<&str> = files.keys().map(String::as_str).collect();
    names.sort_unstable();
    let folder = "/etc/hostapp-update-hooks.d";
    assert_eq!(
        names,
        [
            "/etc/copal/bootloaders.conf",
            &format!("{folder}/0-carry-boot"),
            &format!("{folder}/2-rpifiles"),
            &format!("{folder}/99-flash-bootloader")
        ]
    );
    assert_eq!(files["/etc/copal/bootloaders.conf"], "644 board");
    let hook = files[&format!("{folder}/2-rpifiles")].as_str().unwrap();
    assert!(hook.starts_with("755 #!") && hook.contains("/config.json /board.txt"), "{hook}");
    assert!(hook.contains("balenaos.fingerprint") && !hook.contains("@BALENA"), "{hook}");
    assert!(said[1].as_str().unwrap().contains("copal has no hook 3-nothing; it has "), "{}", said[1]);
    assert!(said[2].as_str().unwrap().contains("HOSTAPP_HOOKS has the board's own"), "{}", said[2]);
}

/// The hooks of a board, of which none, one or two select the root; `root` is its COPAL_ROOT_HOOK.
fn hooks(names: &[&str], root: &str) -> Value {
    let sources: serde_json::Map<String, Value> =
        names.iter().map(|name| ((*name).to_owned(), json!("own"))).collect();
    json!({"recipe": "hostapp-update-hooks", "sources": sources, "root": root})
}

/// Three machines in the field are built so (balena-tm3: tm3; balena-fsl-arm: nitrogen6x; balena-compulab-imx9: mcm-imx93).
#[test]
fn a_build_stops_where_no_hook_selects_the_root() {
    needs!(tools);
    let rows = [
        (hooks(&["1-bootfiles", "80-rollback"], ""), "no hook selects the root for the bootloader"),
        (hooks(&["80-rollback", "99-flash-bootloader"], ""), "COPAL_ROOT_HOOK = \"none\""),
        (hooks(&["80-rollback"], "99-rpi-bootloader"), "COPAL_ROOT_HOOK: there is no hook 99-rpi-bootloader"),
    ];
    for (said, (case, words)) in answers(&rows.clone().map(|row| row.0)).iter().zip(&rows) {
        let said = said.as_str().unwrap_or_else(|| panic!("not stopped: {case}"));
        assert!(said.contains(words), "{words}: {said}");
    }
    let said = &answers(&[hooks(&["80-rollback"], "")])[0];
    for hook in ["99-balena-bootloader", "99-resin-grub", "99-resin-uboot", "HOSTAPP_HOOKS"] {
        assert!(said.as_str().unwrap().contains(hook), "{hook}: {said}");
    }
}

#[test]
fn a_build_stops_where_two_hooks_select_the_root() {
    needs!(tools);
    let said = &answers(&[hooks(&["99-resin-uboot", "99-balena-bootloader"], "")])[0];
    let said = said.as_str().unwrap();
    assert!(said.starts_with("99-balena-bootloader and 99-resin-uboot select the root"), "{said}");
    assert!(said.contains("HOSTAPP_HOOKS:remove") && said.contains("COPAL_ROOT_HOOK"), "{said}");
}

#[test]
fn a_build_goes_on_where_one_hook_selects_the_root_or_the_board_names_it() {
    needs!(tools);
    let mut from_copal = hooks(&["80-rollback"], "");
    from_copal["hooks"] = json!("99-resin-grub");
    let mut board = hooks(&["80-rollback"], "99-rpi-bootloader");
    board["sources"]["99-rpi-bootloader"] = json!("board");
    let cases = [
        hooks(&["80-rollback", "99-resin-uboot"], ""),
        from_copal,
        board,
        hooks(&["80-rollback"], "none"),
        hooks(&["99-resin-grub", "99-resin-uboot"], "99-resin-uboot"),
    ];
    assert_eq!(answers(&cases), ["goes on"; 5]);
}

/// A machine with signed builds; the module of its initramfs is as meta-balena has it.
fn with_initramfs(more: &[(&str, Value)]) -> Value {
    let mut case = json!({
        "recipe": "initramfs-framework",
        "signing": "https://sign",
        "features": "efi tpm pci",
        "sources": {"cryptsetup-efi-tpm": "own", "kexec": "own"},
        "texts": {"cryptsetup-efi-tpm": "tpm_nvram_retrieve_passphrase\n"},
    });
    for (key, value) in more {
        case[*key] = value.clone();
    }
    case
}

#[test]
fn copal_takes_the_place_of_the_initramfs_s_module_for_uefi_and_tpm() {
    needs!(tools);
    let said = answers(&[
        with_initramfs(&[]),
        with_initramfs(&[("keep unlock", json!("1"))]),
        with_initramfs(&[("keep secure boot", json!("1"))]),
        with_initramfs(&[("signing", json!(""))]),
        with_initramfs(&[("features", json!("efi"))]),
        with_initramfs(&[("features", json!("tpm"))]),
        // It looks for the passphrase in a file.
        with_initramfs(&[("texts", json!({"cryptsetup-efi-tpm": "old\n"}))]),
    ]);
    let (append, remove) =
        ("RDEPENDS:initramfs-module-cryptsetup:append", "RDEPENDS:initramfs-module-cryptsetup:remove");
    let module = |text: &str, depends: &str, not: &str| json!({"init.d/72-cryptsetup": text, append: depends, remove: not});
    let mut ours = module("copal", "copal-bin", "os-helpers-tpm2 os-helpers-efi");
    // The mark of a release, by which a commit knows that no scripts unlock the disk.
    ours["boot/copal-unlock"] = json!("");
    assert_eq!(said[0], ours);
    for kept in &said[1..6] {
        assert_eq!(kept, &module("tpm_nvram_retrieve_passphrase\n", "", ""));
    }
    assert_eq!(said[6], module("old\n", "", ""));
}

#[test]
fn a_changed_module_for_uefi_and_tpm_stops_the_build() {
    needs!(tools);
    let patch = PATCH.replace("99-resin-uboot", "cryptsetup-efi-tpm");
    let rows = [
        (("patches", json!({"board.patch": patch})), "board.patch changes cryptsetup-efi-tpm"),
        (
            ("sources", json!({"cryptsetup-efi-tpm": "board"})),
            "/board/cryptsetup-efi-tpm is in place of the recipe's own",
        ),
        (("edits", json!({"cryptsetup-efi-tpm": "true"})), "do_install changes /init.d/72-cryptsetup"),
        (
            ("known", json!({"cryptsetup-efi-tpm": "another"})),
            "cryptsetup-efi-tpm is in none of the releases",
        ),
    ];
    let cases: Vec<Value> = rows.iter().map(|(more, _)| with_initramfs(std::slice::from_ref(more))).collect();
    for ((more, words), said) in rows.iter().zip(answers(&cases)) {
        let said = said.as_str().unwrap_or_else(|| panic!("not stopped: {more:?}: {said}"));
        assert!(said.contains(words), "{words}: {said}");
        assert!(more.0 == "known" || said.contains("COPAL_KEEP_UNLOCK"), "{said}");
    }
    // What is kept may be changed, and other modules are the board's.
    let kept = answers(&[
        with_initramfs(&[
            ("keep unlock", json!("1")),
            ("edits", json!({"cryptsetup-efi-tpm": "true"})),
            ("known", json!({"cryptsetup-efi-tpm": "another"})),
        ]),
        with_initramfs(&[("sources", json!({"cryptsetup-efi-tpm": "own", "kexec": "board"}))]),
    ]);
    assert_eq!(kept[0]["init.d/72-cryptsetup"], "tpm_nvram_retrieve_passphrase\ntrue");
    assert_eq!(kept[1]["init.d/72-cryptsetup"], "copal");
}

/// A machine with signed builds; its plug-ins are as meta-balena has them.
fn with_secure_boot(more: &[(&str, Value)]) -> Value {
    let mut case = json!({
        "recipe": "resin-init-flasher",
        "signing": "https://sign",
        "features": "efi tpm pci",
        "sources": {"balena-init-flasher-efi": "own", "balena-init-flasher-tpm": "own"},
        "texts": {"balena-init-flasher-efi": "kernel=@@KERNEL_IMAGETYPE@@\n", "balena-init-flasher-tpm": "tpm_nvram_store_passphrase\n"},
    });
    for (key, value) in more {
        case[*key] = value.clone();
    }
    case
}

#[test]
fn copal_takes_the_place_of_the_plug_ins_for_uefi_and_tpm() {
    needs!(tools);
    let old =
        json!({"balena-init-flasher-efi": "old\n", "balena-init-flasher-tpm": "hw_encrypt_passphrase\n"});
    let said = answers(&[
        with_secure_boot(&[]),
        with_secure_boot(&[("keep secure boot", json!("1"))]),
        with_secure_boot(&[("features", json!("efi"))]),
        with_secure_boot(&[("features", json!("tpm"))]),
        // The initramfs of this release does not look into the TPM's memory.
        with_secure_boot(&[("texts", old.clone())]),
    ]);
    let (efi, tpm) =
        ("usr/libexec/balena-init-flasher-secureboot", "usr/libexec/balena-init-flasher-diskenc");
    let kept = json!({efi: "kernel=bzImage\n", tpm: "tpm_nvram_store_passphrase\n"});
    let old = json!({efi: old["balena-init-flasher-efi"], tpm: old["balena-init-flasher-tpm"]});
    assert_eq!(said, [json!({}), kept.clone(), kept.clone(), kept, old]);
}

#[test]
fn a_changed_plug_in_for_uefi_or_tpm_stops_the_build() {
    needs!(tools);
    let patch = PATCH.replace("99-resin-uboot", "balena-init-flasher-tpm");
    let rows = [
        (("patches", json!({"board.patch": patch})), "board.patch changes balena-init-flasher-tpm"),
        (
            ("sources", json!({"balena-init-flasher-efi": "board", "balena-init-flasher-tpm": "own"})),
            "/board/balena-init-flasher-efi is in place of the recipe's own",
        ),
        (
            ("edits", json!({"balena-init-flasher-efi": "true"})),
            "do_install changes /usr/libexec/balena-init-flasher-secureboot",
        ),
        (
            ("known", json!({"balena-init-flasher-tpm": "another"})),
            "balena-init-flasher-tpm is in none of the releases",
        ),
    ];
    let cases: Vec<Value> =
        rows.iter().map(|(more, _)| with_secure_boot(std::slice::from_ref(more))).collect();
    for ((more, words), said) in rows.iter().zip(answers(&cases)) {
        let said = said.as_str().unwrap_or_else(|| panic!("not stopped: {more:?}: {said}"));
        assert!(said.contains(words), "{words}: {said}");
        assert!(more.0 == "known" || said.contains("COPAL_KEEP_SECUREBOOT"), "{said}");
    }
    // What is kept may be changed.
    let kept = answers(&[with_secure_boot(&[
        ("keep secure boot", json!("1")),
        ("edits", json!({"balena-init-flasher-efi": "true"})),
    ])]);
    assert_eq!(kept[0]["usr/libexec/balena-init-flasher-secureboot"], "kernel=bzImage\ntrue");
}
