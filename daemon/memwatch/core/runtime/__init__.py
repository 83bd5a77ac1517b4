"""Threads, backoff, descriptor limits, HTTP over Unix sockets, checks of paths and files."""
