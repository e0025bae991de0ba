// SPDX-License-Identifier: GPL-2.0
/*
 * Registers a parallel NOR flash with the kernel's physmap driver.
 *
 * On a board a device tree does this. A PC has none, and Debian's physmap is built without the options that would take
 * the address from elsewhere. For the virtual machines of the tests only.
 */
#include <linux/ioport.h>
#include <linux/module.h>
#include <linux/mtd/physmap.h>
#include <linux/platform_device.h>

static unsigned long start;
module_param(start, ulong, 0444);
static unsigned long size;
module_param(size, ulong, 0444);
static int width = 1;
module_param(width, int, 0444);

static struct physmap_flash_data data;
static struct resource memory;
static struct platform_device *device;

static int __init nor_flash_init(void)
{
	if (!start || !size)
		return -EINVAL;
	data.width = width;
	memory.start = start;
	memory.end = start + size - 1;
	memory.flags = IORESOURCE_MEM;
	memory.name = "nor_flash";
	device = platform_device_register_resndata(NULL, "physmap-flash", PLATFORM_DEVID_AUTO, &memory, 1, &data,
						   sizeof(data));
	return PTR_ERR_OR_ZERO(device);
}

static void __exit nor_flash_exit(void)
{
	platform_device_unregister(device);
}

module_init(nor_flash_init);
module_exit(nor_flash_exit);
MODULE_DESCRIPTION("NOR flash at a given address, for tests");
MODULE_LICENSE("GPL");
