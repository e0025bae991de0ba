// copal's own suite. A device with the shell scripts is updated to copal; copal then installs a release with the scripts, which commits itself and boots
// again.
'use strict';

const startDevice = require('../device');

module.exports = {
	title: 'From the scripts to copal and back',

	run: async function (test) {
		const { worker } = await startDevice(this, test, {});
		this.suite.teardown.register(() => worker.archiveLogs(this.id));
	},

	tests: ['./updates'],
};
