// Stand-ins for Leviathan, which runs the suites on real devices: what the suites call of it, over a board of the farm.
//
// It tries as often as Leviathan 2.36.124 (core/lib/common/worker.js, utils.js), in the same intervals.
'use strict';

const fs = require('node:fs');
const Module = require('node:module');
const net = require('node:net');
const { basename, join } = require('node:path');
const { setTimeout: sleep } = require('node:timers/promises');

const { Skip } = require('./tap');

const TRIES = 300;
const INTERVAL = Number(process.env.COPAL_LEVIATHAN_INTERVAL ?? 1000);

// --- the farm ---------------------------------------------------------------------------------------------------------

/** Requests to qemu/farm/leviathan.py and its answers: JSON objects, one a line. */
class Farm {
	constructor(stream) {
		this.stream = stream;
		this.waiting = new Map();
		this.last = 0;
		stream.unref();
		let left = '';
		stream.setEncoding('utf8');
		stream.on('data', (data) => {
			const lines = (left + data).split('\n');
			left = lines.pop();
			lines.forEach((line) => this.answered(JSON.parse(line)));
		});
		stream.on('close', () => {
			for (const { reject } of this.waiting.values()) {
				reject(Object.assign(new Error('the farm has ended'), { fatal: true }));
			}
		});
	}

	answered({ id, value, error, fatal }) {
		const { resolve, reject } = this.waiting.get(id);
		this.waiting.delete(id);
		if (this.waiting.size === 0) {
			// A test that waits for nothing ends this process, and with it the run.
			this.stream.unref();
		}
		if (error === undefined) {
			resolve(value);
		} else {
			reject(Object.assign(new Error(error), { fatal }));
		}
	}

	ask(what, values = {}) {
		return new Promise((resolve, reject) => {
			this.last += 1;
			this.waiting.set(this.last, { resolve, reject });
			this.stream.ref();
			this.stream.write(`${JSON.stringify({ id: this.last, do: what, ...values })}\n`);
		});
	}
}

// --- what suites get by this.require() --------------------------------------------------------------------------------

/** `delay` waits for so many milliseconds of a real device. */
const utils = (delay) => ({
	async waitUntil(condition, rejectionFail = false, times = 20, interval = 30000) {
		for (let left = times; left > 0; left -= 1) {
			try {
				if (await condition()) {
					return;
				}
			} catch (error) {
				if (rejectionFail || error.fatal) {
					throw error;
				}
			}
			await delay(interval);
		}
		throw new Error(`not true in ${times} tries: ${condition}`);
	},

	// The board has no sshd.
	createSSHKey: async () => ({ pubKey: '', key: '' }),
});

/**
 * The classes, for one board. `slowness`: how many times the board takes as long as a device; `cannot`: pairs of a pattern, and why a command that it matches
 * cannot run there.
 */
function components(farm, { hostapp, folder, archive, slowness = 1, cannot = [] }) {
	const delay = (milliseconds) => sleep(milliseconds * slowness);

	class Worker {
		constructor(_deviceType, logger) {
			this.logger = logger;
		}

		off() {
			return farm.ask('off');
		}

		on() {
			return farm.ask('on');
		}

		flash(image) {
			return farm.ask('flash', { image });
		}

		// The board has a network of its own, and no ssh.
		async network() {}

		async addSSHKey() {}

		async createSSHTunnels() {}

		async teardown() {
			await farm.ask('off');
		}

		async getContract() {
			return { workerType: 'farm' };
		}

		/** The output of a command that ends with 0. It is repeated until it does: suites rely on that while a device starts. */
		async executeCommandInHostOS(command, _target, { max_tries: tries = TRIES, interval = INTERVAL } = {}) {
			const text = [command].flat().join(' ');
			for (const [pattern, why] of cannot) {
				if (pattern.test(text)) {
					throw new Skip(why);
				}
			}
			for (let number = 1; ; number += 1) {
				try {
					const { status, stdout, stderr } = await farm.ask('run', { command: text });
					if (status === 0) {
						return stdout.trim();
					}
					throw new Error(`"${text}" failed. stderr: ${stderr}, stdout: ${stdout}, code: ${status}`);
				} catch (error) {
					if (number >= tries || error.fatal) {
						throw error;
					}
					if (number === 1) {
						this.logger.log(`repeated until it works: ${error.message}`);
					}
				}
				await delay(interval);
			}
		}

		/** A command that is not repeated, however it ends. */
		once(command) {
			return farm.ask('run', { command });
		}

		fetchSerial() {
			return farm.ask('serial');
		}

		sendFile(file, to) {
			return farm.ask('send', { file, to });
		}

		async rebootDut(target) {
			await this.executeCommandInHostOS('touch /tmp/reboot-check && systemd-run --on-active=2 reboot', target);
			await this.executeCommandInHostOS('[[ ! -f /tmp/reboot-check ]] && echo pass', target);
		}

		async getOSVersion(target) {
			return this.executeCommandInHostOS('. /etc/os-release && echo "$VERSION"', target);
		}

		async archiveLogs(title, target, command = 'journalctl --no-pager --no-hostname -a') {
			try {
				const file = join(folder, `${command.split(' ')[0]}.log`);
				fs.writeFileSync(file, await this.executeCommandInHostOS(command, target, { interval: 5000, max_tries: 3 }));
				await archive(title, file);
			} catch (error) {
				this.logger.log(`no logs: ${error.message}`);
			}
		}
	}

	/** The image of a disk, to be configured and flashed; without one, the release to update to. */
	class BalenaOS {
		constructor({ deviceType, network, image, configJson }) {
			Object.assign(this, { deviceType, network, configJson, image: { path: image }, contract: {} });
		}

		async fetch() {
			if (this.configJson) {
				this.image.path = await farm.ask('image');
			} else {
				// A suite puts the compressed release beside it.
				this.image.path = join(folder, basename(hostapp));
				fs.rmSync(this.image.path, { force: true });
				fs.symlinkSync(hostapp, this.image.path);
			}
		}

		configure() {
			return farm.ask('configure', { image: this.image.path, config: this.configJson });
		}
	}

	/** The cloud: the release to update from is the farm's. */
	class Sdk {
		constructor() {
			this.balena = {
				auth: { loginWithToken: async () => {}, whoami: async () => ({ username: 'none' }) },
				models: { os: { getAvailableOsVersions: async () => ['the release on the board'] }, key: { create: async () => {} } },
			};
		}

		async fetchOS() {
			return '';
		}

		async removeSSHKey() {}
	}

	return {
		'common/utils': utils(delay),
		'common/worker': Worker,
		'components/balena/sdk': Sdk,
		'components/os/balenaos': BalenaOS,
	};
}

