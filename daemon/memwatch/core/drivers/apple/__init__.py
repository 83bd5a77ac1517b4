"""Memory on macOS as reported by its tools: ioreg, vm_stat, sysctl, and Metal if installed."""
