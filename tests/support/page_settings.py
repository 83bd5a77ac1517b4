"""Check blocks of settings: whole or partial configuration files, with the secrets and certificates they name."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from support.certificates import authority, signed_by
from support.daemon_process import MEMWATCHD, run_program

TOKEN = "a-token-of-pages-0123456789abcdef"
WEBHOOK_SECRET = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
CERTIFICATE = re.compile(r'"(/[^"]+\.(?:pem|crt|key))"')
FILE, VARIABLE, CREDENTIAL = (re.compile(rf'"{kind}:([^"]+)"') for kind in ("file", "env", "credential"))


def check_settings(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run `memwatchd --check-config` on settings, with every file, variable and credential that they name."""
    credentials = folder / "credentials"
    credentials.mkdir()
    environ = {"CREDENTIALS_DIRECTORY": str(credentials)}
    certificates = set(CERTIFICATE.findall(text))
    if certificates:
        ca = authority(folder, "clients")
        signed = signed_by(ca, "tls")
        for path in certificates:
            real = (
                signed.key
                if path.endswith(".key")
                else ca.cert
                if "client" in path or "ca" in path
                else signed.cert
            )
            text = text.replace(f'"{path}"', f'"{real}"')
    for path in FILE.findall(text):
        real = folder / path.strip("/").replace("/", "-")
        real.write_text(secret_for(path))
        real.chmod(0o600)
        text = text.replace(f'"file:{path}"', f'"file:{real}"')
    for name in CREDENTIAL.findall(text):
        (credentials / name).write_text(secret_for(name))
    environ |= {name: secret_for(name) for name in VARIABLE.findall(text)}
    settings = folder / "memwatchd.toml"
    settings.write_text(text)
    settings.chmod(0o600)
    return run_program(MEMWATCHD, "--config", settings, "--check-config", **environ)


def secret_for(name: str) -> str:
    """Return a value that fits the name of a secret: a signing key, an Apprise URL, or a token."""
    word = name.lower()
    if "apprise" in word or "url" in word or "chat" in word or "ntfy" in word or "slack" in word:
        return "json://localhost/"
    return WEBHOOK_SECRET if "webhook" in word or "hook" in word else TOKEN
