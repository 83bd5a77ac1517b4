"""Readings of a machine: kernel files, drivers, collectors, accounting, and the records of a snapshot."""
