"""Readings of this machine: its collectors run, and what they find becomes a snapshot."""
