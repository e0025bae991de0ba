// Of the suite `os`: the tests of what copal replaces. docs/leviathan.md says why the others are not here.
//
// The set-up of that suite waits for a supervisor and for a host name out of config.json, which the boards do not have. This one only starts the device.
'use strict';

const startDevice = require('./device');

module.exports = {
	title: 'Parts of the unmanaged balenaOS release suite',

	run: async function (test) {
		const { link, utils, worker } = await startDevice(this, test, { persistentLogging: true });
		const systemd = {
			waitForServiceState: (name, state, target) =>
				utils.waitUntil(
					async () => (await worker.executeCommandInHostOS(`systemctl is-active ${name} || true`, target)) === state,
					false,
					120,
					250,
				),
		};
		this.suite.context.set({ systemd });
		await test.resolves(systemd.waitForServiceState('balena', 'active', link), 'The engine should run');
		this.suite.teardown.register(() => worker.archiveLogs(this.id, link));
	},

	// The last one installs the device again.
	tests: ['./tests/fingerprint', './tests/udev', './tests/safe-reboot', './tests/secureboot'],

	/** Tests in these files that cannot run on a board, and why. */
	without: {
		'safe-reboot/Override update locks': 'it asks the supervisor, which the board does not have',
		'secureboot/check QEMU secure boot': "it talks to the QEMU of Leviathan's own worker",
		'secureboot/check RPI secure boot': 'another board',
		'secureboot/check IMX secure boot': 'another board',
	},

	/** Commands that cannot run, and why. */
	cannot: [[/^modprobe pcan_netdev$/, "Debian's kernel has no such module"]],
};
