"""Words and answers that only a running daemon has."""
