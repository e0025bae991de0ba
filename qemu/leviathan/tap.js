// The assertions that the suites use, as TAP 14. The first failure ends the suite: what follows needs the device as the failed test had to leave it.
'use strict';

const { inspect } = require('node:util');

class Failed extends Error {}

/** Why something cannot run here. An assertion that it ends is not made. */
class Skip extends Error {}

class Test {
	/** `total` counts the assertions of a run. */
	constructor(write, total, depth = 0) {
		Object.assign(this, { write, total, depth, count: 0, passing: true });
	}

	line(text) {
		this.write(`${'    '.repeat(this.depth)}${text}\n`);
	}

	point(ok, message, more = '') {
		this.count += 1;
		this.passing &&= ok;
		this.line(`${ok ? 'ok' : 'not ok'} ${this.count} - ${message}${more}`);
	}

	result(ok, message, found) {
		this.total[ok ? 'passed' : 'failed'] += 1;
		this.point(ok, message);
		if (ok) {
			return;
		}
		const text = found instanceof Error ? found.stack : inspect(found);
		['---', ...text.split('\n'), '...'].forEach((line) => this.line(`  ${line}`));
		throw new Failed(message);
	}

	comment(text) {
		this.line(`# ${text}`);
	}

	skip(name, why) {
		this.point(true, name, ` # SKIP ${why}`);
	}

	is(found, expected, message) {
		this.result(Object.is(found, expected), message, { found, expected });
	}

	not(found, unexpected, message) {
		this.result(!Object.is(found, unexpected), message, { found, unexpected });
	}

	/** With `todo`, the suite expects that it fails, and nothing depends on it. */
	async resolves(promise, message, { todo } = {}) {
		let failure;
		try {
			await (typeof promise === 'function' ? promise() : promise);
		} catch (error) {
			failure = error ?? new Error('rejected without a reason');
		}
		if (failure instanceof Skip) {
			this.skip(message, failure.message);
		} else if (todo && failure !== undefined) {
			this.count += 1;
			this.line(`not ok ${this.count} - ${message} # TODO ${todo}`);
		} else {
			this.result(failure === undefined, message, failure);
		}
	}

	async resolveMatch(promise, pattern, message) {
		let found;
		try {
			found = await promise;
		} catch (error) {
			if (error instanceof Skip) {
				this.skip(message, error.message);
				return;
			}
			found = error;
		}
		this.result(typeof found === 'string' && pattern.test(found), message, found);
	}

	async test(name, run) {
		this.line(`# Subtest: ${name}`);
		const child = new Test(this.write, this.total, this.depth + 1);
		const begun = Date.now();
		try {
			await run(child);
		} catch (error) {
			if (!(error instanceof Failed)) {
				try {
					child.result(false, 'the test ends without an error', error);
				} catch {
					// It is in the report.
				}
			}
		}
		child.line(`1..${child.count}`);
		this.point(child.passing, name, ` # time=${Math.round((Date.now() - begun) / 1000)}s`);
		if (!child.passing) {
			throw new Failed(name);
		}
	}
}

module.exports = { Failed, Skip, Test };
