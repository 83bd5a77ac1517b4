"""Readers of the past: one tier, notable ticks, the last words that an earlier run left on the disk."""
