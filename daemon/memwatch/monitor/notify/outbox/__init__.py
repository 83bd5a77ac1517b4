"""Queued notifications, kept on disk until they are delivered. Uses SQLite and no network."""
