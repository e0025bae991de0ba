//! Settings of units that give a unit a mount namespace of its own (systemd.exec(5)), some of them in newer releases of systemd only.

/// How their names begin.
const BEGINNINGS: [&str; 28] = [
    "Bind",
    "Dynamic",
    "ExtensionDirectories",
    "ExtensionImages",
    "Inaccessible",
    "LogNamespace",
    "MountFlags",
    "MountImages",
    "NoExecPaths",
    "PrivateDevices",
    "PrivateIPC",
    "PrivateMounts",
    "PrivateNetwork",
    "PrivateTmp",
    "PrivateUsers",
    "ProcSubset",
    "ProtectControlGroups",
    "ProtectHome",
    "ProtectHostname",
    "ProtectKernel",
    "ProtectProc",
    "ProtectSystem",
    "ReadOnlyPaths",
    "ReadWritePaths",
    "Root",
    "RuntimeDirectory",
    "StateDirectory",
    "TemporaryFileSystem",
];

pub(crate) fn makes_one(setting: &str) -> bool {
    BEGINNINGS.iter().any(|beginning| setting.starts_with(beginning))
}
