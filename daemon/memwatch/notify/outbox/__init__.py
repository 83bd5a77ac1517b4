"""Messages on their way: what waits for whom, kept on disk until it has arrived. Knows SQLite and no network."""
