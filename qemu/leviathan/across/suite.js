// copal's own suite. A device with the shell scripts is updated to copal; copal then installs a release with the scripts, which commits itself and boots
// again.
'use strict';

module.exports = {
	title: 'From the scripts to copal and back',

	run: async function (test) {
		const utils = this.require('common/utils');
		const Worker = this.require('common/worker');
		const BalenaOS = this.require('components/os/balenaos');
		const worker = new Worker(this.suite.deviceType.slug, this.getLogger());
		const os = new BalenaOS({ deviceType: this.suite.deviceType.slug, configJson: {} }, this.getLogger());
		this.suite.context.set({ utils, worker });
		this.suite.teardown.register(() => worker.teardown());
		await os.fetch();
		await os.configure();
		await worker.off();
		await worker.flash(os.image.path);
		await worker.on();
		await test.resolves(worker.executeCommandInHostOS('true'), 'The device should start');
		this.suite.teardown.register(() => worker.archiveLogs(this.id));
	},

	tests: ['./updates'],
};
