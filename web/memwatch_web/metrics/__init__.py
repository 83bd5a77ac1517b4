"""/metrics."""
