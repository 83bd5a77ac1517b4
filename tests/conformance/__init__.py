"""Conformance suite for monitors of memory: machines with their right figures, and a runner. See README.md."""
