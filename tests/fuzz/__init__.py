"""Coverage-guided fuzzing: a parser a file, whose `check` takes any bytes and fails where a promise is broken."""
