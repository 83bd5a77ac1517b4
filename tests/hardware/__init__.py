"""Comparison of memwatchd with a real GPU, its driver and the vendor's tool: `make test-hardware`."""
