'use strict';

const ARCHIVE = '/mnt/data/resin-data/across.tar';
/** A release is committed once the breadcrumbs are gone and `upgrade_available` is 0. */
const COMMITTED =
	'! ls /mnt/state | grep -q breadcrumb && grep -q "^upgrade_available=0" /dev/null $(find /mnt/boot/ /mnt/efi/ -name grubenv 2>/dev/null | head -n 1)';

module.exports = {
	title: 'Updates across',
	tests: [
		{
			title: 'to copal',
			run: async function (test) {
				test.is(await this.worker.executeCommandInHostOS('command -v copal || echo scripts'), 'scripts', 'The device should have the scripts');
				await update(this, test, this.suite.options.across.there);
				test.is(await this.worker.executeCommandInHostOS('basename $(command -v copal)'), 'copal', 'The device should have copal');
			},
		},
		{
			title: 'back to the scripts',
			run: async function (test) {
				await update(this, test, this.suite.options.across.back);
				test.is(await this.worker.executeCommandInHostOS('command -v copal || echo scripts'), 'scripts', 'The device should have the scripts');
				const version = await this.worker.getOSVersion();
				await this.worker.rebootDut();
				test.is(await this.worker.getOSVersion(), version, 'The committed release should start again');
			},
		},
	],
};

async function update(that, test, archive) {
	const before = await that.worker.getOSVersion();
	await that.worker.sendFile(archive, ARCHIVE);
	// Unpack on the data partition, as the suite `hup` does: the slot has no space for it.
	await that.worker.executeCommandInHostOS(
		'mkdir -p /mnt/data/resin-data/tmp /mnt/sysroot/inactive/balena/tmp && mount --bind /mnt/data/resin-data/tmp /mnt/sysroot/inactive/balena/tmp',
	);
	const { status } = await that.worker.once(`hostapp-update -f ${ARCHIVE}`);
	test.is(status, 0, 'The update should be installed');
	await that.worker.executeCommandInHostOS(`rm ${ARCHIVE}`);
	await that.worker.rebootDut();
	const after = await that.worker.getOSVersion();
	test.not(after, before, 'The new release should start');
	await test.resolves(
		that.utils.waitUntil(() => that.worker.executeCommandInHostOS(`${COMMITTED} && echo yes || true`).then((said) => said === 'yes'), false, 10 * 60, 1000),
		'The new release should be committed',
	);
	test.is(await that.worker.getOSVersion(), after, 'The new release should still run');
}
