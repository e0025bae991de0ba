// No suite of balenaOS: a device with the scripts is updated to copal, and by copal back to the scripts, which commit that release and start it once more.
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
