"""What Linux's graphics drivers say of memory in files: cards in sysfs, clients in /proc/<pid>/fdinfo. Pure."""
