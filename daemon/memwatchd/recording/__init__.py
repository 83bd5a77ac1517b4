"""Recordings: served snapshots as JSON lines in a gzip file. Recording, replay and redaction."""
