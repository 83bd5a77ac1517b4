"""Errors that end a command."""

EXIT_FAILURE = 1
# Of `memwatch check`, as Nagios defines it.
EXIT_UNKNOWN = 3


class CommandError(Exception):
    """Failure of a command: one sentence for the user, and the exit code."""

    def __init__(self, why: str, code: int = EXIT_FAILURE) -> None:
        super().__init__(why)
        self.code = code
