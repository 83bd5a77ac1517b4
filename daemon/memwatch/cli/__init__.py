"""The `memwatch` command: client of a local or remote daemon; reads this machine directly if none is running."""
