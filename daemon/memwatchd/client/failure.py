"""What ends a command with exit code 1."""


class Failure(Exception):
    """Why there is no answer, in a sentence for whoever asked."""
