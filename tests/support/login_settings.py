"""Configuration with a login, and the headers that it accepts."""

from __future__ import annotations

import base64
from pathlib import Path

import bcrypt

TOKEN = "0123456789abcdef0123456789abcdef"
PASSWORD = "correct horse"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def login_config(folder: Path) -> str:
    token = folder / "token"
    token.write_text(TOKEN + "\n")
    token.chmod(0o600)
    hashed = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(5)).decode()
    return f'[web.auth]\nbearer_token = "file:{token}"\n[web.auth.users]\nada = "{hashed}"\n'
