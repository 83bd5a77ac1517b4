"""Settings: what may be set, where it is set, and what is said about a mistake."""
