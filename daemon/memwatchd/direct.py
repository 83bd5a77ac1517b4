"""Direct reading for the command `memwatch`, with the settings of a daemon. `memwatch.cli.local` loads it."""

from __future__ import annotations

import os

from memwatch.cli.http import CommandError
from memwatch.core.reading.machine import DirectReading
from memwatch.monitor.recording.file_format import RecordingError
from memwatchd import wiring
from memwatchd.settings.load import SettingsError, load


def load_reading() -> DirectReading:
    """Load the settings from /etc/memwatchd/memwatchd.toml and the environment."""
    try:
        return wiring.build_direct_reading(load({}, os.environ))
    except SettingsError as error:
        raise CommandError(f"invalid memwatchd settings: {error}") from None
    except RecordingError as error:
        raise CommandError(str(error)) from None
