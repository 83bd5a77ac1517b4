"""Alert rules, their state machine, silences. Pure rules."""
