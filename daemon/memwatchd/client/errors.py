"""What ends a command without an answer."""

EXIT_FAILURE = 1


class CommandError(Exception):
    """Why there is no answer, in a sentence for whoever asked, and the exit code that says so."""

    def __init__(self, why: str, code: int = EXIT_FAILURE) -> None:
        super().__init__(why)
        self.code = code
