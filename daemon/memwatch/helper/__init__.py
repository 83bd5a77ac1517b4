"""Helper processes: supervised, asked a line, killed when they hang."""
