"""Recordings: snapshots as they were served, one JSON object a line, deflated; written, read, hidden and played."""
