"""Simulated drivers, tools and frameworks, each at the boundary where a program meets the real one."""
