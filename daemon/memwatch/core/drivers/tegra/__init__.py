"""NVIDIA Jetson and other Tegra boards: their kernel's files and `tegrastats`, as plain records."""
