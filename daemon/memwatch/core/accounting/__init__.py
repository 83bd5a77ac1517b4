"""Pools and shares from driver readings: one module per vendor, common rules in `relations`. Pure functions."""
