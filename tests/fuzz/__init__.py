"""Coverage-guided fuzzing: one module per parser, whose `check` accepts any bytes and fails on a broken promise."""
