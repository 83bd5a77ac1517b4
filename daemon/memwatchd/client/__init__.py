"""The `memwatch` command: asks a daemon, here or elsewhere, and reads this machine itself where none answers."""
