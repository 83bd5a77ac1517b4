"""The shipped configuration file with every key enabled, and another value for each key."""

from __future__ import annotations

import re
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from memwatch.core.options import Bounds, KeyPath, Size, duration_text
from memwatchd.settings.toml import find_line, line_numbers
from memwatchd.settings.validation import key_at
from scripts.shipped_configuration import SHIPPED
from support.certificates import authority, signed_by
from support.settings_sample import SECRET

# Other values than in the shipped file, for keys whose type does not imply one.
OTHERS: dict[tuple[str, ...], str] = {
    ("web", "listen"): '["127.0.0.1:1"]',
    ("web", "hosts"): '["gpu2.example.com"]',
    ("web", "url"): '"https://gpu2.example.com/"',
    ("web", "auth", "bearer_token"): '"file:/etc/memwatchd/other-token"',
    ("web", "auth", "users", "prometheus"): '"$2y$10$bbcdefghijklmnopqrstuuj7m4XYqbm74SxoBcXyw8to0CQ061DVG"',
    ("web", "tls", "cert_file"): '"/etc/memwatchd/other.pem"',
    ("web", "tls", "key_file"): '"/etc/memwatchd/other.key"',
    ("web", "tls", "client_ca_file"): '"/etc/memwatchd/tls.pem"',
    ("state", "dir"): '"/etc/memwatchd/other"',
    ("replay", "file"): '"other.memwatch"',
    ("recording", "file"): '"other.memwatch"',
    ("systemd", "socket_dir"): '"/etc/memwatchd/run"',
    **{("guardian", name): '["unit:other.service"]' for name in ("prefer", "avoid", "never", "freeze")},
    ("guardian", "hook"): '["/usr/bin/other"]',
    ("guardian", "state_dir"): '"/etc/memwatchd/other"',
    ("sampling", "procfs"): '"/etc/memwatchd"',
    ("sampling", "sysfs"): '"/etc/memwatchd"',
    ("sampling", "rootfs"): '"/etc/memwatchd"',
    ("pressure", "targets", "ram", "limit"): '"21GiB"',
    ("pressure", "targets", "ram", "resident"): '"auto"',
    ("pressure", "targets", "ram", "min_available"): '"65GiB"',
    ("processes", "leak_least"): '"65MiB"',
    ("alerts", "instance"): '"gpu2.example.com:6360"',
    ("alerts", "job"): '"other"',
    ("alerts", "proxy"): '"http://proxy2.example.com:3128"',
    ("alerts", "listener_user"): '"other"',
    ("alerts", "webhooks", "operators", "listener_user"): '"other"',
    ("alerts", "alertmanagers", "alertmanager", "listener_user"): '"other"',
    ("alerts", "apprise", "chat", "listener_user"): '"other"',
    ("labels", "cluster"): '"east"',
    ("otlp", "endpoint"): '"https://otel.example.com:4318"',
    ("otlp", "ca_file"): '"/etc/memwatchd/other.pem"',
    ("otlp", "user"): '"other"',
    ("otlp", "headers", "authorization"): '"file:/etc/memwatchd/other-token"',
    ("neighbours", "spark-2", "name"): '"other"',
    ("neighbours", "spark-2", "url"): '"https://spark-3.example.com:6360"',
    ("neighbours", "spark-2", "token"): '"file:/etc/memwatchd/other-token"',
    ("neighbours", "spark-2", "user"): '"other"',
    ("neighbours", "spark-2", "ca_file"): '"/etc/memwatchd/other.pem"',
    ("neighbours", "spark-2", "cert_file"): '"/etc/memwatchd/other.pem"',
    ("neighbours", "spark-2", "key_file"): '"/etc/memwatchd/other.key"',
    ("alerts", "webhooks", "operators", "url"): '"https://example.com/other"',
    ("alerts", "webhooks", "operators", "secret"): '"whsec_' + "QUJD" * 11 + '"',
    ("alerts", "webhooks", "operators", "proxy"): '"none"',
    ("alerts", "alertmanagers", "alertmanager", "proxy"): '"http://proxy2.example.com:3128"',
    ("alerts", "alertmanagers", "alertmanager", "url"): '"http://127.0.0.1:9094"',
    ("alerts", "alertmanagers", "alertmanager", "user"): '"other"',
    ("alerts", "alertmanagers", "alertmanager", "secret"): '"file:/etc/memwatchd/other-token"',
    ("engines", "chat", "name"): '"other"',
    ("engines", "chat", "url"): '"http://127.0.0.1:8001"',
    ("engines", "chat", "token"): '"file:/etc/memwatchd/other-token"',
    ("engines", "chat", "user"): '"other"',
    ("alerts", "apprise", "chat", "url"): '"json://other/"',
    ("collectors", "containers", "socket"): '"unix:/run/podman/podman.sock"',
    ("collectors", "journal", "path"): '"/bin/sh"',
    ("collectors", "tegrastats", "path"): '"/usr/bin/tegrastats"',
    ("collectors", "amd_cli", "amd_smi"): '"/usr/bin/amd-smi"',
    ("collectors", "amd_cli", "rocm_smi"): '"/usr/bin/rocm-smi"',
}


