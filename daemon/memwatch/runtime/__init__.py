"""Threads, back-off, limits."""
