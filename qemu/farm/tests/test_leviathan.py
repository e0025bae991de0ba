"""balenaOS's own test suites on a board: the checkout, the protocol, the shim with suites of its own, the images. Without a board."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import tarfile
import tempfile
import threading
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

import images
import leviathan
import shell_release
import suite_images
from agent import Answer
from leviathan import Away
from place import TOP, FarmError
from tests.test_look import table
from tree import Fault, Tree

NODE = shutil.which("node") or shutil.which("nodejs")


class Case(unittest.TestCase):
    """A test with a folder."""

    def setUp(self) -> None:
        self.at = Path(tempfile.mkdtemp(prefix="copal-leviathan-"))
        self.addCleanup(shutil.rmtree, self.at)


class Protocol(Case):
    """Requests and answers."""

    def test_a_folder_that_is_no_checkout_is_refused(self) -> None:
        with self.assertRaises(FarmError) as caught:
            leviathan.check(self.at)
        self.assertIn(f"there is no {self.at}/tests/suites/hup/suite.js: name a checkout of balena-os/meta-balena", str(caught.exception))
        with self.assertRaises(FarmError) as caught:
            leviathan.kind_of("qemu-riscv64")
        self.assertIn("the suites run on qemu-amd64, qemu-amd64-secure or qemu-aarch64, not on qemu-riscv64", str(caught.exception))

    def test_scripts_that_cannot_be_installed_are_refused_before_anything_is_built(self) -> None:
        scripts = shell_release.Checkouts(self.at, self.at / "fatrw")
        for board, why in (("qemu-aarch64", "made for qemu-amd64 and qemu-amd64-secure only, not for qemu-aarch64"), ("qemu-amd64", "name a checkout of balena-os/meta-balena")):
            with self.assertRaises(FarmError) as caught:
                leviathan.check_scripts(board, scripts)
            self.assertIn(why, str(caught.exception))

    def test_the_page_says_of_each_test_whether_it_runs(self) -> None:
        page = leviathan.PAGE.read_text()
        runs = re.findall(r"(?m)^\| `([\w-]+)`[^|]*\| runs", page)
        own = re.findall(r"'\./tests/([\w-]+)'", (TOP / "qemu/leviathan/os.js").read_text())
        self.assertEqual(sorted(set(runs)), sorted(["rollbacks", "smoke", *own]))
        for suite, names in (("hup", ["rollbacks", "new"]), ("os", ["udev", "overlap_test/", "other"])):
            at = self.at / leviathan.SUITES / suite
            at.mkdir(parents=True)
            (at / "suite.js").write_text("tests: [" + "".join(f"\t\t'./tests/{name}',\n" for name in names) + "]")
        self.assertEqual(leviathan.unlisted(self.at), ["hup/new", "os/other"])

    def test_an_answer_has_a_value_or_an_error_that_may_pass_or_not(self) -> None:
        device = mock.Mock(REQUESTS=leviathan.Device.REQUESTS)
        device.run.side_effect = [{"status": 0}, Away("the device has restarted"), FarmError("the power is off"), OSError("no such file")]
        ask = lambda what: leviathan.answer(device, json.dumps({"id": 7, "do": what, "command": "true"}).encode())
        self.assertEqual(ask("run"), {"id": 7, "value": {"status": 0}})
        self.assertEqual(ask("run"), {"id": 7, "error": "the device has restarted", "fatal": False})
        self.assertEqual(ask("run"), {"id": 7, "error": "the power is off", "fatal": True})
        self.assertEqual(ask("run"), {"id": 7, "error": "no such file", "fatal": True})
        self.assertEqual(ask("reach"), {"id": 7, "error": "unknown request 'reach'", "fatal": True})
        device.reach.assert_not_called()

    def test_the_farm_stops_at_its_limit_while_nothing_is_asked(self) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs, self.assertRaises(FarmError):
            leviathan.serve(ours, mock.Mock(), mock.Mock(side_effect=FarmError("the limit of 1 s is over")))


class Agents:
    """A stand-in for the agent: its answers, one after another."""

    def __init__(self, *answers: tuple[int, str] | Exception) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    def call(self, script: str, _seconds: float, check: Any) -> Answer:
        self.asked.append(script)
        check()
        found = self.answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return Answer(*found)

    def ping(self, _seconds: float, check: Any) -> None:
        check()

    def close(self) -> None:
        pass


class Devices(Case):
    """The board, with a stand-in for the machine."""

    def device(self, agent: Agents) -> leviathan.Device:
        """One that is on and whose image `alpine` is there."""
        device = leviathan.Device(mock.Mock(), mock.Mock(), self.at, self.at, "tcg", lambda: None)
        device.power = mock.Mock(resets_seen=0, agent=agent, sockets=self.at)
        device.power.resets.return_value = 0
        device.power.has_powered_off.return_value = False
        device.supplied = True
        patched = mock.patch.object(leviathan, "Agent", lambda _: agent)
        patched.start()
        self.addCleanup(patched.stop)
        return device

    def test_a_command_waits_for_the_mounts_that_ssh_waits_for(self) -> None:
        agent = Agents((1, ""), (0, ""), (0, "hello\n"), (0, "again\n"))
        device = self.device(agent)
        with self.assertRaisesRegex(Away, "boot, state and data are not mounted"):
            device.run("echo hello")
        self.assertEqual(device.run("echo hello"), {"status": 0, "stdout": "hello\n", "stderr": ""})
        self.assertEqual(agent.asked, [leviathan.MOUNTED, leviathan.MOUNTED, f"exec 2>{leviathan.ERRORS}\necho hello"])
        device.run("echo again")
        self.assertNotIn(leviathan.MOUNTED, agent.asked[3:])

    def test_after_a_restart_it_waits_again(self) -> None:
        agent = Agents((0, ""), (0, "1"), (0, ""), (0, "2"))
        device = self.device(agent)
        device.run("one")
        assert device.power is not None
        device.power.resets.return_value = 1
        device.run("two")
        self.assertEqual(agent.asked.count(leviathan.MOUNTED), 2)

    def test_a_restart_during_a_command_is_no_answer(self) -> None:
        agent = Agents((0, ""), (0, ""))
        device = self.device(agent)
        device.run("systemctl reboot")
        with mock.patch.object(agent, "call", side_effect=lambda script, seconds, check: (setattr(device.power.resets, "return_value", 1), check())):
            with self.assertRaisesRegex(Away, "restarted"):
                device.call("test -f /tmp/reboot-check")

    def test_a_failed_command_has_its_errors_apart(self) -> None:
        device = self.device(Agents((0, ""), (2, "out"), (0, "ls: no such file")))
        self.assertEqual(device.run("ls /x"), {"status": 2, "stdout": "out", "stderr": "ls: no such file"})

    def test_without_power_or_after_its_own_end_it_is_of_no_use_to_wait(self) -> None:
        device = self.device(Agents())
        assert device.power is not None
        device.power.has_powered_off.return_value = True
        with self.assertRaisesRegex(FarmError, "switched itself off") as caught:
            device.run("true")
        self.assertNotIsInstance(caught.exception, Away)
        device.off()
        with self.assertRaisesRegex(FarmError, "the power is off") as caught:
            device.run("true")
        self.assertNotIsInstance(caught.exception, Away)

    def test_a_file_arrives_whole_or_is_noticed(self) -> None:
        file = self.at / "file"
        file.write_bytes(os.urandom(300_000))
        device = self.device(Agents())
        got: list[str] = []

        def call(command: str) -> dict[str, Any]:
            port = int(command.split("10.0.2.2 ")[1].split()[0])
            with socket.create_connection(("127.0.0.1", port)) as client:
                data = b"".join(iter(lambda: client.recv(1 << 16), b""))
            got.append(command)
            return {"status": 0 if hashlib.sha256(data).hexdigest() in command else 1, "stderr": ""}

        with mock.patch.object(device, "call", call), mock.patch.object(device, "reach"):
            device.send(str(file), "/mnt/data/resin-data/")
            self.assertIn("mv /mnt/data/resin-data/file.new /mnt/data/resin-data/file", got[0])
            with mock.patch.object(leviathan, "file_digest", return_value="0" * 64), self.assertRaises(Away):
                device.send(str(file), "/other")


SUITE = """module.exports = { title: 'Suite', tests: ['./tests/rollbacks', './tests/smoke'], run: async function (test) {
    const Worker = this.require('common/worker');
    const BalenaOS = this.require('components/os/balenaos');
    await require('fs-extra').ensureDir(this.suite.options.tmpdir);
    this.suite.context.set({ worker: new Worker('x', this.getLogger()), link: 'x.local' });
    const os = new BalenaOS({ configJson: { developmentMode: true } }), hostapp = new BalenaOS({});
    await os.fetch(); await hostapp.fetch(); await os.configure();
    await this.worker.off(); await this.worker.flash(os.image.path); await this.worker.on();
    await this.worker.sendFile(hostapp.image.path, '/mnt/', this.link);
    this.suite.teardown.register(() => this.worker.teardown());
} };"""
PASSING = "await test.resolves(this.worker.rebootDut(this.link), 'restarts'); test.is(await this.worker.getOSVersion(this.link), '1', 'version');"


class Shim(Case):
    """The runner in JavaScript, with suites of this test and a device that is a table."""

    def setUp(self) -> None:
        super().setUp()
        if NODE is None:
            self.skipTest("not run: no node here: tests of what runs balenaOS's test suites")
        self.checkout = self.at / "checkout"
        self.put("hup/suite.js", SUITE)
        for name in ("fingerprint", "udev", "safe-reboot", "secureboot"):
            self.put(f"os/tests/{name}/index.js", f"module.exports = {{ title: '{name}', tests: [] }};")
        self.add("smoke", PASSING)
        self.add("rollbacks", PASSING)
        (self.at / "hostapp.tar").write_text("release")

    def put(self, path: str, text: str) -> None:
        """A file of the suites."""
        at = self.checkout / "tests/suites" / path
        at.parent.mkdir(parents=True, exist_ok=True)
        at.write_text(text)

    def add(self, name: str, body: str, more: str = "") -> None:
        """A test of the suite `hup`, with one in it."""
        self.put(f"hup/tests/{name}.js", f"module.exports = {{ title: 'T {name}', tests: [{{ title: 'one', {more} run: async function (test) {{ {body} }} }}] }};")

    def run_it(self, *words: str) -> tuple[int, str, list[str]]:
        """The exit code, the report and the requests of a run."""
        asked: list[str] = []
        failures = iter([1, 1])

        class Board:
            REQUESTS = leviathan.Device.REQUESTS

            def __getattr__(self, what: str) -> Any:
                def request(**values: Any) -> Any:
                    asked.append(" ".join([what, *map(str, values.values())]))
                    if what == "run":
                        # A device that restarts does not answer at once.
                        if "reboot-check ]]" in values["command"] and (status := next(failures, 0)):
                            return {"status": status, "stdout": "", "stderr": ""}
                        return {"status": 0, "stdout": "active\n" if "is-active" in values["command"] else "1\n", "stderr": ""}
                    return "/the/image" if what == "image" else None

                return request

        ours, theirs = socket.socketpair()
        options = {"board": "qemu-x", "arch": "x86_64", "hostapp": str(self.at / "hostapp.tar"), "folder": str(self.at), "results": str(self.at)}
        environment = {**os.environ, "COPAL_LEVIATHAN": json.dumps(options), "COPAL_LEVIATHAN_LINK": str(theirs.fileno()), "COPAL_LEVIATHAN_INTERVAL": "1"}
        process = subprocess.Popen(leviathan.node(self.checkout, "run", list(words)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                   pass_fds=[theirs.fileno()], env=environment)
        theirs.close()
        with ours:
            server = threading.Thread(target=leviathan.serve, args=(ours, Board(), lambda: None))
            server.start()
            output, _ = process.communicate(timeout=60)
            server.join()
        return process.returncode, output, asked

    def test_suites_run_as_they_are(self) -> None:
        status, report, asked = self.run_it()
        self.assertEqual(status, 0, report)
        self.assertEqual(asked[:6], ["image", "configure /the/image {'developmentMode': True}", "off", "flash /the/image", "on", f"send {self.at}/hostapp.tar /mnt/"])
        # The command is repeated until the device has restarted.
        self.assertEqual(sum("reboot-check ]]" in one for one in asked), 4)
        self.assertIn("        ok 1 - restarts\n", report)
        self.assertRegex(report, r"(?m)^ok 1 - Suite # time=\d+s$")
        self.assertRegex(report, r"# leviathan: qemu-x: passed: \d+ assertions passed, 0 failed")
        self.assertEqual((self.at / "qemu-x.tap").read_text(), report)
        self.assertIn("off", asked[6:])

    def test_the_first_failure_ends_the_suite_and_the_run_fails(self) -> None:
        self.add("rollbacks", "test.is(await this.worker.getOSVersion(), '2', 'version'); test.is(1, 1, 'later');")
        status, report, asked = self.run_it("hup")
        self.assertEqual(status, 1)
        self.assertIn("            not ok 1 - version\n", report)
        self.assertIn("found: '1'", report)
        self.assertNotIn("later", report)
        self.assertNotIn("T smoke", report)
        self.assertIn("# leviathan: qemu-x: FAILED: 0 assertions passed, 1 failed", report)
        # It is torn down all the same.
        self.assertEqual(asked[-1], "off")

    def test_an_assertion_whose_failure_is_caught_still_fails(self) -> None:
        self.add("rollbacks", "try { test.is(1, 2, 'caught'); } catch (error) { test.comment('so what'); }")
        self.assertEqual(self.run_it("hup/rollbacks")[0], 1)

    def test_an_error_fails(self) -> None:
        for body in ("throw new Error('x');", "await test.resolves(Promise.reject(), 'r');", "test.same(1, 1);", "test.not('A', 'A', 'slot');",
                     "await new Promise(() => {}); test.is(1, 1);", "require('request-promise')();"):
            self.add("smoke", body)
            self.assertEqual(self.run_it("hup/smoke")[0], 1, body)

    def test_a_run_without_an_assertion_fails(self) -> None:
        self.add("smoke", "test.comment('nothing to do');")
        self.assertEqual(self.run_it("hup/smoke")[0], 1)

    def test_only_tests_that_are_named_run(self) -> None:
        status, report, _ = self.run_it("hup/SMOKE/one")
        self.assertEqual(status, 0)
        self.assertIn("T smoke", report)
        self.assertNotIn("T rollbacks", report)
        self.assertEqual(self.run_it("hup/smok/e")[0], 2)
        self.assertEqual(leviathan.tests(self.checkout, "check", ["hup/rollbacks"]), 0)

    def test_what_cannot_run_is_skipped_and_what_is_expected_to_fail_fails_nothing(self) -> None:
        self.put("os/tests/secureboot/index.js", """module.exports = { title: 'secure', tests: [{ title: 'check UEFI secure boot', run: async function (test) {
            await test.resolves(this.worker.executeCommandInHostOS('modprobe pcan_netdev'), 'loads');
            await test.resolves(Promise.reject(new Error('x')), 'expected', { todo: 'later' });
            await test.resolveMatch(this.worker.executeCommandInHostOS('echo'), /^1$/, 'matches');
        } }, { title: 'check RPI secure boot', run: async function (test) { test.is(1, 2, 'never'); } }] };""")
        status, report, asked = self.run_it("os/secureboot")
        self.assertEqual(status, 0, report)
        for line in ("ok 1 - loads # SKIP Debian's kernel has no such module", "not ok 2 - expected # TODO later", "ok 3 - matches",
                     "ok 2 - check RPI secure boot # SKIP another board"):
            self.assertIn(f"    {line}\n", report)
        self.assertNotIn("run modprobe pcan_netdev", asked)
        self.put("os/tests/secureboot/index.js", """module.exports = { title: 'secure', tests: [{ title: 'check UEFI secure boot', run: async function (test) {
            await test.resolveMatch(this.worker.executeCommandInHostOS('echo'), /^2$/, 'matches');
        } }] };""")
        self.assertEqual(self.run_it("os/secureboot")[0], 1)

    def test_each_test_has_a_run_of_its_own_and_is_not_repeated_once_it_has_passed(self) -> None:
        self.put("os/suite.js", "")
        self.put("hup/tests/rollbacks.js", "module.exports = { title: 'T', tests: ['one', 'two'].map((title) => ({ title, run() {} })) };")
        self.assertEqual(leviathan.units(self.checkout, ["hup"]), ["hup/rollbacks/one", "hup/rollbacks/two", "hup/smoke"])
        built = suite_images.Images(self.at / "disk-1", self.at / "hostapp", self.at / "alpine")
        ran: list[str] = []

        def run(_checkout: Path, name: str, words: list[str], results: Path, *_: Any) -> int:
            (unit,) = words
            ran.append(unit)
            if unit == "hup/rollbacks/one" and len(ran) == 1:
                raise FarmError("the limit of 1 s is over")
            bad = int(unit == "hup/rollbacks/two" and len(ran) < 4)
            results.mkdir(parents=True, exist_ok=True)
            (results / f"{name}.tap").write_text(f"# leviathan: {name}: {'FAILED' if bad else 'passed'}: 3 assertions passed, {bad} failed, in 7 s\n")
            return bad

        said: list[str] = []
        with mock.patch.object(leviathan, "run", run), mock.patch.object(leviathan, "build", return_value=built):
            each = lambda: leviathan.each(self.checkout, "qemu-amd64", ["hup"], self.at / "results", 1.0, said.append)
            self.assertEqual((each(), ran), (1, ["hup/rollbacks/one", "hup/rollbacks/two", "hup/smoke"]))
            self.assertIn("hup/rollbacks/one: the limit of 1 s is over", said)
            self.assertIn("| `qemu-amd64` | hup/rollbacks/one | no end |", said[-1])
            self.assertIn("| `qemu-amd64` | hup/rollbacks/two | 3 | 1 | 7 |", said[-1])
            self.assertEqual((each(), ran[3:]), (0, ["hup/rollbacks/one", "hup/rollbacks/two"]))
            self.assertEqual((each(), ran[5:]), (0, []))
            self.assertIn("| `qemu-amd64` | hup/smoke | 3 | 0 | 7 |", said[-1])
        # Other images, and another runner.
        other = dataclasses.replace(built, disk=self.at / "disk-2")
        with mock.patch.object(leviathan, "run", run), mock.patch.object(leviathan, "build", return_value=other):
            self.assertEqual((each(), len(ran)), (0, 8))
            with mock.patch.object(images, "sources", return_value="another runner"):
                self.assertEqual((each(), len(ran)), (0, 11))

    def test_a_condition_that_is_not_evaluated_stops_the_run(self) -> None:
        self.add("smoke", PASSING, "deviceType: { type: 'object' },")
        status, report, asked = self.run_it()
        self.assertEqual((status, asked), (1, []))
        self.assertIn("has the condition deviceType", report)


class Installations(Case):
    """A secure board, which is started from a medium."""

    def device(self, ends: str, kind: str = "balena-efi") -> tuple[leviathan.Device, list[str]]:
        """One whose medium ends so on the console, and leaves a disk whose first partition has that name; and what was started."""
        (self.at / "farm").mkdir()
        (self.at / "run").mkdir()
        medium = self.at / "run/image"
        medium.write_text("medium")
        started: list[str] = []

        class Machine:
            def __init__(self, _board: Any, hardware: Any, _accelerator: str) -> None:
                self.hardware = hardware

            def start(self) -> None:
                started.append(str(self.hardware.medium))
                table(self.hardware.disk, (kind, 40, 49), ("resin-rootA", 100, 149))

            def console(self) -> str:
                return ends

            def has_powered_off(self) -> bool:
                return not ends

            def alive(self) -> None:
                pass

            def until(self, _what: str, _seconds: float, done: Any, check: Any) -> None:
                if not done():
                    check()

            def kill(self) -> None:
                pass

        built = suite_images.Images(self.at / "disk", self.at / "hostapp", self.at / "alpine", self.at / "flasher", self.at / "signed")
        board = mock.Mock(name="board", text="", qemu="qemu/x", emmc=0, tpm="tpm")
        board.name = "qemu-x"
        (self.at / "qemu").mkdir()
        (self.at / "qemu/stamp").write_text("1")
        for patched in (mock.patch.object(leviathan, "Machine", Machine), mock.patch.object(leviathan.place, "farm", lambda: self.at / "farm"),
                        mock.patch.object(leviathan.place, "part", lambda _: self.at / "qemu"), mock.patch.object(leviathan.look, "boot_file", lambda *_: b"{}"),
                        mock.patch.object(leviathan.states, "chips", lambda _board, at, _signed: (at / "tpm").mkdir())):
            patched.start()
            self.addCleanup(patched.stop)
        return leviathan.Device(board, built, self.at / "run", self.at, "tcg", lambda: None), started

    def test_a_new_board_is_installed_once_for_each_configuration(self) -> None:
        device, started = self.device("")
        for _ in range(2):
            device.flash(str(self.at / "run/image"))
            self.assertTrue((self.at / "run/tpm").is_dir())
            self.assertTrue(leviathan.look.encrypted(self.at / "run/disk"))
        self.assertEqual(started, [str(self.at / "run/image")])
        with mock.patch.object(leviathan.look, "boot_file", lambda *_: b'{"installer": {}}'):
            device.flash(str(self.at / "run/image"))
        self.assertEqual(len(started), 2)

    def test_one_that_fails_is_not_kept(self) -> None:
        device, started = self.device("[FAILED] Failed to start resin-init-flasher.service")
        for _ in range(2):
            with self.assertRaisesRegex(FarmError, "the installation has failed"):
                device.flash(str(self.at / "run/image"))
        self.assertEqual(len(started), 2)

    def test_one_that_is_not_encrypted_is_an_error(self) -> None:
        device, _ = self.device("", "resin-boot")
        with self.assertRaisesRegex(FarmError, "the installation is not encrypted"):
            device.flash(str(self.at / "run/image"))


class Images(Case):
    """The second set of images."""

    def test_every_release_has_the_engine(self) -> None:
        for board in suite_images.BOARDS.values():
            for name in (suite_images.OLD, suite_images.NEW, suite_images.BACK):
                self.assertIn(name, images.releases_of(board))
            self.assertFalse(board.engine_apart)

    def release(self) -> Tree:
        """The files of this repository in a release."""
        tree = Tree()
        images.overlay(tree, images.OS / "hostapp")
        return tree

    def test_the_suites_find_programs_under_their_names(self) -> None:
        tree = self.release()
        suite_images.changed(tree)
        paths = list(tree.nodes)
        # Each search of the suites in the inactive slot has one result.
        for pattern in (r"usr/bin/balena-engine$", r"bin/openvpn$"):
            self.assertEqual(len([path for path in paths if re.search(pattern, path)]), 1, pattern)
        for unit in ("balena", "balena-host"):
            self.assertIn("ExecStart=/usr/bin/balenad ", tree.text(f"usr/lib/systemd/system/{unit}.service"))
        self.assertIn("ExecStart=/usr/sbin/openvpn\n", tree.text("usr/lib/systemd/system/openvpn.service"))
        self.assertEqual({tree.nodes[f"usr/bin/{name}"].target for name in suite_images.LINKS}, {"balena-engine"})
        self.assertNotRegex(tree.text("etc/copal/rollback.conf"), r"(?m)^(TIMEOUT|COUNT)=")
        listed = dict(reversed(line.split("  ", 1)) for line in tree.text("balenaos.fingerprint").splitlines())
        self.assertEqual(listed["/usr/sbin/openvpn"], hashlib.md5(tree.text("usr/sbin/openvpn").encode()).hexdigest())

    def test_a_release_with_the_scripts_has_the_same_names(self) -> None:
        tree = self.release()
        tree.remove("etc/copal")
        suite_images.changed(tree, scripts=True)
        self.assertIn("ExecStart=/usr/sbin/openvpn\n", tree.text("usr/lib/systemd/system/openvpn.service"))
        self.assertEqual({tree.nodes[f"usr/bin/{name}"].target for name in suite_images.LINKS}, {"balena-engine"})

    def test_a_change_that_no_longer_applies_is_an_error(self) -> None:
        tree = self.release()
        tree.file("etc/copal/rollback.conf", "COUNT=3\n")
        with self.assertRaisesRegex(Fault, "rollback.conf of the boards has no 'TIMEOUT=2"):
            suite_images.changed(tree)

    def test_the_engine_and_its_client_are_one_program(self) -> None:
        script = (images.OS / "suite/usr/bin/balena-engine").read_text().replace("/usr/sbin/dockerd", "echo daemon").replace("/usr/bin/docker", "echo client")
        for name, said in (("balena", "client ps"), ("balena-engine", "client ps"), ("balenad", "daemon ps"), ("balena-engine-daemon", "daemon ps")):
            at = self.at / name
            at.write_text(script)
            at.chmod(0o755)
            done = subprocess.run([at, "ps"], capture_output=True, text=True, check=True)
            self.assertEqual(done.stdout.strip(), said)

    def test_alpine_is_an_image_with_a_shell(self) -> None:
        busybox = self.at / "guests/suite_amd64/root/usr/bin/busybox"
        busybox.parent.mkdir(parents=True)
        busybox.write_bytes(b"program")
        suite_images.alpine(self.at / "guests", "amd64", self.at / "alpine.tar")
        with tarfile.open(self.at / "alpine.tar") as tar:
            described = json.load(tar.extractfile("manifest.json") or self.fail())[0]
            self.assertEqual(described["RepoTags"], ["alpine:latest"])
            with tarfile.open(fileobj=tar.extractfile(described["Layers"][0])) as layer:
                self.assertEqual(layer.getmember("bin/sh").linkname, "busybox")
        self.assertEqual([path.name for path in self.at.iterdir() if path.is_dir()], ["guests"])


if __name__ == "__main__":
    unittest.main()
