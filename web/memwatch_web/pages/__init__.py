"""The dashboard pages."""
