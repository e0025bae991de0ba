//! Jobs below a real systemd: what they survive, and how they end.

use crate::rollback::{boot_file, internal_disk, release};
use crate::support::{Disk, Guest, LIMIT, Shutdown, folder};

/// The old release's hooks: they wait until the test lets them go on, or until the system shuts down.
const HOOKS: &str = r#"#!/bin/bash
unit=$(sed 's,.*/,,' /proc/self/cgroup)
echo "$unit" >>/run/hooks
until [ -e /run/go ]; do
    if [ "$(systemctl is-system-running)" = stopping ]; then
        busctl --system --timeout=120 call org.freedesktop.systemd1 /org/freedesktop/systemd1 \
            org.freedesktop.systemd1.Manager StartUnit ss copal-job@99.service fail >>/host/refused 2>&1
        # Other units have the time to stop before this one, if nothing keeps them.
        sleep 5
        for point in /mnt/boot /mnt/state; do
            ! mountpoint -q "$point" || echo "$point is mounted" >>/host/shutdown
        done
        [ ! -e /mnt/boot/bootcount.env ] || echo "the boot count is there" >>/host/shutdown
        exit
    fi
    sleep 0.2
done
"#;

const SCRIPT: &str = r##"
for i in $(seq 1200); do [ "$(systemctl show --value -p Job copal-boot-check.service)" ] || break; sleep 0.1; done
mkdir -p /mnt/state/copal
manager() { busctl --system --timeout=120 call io.balena.Copal1 /io/balena/Copal1 io.balena.Copal1.Manager "$@"; }
state() { busctl --system --timeout=120 get-property io.balena.Copal1 "$job" io.balena.Copal1.Job State; }
until_is() { for i in $(seq 600); do [ "$("$@" 2>/dev/null)" != "$is" ] || return 0; sleep 0.2; done; echo "in vain: $* is not $is"; return 1; }
# A rollback: an update that was cut off is undone. Of two clients that ask at once, one gets a job.
begin() {
    rm -f /run/go /run/hooks
    printf 'resin_root_part=2\nupgrade_available=0\n' >/mnt/boot/resinOS_uEnv.txt
    touch /mnt/state/rollback-health-breadcrumb
    manager Rollback >/run/first 2>&1 &
    manager Rollback >/run/second 2>&1 || true
    wait $! || true
    cat /run/first /run/second >>/host/clients
    job=$(sed -n 's/^o "\(.*\)"$/\1/p' /run/first /run/second)
    unit=copal-job@${job##*/}.service
    is=$unit until_is head -n 1 /run/hooks
}

# The clients are gone already. Its job survives a killed service, and a killed bus.
begin
main=$(systemctl show --value -p MainPID "$unit")
for by in copal.service dbus.service; do
    systemctl kill -s KILL --kill-who=main "$by"
    is='s "running"' until_is state
done
[ "$(systemctl show --value -p MainPID "$unit")" = "$main" ]
touch /run/go
is='s "succeeded"' until_is state

# A stopped job completes its step, and its hook with it.
begin
systemctl stop --no-block "$unit"
is=deactivating until_is systemctl show --value -p ActiveState "$unit"
sleep 2
[ "$(systemctl show --value -p ActiveState "$unit")" = deactivating ]
touch /run/go
is=inactive until_is systemctl show --value -p ActiveState "$unit"
# The service hears of it a moment later.
is='s "cancelled"' until_is state
state >/host/stopped
journalctl -o cat -u "$unit" >/host/log

# A job that does not end in time is killed. Its hook goes on: it may be writing a bootloader.
limit=/run/systemd/system/copal-job@.service.d
mkdir -p $limit
printf '[Service]\nTimeoutStopSec=3\n' >$limit/limit.conf
systemctl daemon-reload
begin
systemctl stop "$unit"
pgrep -fc /usr/bin/hostapp-update-hooks >/host/hooks
is= until_is sh -c "busctl --system get-property io.balena.Copal1 $job io.balena.Copal1.Job State | grep running"
state >/host/killed
touch /run/go
is= until_is pgrep -f /usr/bin/hostapp-update-hooks
rm -r $limit
systemctl daemon-reload

# A shutdown in the middle.
begin
printf 'bootcount=1\n\0' >/mnt/boot/bootcount.env
printf 'resin_root_part=2\nupgrade_available=1\n' >/mnt/boot/resinOS_uEnv.txt
systemctl start rollback-clear-bootcount.service
systemctl --no-block reboot
sleep 850
"##;

#[test]
fn a_job_survives_its_client_the_service_and_the_bus_and_ends_in_order() {
    let test = "a_job_survives_its_client_the_service_and_the_bus_and_ends_in_order";
    let Some(guest) = Guest::system(test, "LABEL=resin-rootA") else { return };
    let Some(system) = release(test, "A", "5.1.0") else { return };
    let dir = folder();
    let at = |name: &str| dir.path().join(name);
    system.text("/usr/bin/hostapp-update-hooks", HOOKS).text("/usr/bin/hostapp-update-hooks-v2", HOOKS).ext4(
        &at("a"),
        "resin-rootA",
        400,
    );
    internal_disk(dir.path());
    let outcome = guest
        .other_module("kernel/fs/autofs/autofs4.ko")
        .disk(Disk::Virtio, &at("disk"), "INTERNAL")
        .script(SCRIPT)
        .run(LIMIT);
    println!("took {:?}", outcome.took);
    let clients = outcome.file("clients");
    for job in 1..=4 {
        assert_eq!(clients.matches(&format!("o \"/io/balena/Copal1/job/{job}\"\n")).count(), 1, "{clients}");
    }
    assert_eq!((clients.lines().count(), clients.matches("[busy]").count()), (8, 4), "{clients}");
    assert_eq!(outcome.file("stopped"), "s \"cancelled\"\n");
    assert!(outcome.file("log").contains("running the hooks"), "{}", outcome.file("log"));
    assert_eq!((outcome.file("hooks").as_str(), outcome.file("killed").as_str()), ("1\n", "s \"failed\"\n"));
    assert_eq!(
        outcome.file("shutdown"),
        "/mnt/boot is mounted\n/mnt/state is mounted\nthe boot count is there\n"
    );
    // A client says `busy` then.
    assert!(outcome.file("refused").contains("is destructive"), "{}", outcome.file("refused"));
    assert_eq!(outcome.ending, Shutdown::Rebooted, "{}", outcome.console);
    assert_eq!(boot_file(&at("disk"), "bootcount.env"), "", "cleared after the job");
}
