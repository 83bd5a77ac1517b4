"""Alert rules and their state machine. Pure functions, no I/O."""
