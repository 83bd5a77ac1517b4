"""Settings: schema, sources (flags, environment, file) and error messages."""