// --- what suites get by require() -------------------------------------------------------------------------------------

/** A function of a package that no test on a board may need. */
function absent(name) {
	return () => {
		throw new Error(`${name} is not there on a board`);
	};
}

const PACKAGES = {
	'balena-image-fs': { interact: absent('balena-image-fs') },
	bluebird: {},
	'@balena/node-qmp': { Client: absent('@balena/node-qmp') },
	'fs-extra': { ensureDir: (path) => fs.promises.mkdir(path, { recursive: true }), pathExists: absent('fs-extra.pathExists') },
	'request-promise': absent('request-promise'),
};

/** Gives suites these instead of packages of npm. */
function stub() {
	const load = Module._load;
	Module._load = (name, ...more) => (Object.hasOwn(PACKAGES, name) ? PACKAGES[name] : load(name, ...more));
}

// --- a suite and its tests --------------------------------------------------------------------------------------------

class Context {
	constructor(above) {
		this.above = above;
		this.values = {};
	}

	get() {
		return { ...this.above?.get(), ...this.values };
	}

	set(values) {
		Object.assign(this.values, values);
	}
}

/** Tasks for the end, the last first. Their errors are printed and fail no test. */
class Teardown {
	constructor() {
		this.tasks = [];
	}

	register(task) {
		this.tasks.push(task);
	}

	async run(say) {
		for (const task of this.tasks.splice(0).reverse()) {
			try {
				await task();
			} catch (error) {
				say(`teardown: ${error.message}`);
			}
		}
	}
}

class Suite {
	/** `options` names the board, its processor, and directories; `cannot` comes from the suite. */
	constructor(farm, options, say, cannot) {
		this.say = say;
		this.archive = async (title, file) => {
			const to = join(options.results, title.replaceAll(/[^\w.-]+/g, '-'));
			await fs.promises.mkdir(to, { recursive: true });
			await fs.promises.copyFile(file, join(to, basename(file)));
		};
		this.components = components(farm, { ...options, archive: this.archive, cannot });
		this.context = new Context();
		this.teardown = new Teardown();
		this.deviceType = { slug: options.board, data: { arch: options.arch, connectivity: { wifi: false } } };
		this.options = {
			id: 'copal',
			across: { there: options.hostapp, back: options.back },
			tmpdir: options.folder,
			workerUrl: '',
			config: { sshConfig: {} },
			balena: { apiUrl: '', apiKey: '', organization: '' },
			balenaOS: {
				config: { uuid: 'c0ba1000c0ba1000c0ba1000c0ba1000', installerForceMigration: false },
				download: { version: 'latest', imageType: 'raw' },
				network: { wired: true },
			},
			debug: { unstable: [] },
		};
	}
}

/** `this` of a test: what is in the context is also a property. */
class TestOf {
	constructor(title, suite) {
		this.id = title;
		this.suite = suite;
		this.teardown = new Teardown();
		this.context = new Context(suite.context);
		this.archiver = { add: suite.archive };
		return new Proxy(this, {
			get: (self, name) => {
				const context = self.context.get();
				return name in context ? context[name] : Reflect.get(self, name);
			},
		});
	}

	require(name) {
		const found = this.suite.components[name];
		if (!found) {
			throw new Error(`no stand-in for ${name} of Leviathan: qemu/leviathan/framework.js`);
		}
		return found;
	}

	log(text) {
		this.suite.say(text);
	}

	getLogger() {
		const log = (text) => this.suite.say(text);
		return { log, status: log, info: log };
	}
}

/** The farm that has started this process. */
function connect(descriptor) {
	return new Farm(new net.Socket({ fd: descriptor, readable: true, writable: true }));
}

module.exports = { Farm, Suite, TestOf, components, connect, stub };
