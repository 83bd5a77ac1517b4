"""Receive the ticks of other machines: one thread with one event loop for all of them."""
