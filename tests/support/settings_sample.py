"""Settings from the text of a configuration file."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from memwatchd.settings.alerts import Webhook
from memwatchd.settings.load import SettingsError, load
from memwatchd.settings.schema import Settings

SECRET = "whsec_" + base64.b64encode(b"a secret of thirty-two bytes len").decode()
ALERTMANAGER = '[[alerts.alertmanagers]]\nname = "am"\nurl = "http://127.0.0.1:9093"\n'
WEBHOOK = f'[[alerts.webhooks]]\nname = "ops"\nurl = "https://example.com/hook/token"\nsecret = "{SECRET}"\n'


def settings_from(
    folder: Path, text: str = "", flags: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None
) -> Settings:
    file = folder / "memwatchd.toml"
    file.write_text(text, encoding="utf-8")
    file.chmod(0o600)
    return load({"config": str(file), **(flags or {})}, environ or {})


def webhooks_of(settings: Settings) -> list[Webhook]:
    return [one for one in settings.alerts.receivers if isinstance(one, Webhook)]


def problems_from(folder: Path, text: str = "", **sources: Any) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        settings_from(folder, text, **sources)
    return caught.value.problems
