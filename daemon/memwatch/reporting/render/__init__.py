"""Snapshots as JSON, text and words. The only place that rounds."""
