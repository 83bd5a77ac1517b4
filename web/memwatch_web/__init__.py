"""Faces: JSON, metrics, pages and webhooks, each a view of one Snapshot."""
