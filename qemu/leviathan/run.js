// Runs test suites of a checkout of meta-balena, as they are, on a board of the farm: started by qemu/farm/leviathan.py.
//
//   node run.js CHECKOUT list [--across] TEST…     prints the tests
//   node run.js CHECKOUT check [--across] TEST…    ends with 2 where a word names no test
//   node run.js CHECKOUT run [--across] TEST…      runs them; the farm is at the descriptor COPAL_LEVIATHAN_LINK, and COPAL_LEVIATHAN has the options
//
// With --across there is the suite of updates from a release with the scripts and back to it.
'use strict';

const fs = require('node:fs');
const { basename, join } = require('node:path');
const { format } = require('node:util');

const { Suite, TestOf, connect, stub } = require('./framework');
const { Failed, Test } = require('./tap');

// The same for suites whose promises never settle: Node ends then, without an error.
process.exitCode = 1;

/** The suites in the order of a run: their root, and the folder that the paths of their tests are relative to. */
function suites(checkout, across) {
	const at = (name) => join(checkout, 'tests/suites', name);
	const found = [
		{ name: 'hup', folder: at('hup'), root: require(join(at('hup'), 'suite.js')) },
		{ name: 'os', folder: at('os'), root: require('./os') },
		...(across ? [{ name: 'across', folder: join(__dirname, 'across'), root: require('./across/suite') }] : []),
	];
	for (const suite of found) {
		suite.nodes = suite.root.tests.map((path) => tree(require(join(suite.folder, path)), `${suite.name}/${basename(path)}`, suite));
	}
	return found;
}

/** A test with those in it; `id` names it on the command line. */
function tree(test, id, suite) {
	for (const condition of ['deviceType', 'os', 'workerContract', 'skip']) {
		if (test[condition] !== undefined) {
			throw new Error(`${id} has the condition ${condition}, which is not evaluated here: qemu/leviathan/run.js`);
		}
	}
	const nodes = (test.tests ?? []).map((one) => tree(one, `${id}/${one.title}`, suite));
	return { test, id, nodes, why: suite.root.without?.[id.slice(suite.name.length + 1)] };
}

function leaves(node) {
	return node.nodes.length ? node.nodes.flatMap(leaves) : [node];
}

/** Leaves only the tests whose names begin with one of these words; all without words. */
function select(found, words) {
	const matches = (word, node) => node.id.toLowerCase().startsWith(word.toLowerCase());
	const all = found.flatMap((suite) => suite.nodes.flatMap(leaves));
	const unknown = words.filter((word) => !all.some((node) => matches(word, node)));
	if (unknown.length) {
		return { unknown };
	}
	const keep = (node) => {
		node.nodes = node.nodes.filter(keep);
		return node.nodes.length > 0 || words.length === 0 || words.some((word) => matches(word, node));
	};
	for (const suite of found) {
		suite.nodes = suite.nodes.filter(keep);
	}
	return { selected: found.filter((suite) => suite.nodes.length) };
}

/** A test, then those in it. */
async function walk(node, report, suite) {
	if (node.test.run) {
		const test = new TestOf(node.test.title, suite);
		try {
			await node.test.run.call(test, report);
		} finally {
			await test.teardown.run(suite.say);
		}
	}
	for (const one of node.nodes) {
		if (one.why) {
			report.skip(one.test.title, one.why);
		} else {
			await report.test(one.test.title, (child) => walk(one, child, suite));
		}
	}
}

async function run(selected, options, farm, write) {
	const total = { passed: 0, failed: 0 };
	const report = new Test(write, total);
	write('TAP version 14\n');
	for (const { root, nodes } of selected) {
		const suite = new Suite(farm, options, (text) => String(text).split('\n').forEach((line) => write(`# ${line}\n`)), root.cannot);
		try {
			await report.test(root.title, (child) => walk({ test: root, nodes }, child, suite));
		} catch (error) {
			if (!(error instanceof Failed)) {
				throw error;
			}
		} finally {
			await suite.teardown.run(suite.say);
		}
	}
	report.line(`1..${report.count}`);
	return total;
}

async function main([checkout, what, ...words]) {
	stub();
	const across = words[0] === '--across';
	const { selected, unknown } = select(suites(checkout, across), across ? words.slice(1) : words);
	if (unknown) {
		console.error(`no test ${unknown.join(', ')}: \`list\` shows their names`);
		return 2;
	}
	if (what !== 'run') {
		if (what === 'list') {
			selected.flatMap((suite) => suite.nodes.flatMap(leaves)).forEach(({ id, why }) => console.log(why ? `${id} (not run: ${why})` : id));
		}
		return 0;
	}
	const options = JSON.parse(process.env.COPAL_LEVIATHAN);
	const log = fs.createWriteStream(join(options.results, `${options.board}.tap`));
	const write = (text) => {
		process.stdout.write(text);
		log.write(text);
	};
	// The suites print progress, which is not part of the report.
	console.log = (...said) => write(`# ${format(...said).replaceAll('\n', '\n# ')}\n`);
	const begun = Date.now();
	const farm = connect(Number(process.env.COPAL_LEVIATHAN_LINK));
	const { passed, failed } = await run(selected, options, farm, write);
	farm.stream.destroy();
	const good = failed === 0 && passed > 0;
	const seconds = Math.round((Date.now() - begun) / 1000);
	write(`# leviathan: ${options.board}: ${good ? 'passed' : 'FAILED'}: ${passed} assertions passed, ${failed} failed, in ${seconds} s\n`);
	return good ? 0 : 1;
}

// A suite does not await every assertion; one that has failed has been counted.
process.on('unhandledRejection', (error) => {
	if (!(error instanceof Failed)) {
		throw error;
	}
});

if (require.main === module) {
	main(process.argv.slice(2)).then(
		(status) => {
			process.exitCode = status;
		},
		(error) => {
			console.error(error);
			process.exitCode = 1;
		},
	);
}

module.exports = { run, select, suites };
