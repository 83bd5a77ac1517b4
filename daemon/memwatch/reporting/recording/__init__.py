"""Recordings: snapshots in a file, and their redaction."""
