"""What macOS's own tools say of memory on an Apple machine: ioreg, vm_stat, sysctl, and Metal if it is there."""
