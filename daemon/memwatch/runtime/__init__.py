"""Threads, backoff, descriptor limits, HTTP over Unix sockets."""
