"""Helpers of the tests: samples, simulated machines, receivers, waiting."""
