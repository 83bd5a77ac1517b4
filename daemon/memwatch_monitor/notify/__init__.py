"""Delivering notifications: outbox, channels, retries."""
