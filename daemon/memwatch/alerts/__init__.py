"""Alert rules, their state machine, and silences. Pure functions, no I/O."""
