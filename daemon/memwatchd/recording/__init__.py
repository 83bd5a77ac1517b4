"""Recording of the served snapshots, and replay."""
