//! Releases: image archives with a stand-in for everything that an update runs.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use crate::rig::tool;

/// Mounts a slot's root as the real one does: with the layers that its engine keeps for the container.
const INIT: &str = r#"#!/bin/sh
set -e
test "$1" = -sysroot
slot=$2
id=$(basename "$(readlink "$slot/current")")
layer=$slot/balena/overlay2/$(cat "$slot/balena/image/overlay2/layerdb/mounts/$id/mount-id")
lower=$(sed "s,^,$slot/balena/overlay2/,; s,:,:$slot/balena/overlay2/,g" "$layer/lower")
mkdir -p "$layer/merged"
mount -t overlay overlay -o "lowerdir=$lower,upperdir=$layer/diff,workdir=$layer/work" "$layer/merged"
printf %s "$layer/merged"
"#;

/// The hooks that run in the new system: boot files, and the switch.
const FORWARD: &str = r#"#!/bin/sh
set -e
echo "forward $DURING_UPDATE" >> /mnt/data/said
test -e /mnt/state/rollback-health-breadcrumb
test -e /mnt/state/rollback-altboot-breadcrumb
if [ -e /mnt/data/forward.sh ]; then . /mnt/data/forward.sh; fi
echo new > /mnt/boot/kernel
(cd /mnt/boot; md5sum ./kernel > balenaos.fingerprint)
printf 'resin_root_part=3\nupgrade_available=1\n' > /mnt/boot/resinOS_uEnv.txt
if [ -e /mnt/data/flipped.sh ]; then . /mnt/data/flipped.sh; fi
"#;

/// The runner of the new release, as it is called in the old one.
const HERE: &str = r#"#!/bin/sh
set -e
when=${1#--}
test "$2" = --dir
test -f "$3/a-hook"
case "$3" in */) ;; *) exit 9 ;; esac
echo "$when $DURING_UPDATE" >> /mnt/data/said
if [ -e "/mnt/data/$when.sh" ]; then . "/mnt/data/$when.sh"; fi
"#;

/// A release whose files are put together in a folder.
pub struct Release {
    dir: tempfile::TempDir,
}

impl Release {
    pub fn new() -> Release {
        let dir = tempfile::Builder::new().prefix("image-").tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let release = Release { dir };
        for folder in ["bin", "lib64", "lib/x86_64-linux-gnu", "usr/bin", "etc/hostapp-update-hooks.d"] {
            fs::create_dir_all(release.root().join(folder)).unwrap();
        }
        for folder in ["dev", "mnt", "sys", "run", "proc", "tmp"] {
            fs::create_dir_all(release.root().join(folder)).unwrap();
        }
        fs::copy("/usr/bin/busybox", release.root().join("bin/busybox")).unwrap();
        for name in ["sh", "test", "md5sum", "cat", "rm", "sleep", "sync", "kill", "dd", "touch", "mkdir"] {
            symlink("busybox", release.root().join("bin").join(name)).unwrap();
        }
        release.libraries_of(Path::new("/usr/bin/busybox"));
        release.put("boot/init", INIT);
        release.put("usr/bin/hostapp-update-hooks", FORWARD);
        release.put("usr/bin/hostapp-update-hooks-v2", HERE);
        release.put("etc/hostapp-update-hooks.d/a-hook", "");
        release
    }

    /// What a program is linked with, if it is; a static one has no lines.
    pub fn libraries_of(&self, program: &Path) {
        let linked = std::process::Command::new("ldd").arg(program).output().unwrap();
        for line in String::from_utf8_lossy(&linked.stdout).lines() {
            if let Some(path) = line.split_whitespace().find(|w| w.starts_with('/')) {
                let to = self.root().join(path.strip_prefix('/').unwrap());
                fs::create_dir_all(to.parent().unwrap()).unwrap();
                fs::copy(path, to).unwrap();
            }
        }
    }

    pub fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    /// A file, executable.
    pub fn put(&self, path: &str, text: impl AsRef<[u8]>) -> &Self {
        let path = self.root().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        self
    }

    pub fn remove(&self, path: &str) -> &Self {
        fs::remove_file(self.root().join(path)).unwrap();
        self
    }

    /// The archive, with the image under `name`.
    pub fn archive(&self, name: &str, to: &Path) {
        let at = |name: &str| self.dir.path().join(name).to_str().unwrap().to_owned();
        tool(&["tar", "-C", &at("root"), "-cf", &at("layer.tar"), "."]);
        let digest = |file: &str| tool(&["sha256sum", &at(file)]).split(' ').next().unwrap().to_owned();
        let config = serde_json::json!({
            "architecture": "amd64", "os": "linux",
            "config": { "Env": ["PATH=/bin:/usr/bin"] },
            "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{}", digest("layer.tar"))] },
        });
        fs::write(at("config"), config.to_string()).unwrap();
        let id = digest("config");
        fs::rename(at("config"), at(&format!("{id}.json"))).unwrap();
        let manifest = serde_json::json!([
            { "Config": format!("{id}.json"), "RepoTags": [name], "Layers": ["layer.tar"] }
        ]);
        fs::write(at("manifest.json"), manifest.to_string()).unwrap();
        let out = to.to_str().unwrap();
        tool(&["tar", "-C", &at(""), "-cf", out, &format!("{id}.json"), "layer.tar", "manifest.json"]);
    }
}
