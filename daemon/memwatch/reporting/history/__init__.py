"""Readers of the past: one tier, notable ticks, the last words of an earlier run."""
