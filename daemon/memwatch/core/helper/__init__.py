"""Helper processes: one request line, one response line, supervised and killed if they hang."""
