// SPDX-License-Identifier: GPL-2.0
/*
 * Memory of a simulated GPU that uses System RAM: pages of the kernel that are in no RSS and in no cgroup, as those
 * of a GPU's driver. A write of N to /dev/gpumem allocates N bytes more; they are freed when the file is closed, so at
 * the end of the process. /proc/gpumem reports them as the state file of tests/simulators/nvml.
 *
 * A write of `wait` hangs in state D until another one writes `go`, as calls of a driver do that lost its GPU.
 */
#include <linux/fs.h>
#include <linux/kernel.h>
#include <linux/list.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/proc_fs.h>
#include <linux/sched.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/wait.h>

/* A driver asks for few pages at a time where memory is scarce; without __GFP_ACCOUNT no cgroup is charged. */
#define ORDER 4
#define BLOCK (PAGE_SIZE << ORDER)
#define GFP (GFP_HIGHUSER | __GFP_NORETRY | __GFP_NOWARN)

struct holder {
	struct list_head list;
	struct list_head blocks;
	pid_t pid;
	u64 bytes;
};

static LIST_HEAD(holders);
static DECLARE_WAIT_QUEUE_HEAD(hanging);
static unsigned int released;
static DEFINE_MUTEX(lock);

static int gpumem_open(struct inode *inode, struct file *file)
{
	struct holder *holder = kzalloc(sizeof(*holder), GFP_KERNEL);

	if (!holder)
		return -ENOMEM;
	INIT_LIST_HEAD(&holder->blocks);
	holder->pid = task_tgid_nr(current);
	file->private_data = holder;
	mutex_lock(&lock);
	list_add_tail(&holder->list, &holders);
	mutex_unlock(&lock);
	return 0;
}

static int gpumem_release(struct inode *inode, struct file *file)
{
	struct holder *holder = file->private_data;
	struct page *page, *next;

	list_for_each_entry_safe(page, next, &holder->blocks, lru) {
		list_del(&page->lru);
		__free_pages(page, page_private(page));
	}
	mutex_lock(&lock);
	list_del(&holder->list);
	mutex_unlock(&lock);
	kfree(holder);
	return 0;
}

/* A block of 64 KiB, and single pages where none is left. */
static struct page *take(void)
{
	struct page *page = alloc_pages(GFP, ORDER);
	unsigned int order = ORDER;

	if (!page) {
		order = 0;
		page = alloc_pages(GFP_HIGHUSER, order);
	}
	if (page)
		set_page_private(page, order);
	return page;
}

static void hang(void)
{
	unsigned int before = READ_ONCE(released);

	wait_event(hanging, READ_ONCE(released) != before);
}

static ssize_t gpumem_write(struct file *file, const char __user *from, size_t count, loff_t *at)
{
	struct holder *holder = file->private_data;
	u64 wanted, taken = 0;
	char first;
	int error;

	if (!count || get_user(first, from))
		return -EFAULT;
	if (first == 'w') {
		hang();
		return count;
	}
	if (first == 'g') {
		WRITE_ONCE(released, released + 1);
		wake_up_all(&hanging);
		return count;
	}
	error = kstrtou64_from_user(from, count, 10, &wanted);
	if (error)
		return error;
	while (taken < wanted) {
		struct page *page;

		if (fatal_signal_pending(current))
			return -EINTR;
		page = take();
		if (!page)
			return -ENOMEM;
		list_add(&page->lru, &holder->blocks);
		taken += PAGE_SIZE << page_private(page);
		WRITE_ONCE(holder->bytes, holder->bytes + (PAGE_SIZE << page_private(page)));
		cond_resched();
	}
	return count;
}

static const struct file_operations gpumem_file = {
	.owner = THIS_MODULE,
	.open = gpumem_open,
	.release = gpumem_release,
	.write = gpumem_write,
};

static struct miscdevice gpumem_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "gpumem",
	.fops = &gpumem_file,
	.mode = 0666,
};

static int gpumem_show(struct seq_file *seq, void *unused)
{
	struct holder *holder;

	seq_puts(seq, "devices = 0\nversion.driver = 580.126.09\nversion.nvml = 13.580.126.09\nversion.cuda = 13000\n"
		      "gpu.0.name = NVIDIA GB10\ngpu.0.uuid = GPU-5a3d1210-7c1e-4b02-9d8f-c0ffee001210\n"
		      "gpu.0.brand = 13\ngpu.0.architecture = 10\ngpu.0.cuda.major = 12\ngpu.0.cuda.minor = 1\n"
		      "gpu.0.pci.bus_id = 0000000F:01:00.0\ngpu.0.pci.device_id = 0x2E1210DE\n"
		      "gpu.0.persistence = 1\ngpu.0.virtualization_mode = 0\ngpu.0.addressing_mode = 2\n"
		      "gpu.0.c2c = 1\ngpu.0.mps = \ngpu.0.graphics = \ngpu.0.events.supported = 8\ngpu.0.compute =");
	mutex_lock(&lock);
	list_for_each_entry(holder, &holders, list)
		seq_printf(seq, " %d:%llu", holder->pid, READ_ONCE(holder->bytes));
	mutex_unlock(&lock);
	seq_putc(seq, '\n');
	return 0;
}

/* The folder of the driver of NVIDIA, by which programs know that there is one. */
static struct proc_dir_entry *folder;

static int __init gpumem_init(void)
{
	int error = misc_register(&gpumem_device);

	if (error)
		return error;
	if (!proc_create_single("gpumem", 0444, NULL, gpumem_show)) {
		misc_deregister(&gpumem_device);
		return -ENOMEM;
	}
	folder = proc_mkdir("driver/nvidia", NULL);
	return 0;
}

static void __exit gpumem_exit(void)
{
	proc_remove(folder);
	remove_proc_entry("gpumem", NULL);
	misc_deregister(&gpumem_device);
}

module_init(gpumem_init);
module_exit(gpumem_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Memory of a simulated GPU that is in no RSS and in no cgroup");
