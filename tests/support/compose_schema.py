"""Check of a Compose file by the JSON schema of the Compose specification."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

SCHEMA = "vendor.compose-spec"


def check_compose(file: Path) -> tuple[int, str]:
    """Return exit code and output of check-jsonschema, run in this process: its imports take 0.6 s."""
    from check_jsonschema import main  # type: ignore[import-untyped]  # it has no types

    done = CliRunner().invoke(main, ["--builtin-schema", SCHEMA, str(file)])
    return done.exit_code, done.output