def uncommented(text: str) -> str:
    """Enable every key: remove a # directly before a key or a table, without a space."""
    return re.sub(r"^#(?=[\[a-z])", "", text, flags=re.MULTILINE)


def full_text(folder: Path) -> str:
    """Return a file that sets every key; the files that it names are written into the folder."""
    for name, content in (
        ("webhook-secret", SECRET),
        ("apprise-url", "json://localhost/"),
        ("alertmanager-secret", "a password of tests"),
        ("token", "a-token-of-tests"),
        ("proxy-url", "http://user:a-password-of-tests@proxy.example.com:3128"),
        ("vllm-token", "a-token-of-tests"),
        ("spark-2", "a-token-of-a-neighbour"),
        ("otlp-authorization", "Bearer a-token-of-tests"),
        ("other-token", "another-token-of-tests"),
    ):
        (folder / name).write_text(content)
        (folder / name).chmod(0o600)
    signed_by(authority(folder, "clients"), "tls")
    for suffix in ("pem", "key"):
        shutil.copy(folder / f"tls.{suffix}", folder / f"other.{suffix}")
    return in_folder(uncommented(SHIPPED.read_text()), folder)


def in_folder(text: str, folder: Path) -> str:
    return text.replace("/etc/memwatchd", str(folder))


def with_other_value(text: str, path: tuple[str, ...], value: object, folder: Path) -> str:
    """Return the text with another value of one key. In a path, receivers and others have names."""
    place: KeyPath = path
    if path[0] == "alerts" and len(path) == 4:
        place = (*path[:2], 0, path[3])
    if path[0] in ("engines", "neighbours") and len(path) == 3:
        place = (path[0], 0, path[2])
    number = find_line(line_numbers(text), place)
    assert number is not None, path
    all_lines = text.split("\n")
    name = all_lines[number - 1].partition(" = ")[0]
    assert name == path[-1], path
    all_lines[number - 1] = f"{name} = {in_folder(other_value(path, value), folder)}"
    return "\n".join(all_lines)


def other_value(path: tuple[str, ...], value: Any) -> str:
    """Return a different value of a key, as written in the file."""
    if path in OTHERS:
        return OTHERS[path]
    if path[0] == "alerts" and len(path) == 4 and path[3] in ("name", "events", "targets"):
        return {"name": '"other"', "events": '["pressure.high"]', "targets": '["ram"]'}[path[3]]
    key, _ = key_at(path)
    assert key is not None, path
    if isinstance(value, bool):
        return str(not value).lower()
    if get_origin(key.kind) is Literal:
        return next(f'"{word}"' for word in get_args(key.kind) if word != value)
    if path[-1].endswith("_percent"):
        return f"{value + 1:g}"
    bounds = next(extra for extra in key.extras if isinstance(extra, Bounds))
    other = bounds.maximum if value == bounds.minimum else bounds.minimum
    if isinstance(other, timedelta):
        return f'"{duration_text(other)}"'
    return f'"{other.text}"' if isinstance(other, Size) else f"{other:g}"
