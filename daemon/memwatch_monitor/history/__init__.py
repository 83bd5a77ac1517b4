"""History in memory and on disk."""
