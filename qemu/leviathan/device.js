// The set-up of suites that wait for neither a supervisor nor a host name: it gives the board its image, and starts it.
'use strict';

module.exports = async function startDevice(self, test, configJson) {
	const utils = self.require('common/utils');
	const Worker = self.require('common/worker');
	const BalenaOS = self.require('components/os/balenaos');
	const { slug: deviceType } = self.suite.deviceType;
	const link = `${self.suite.options.balenaOS.config.uuid.slice(0, 7)}.local`;
	const worker = new Worker(deviceType, self.getLogger());
	const os = new BalenaOS({ deviceType, configJson }, self.getLogger());
	self.suite.context.set({ link, os, sshKeyPath: '', utils, worker, workerContract: await worker.getContract() });
	self.suite.teardown.register(() => worker.teardown());
	await os.fetch();
	await os.configure();
	await worker.off();
	await worker.flash(os.image.path);
	await worker.on();
	await test.resolves(worker.executeCommandInHostOS('true', link), 'The device should start');
	return { link, utils, worker };
};
