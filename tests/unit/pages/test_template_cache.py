"""Compiled templates: those of a wheel, and the on-disk cache."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from jinja2 import Environment, FileSystemLoader, UndefinedError

from memwatch_web.pages.compiled_templates import TEMPLATES, CompiledTemplates, write_compiled
from memwatch_web.pages.template_environment import create_environment

FIRST, SECOND = "{% for n in (1, 2) %}{{ n }} of {{ word }} {% endfor %}", "only {{ word }}"


class Counting(Environment):
    """Environment that counts compilations."""

    compiled = 0

    def _generate(self, *arguments: Any, **more: Any) -> str:
        self.compiled += 1
        return super()._generate(*arguments, **more)


@pytest.fixture
def templates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "pycache_prefix", None)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    folder = tmp_path / "templates"
    folder.mkdir()
    (folder / "page.html").write_text(FIRST)
    return folder


def rendered(templates: Path) -> tuple[str, int]:
    """Render the page in a new environment; return it with the number of compilations."""
    environment = Counting(
        loader=FileSystemLoader(templates), bytecode_cache=CompiledTemplates(templates), optimized=False
    )
    return environment.get_template("page.html").render(word="GiB"), environment.compiled


def kept(templates: Path) -> list[Path]:
    return list((templates / "__pycache__").iterdir())


def test_second_start_compiles_nothing(templates: Path) -> None:
    assert rendered(templates) == ("1 of GiB 2 of GiB ", 1)
    assert rendered(templates) == ("1 of GiB 2 of GiB ", 0)


def test_changed_template_is_compiled_again(templates: Path) -> None:
    rendered(templates)
    (templates / "page.html").write_text(SECOND)

    assert rendered(templates) == ("only GiB", 1)
    assert rendered(templates) == ("only GiB", 0)


@pytest.mark.process
def test_process_that_writes_no_cache_compiles_once(tmp_path: Path) -> None:
    """As with PYTHONDONTWRITEBYTECODE or on a read-only image."""
    program = (
        "import jinja2, jinja2.environment as it; names = []; compile_ = it.Environment._parse\n"
        "def noted(*words): names.append(words[2]); return compile_(*words)\n"
        "it.Environment._parse = noted\n"
        "from memwatch_web.pages.renderer import Pages\n"
        "[Pages().docs() for _ in range(3)]\n"
        "print(len(names), len(set(names)))"
    )
    environ = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": str(tmp_path)}

    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True)

    parsed, different = map(int, done.stdout.split())
    assert parsed == different > 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("share", [0.0, 0.01, 0.1, 0.5, 0.99])
@pytest.mark.parametrize("tail", [b"", b"\xff" * 64])
def test_damaged_file_is_compiled_again(templates: Path, share: float, tail: bytes) -> None:
    rendered(templates)
    (file,) = kept(templates)
    whole = file.read_bytes()
    file.write_bytes(whole[: int(len(whole) * share)] + tail)

    assert rendered(templates)[0] == "1 of GiB 2 of GiB "
    assert rendered(templates)[0] == "1 of GiB 2 of GiB "


def test_another_jinja2_version_uses_separate_files(
    templates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The metadata of another release comes first on the path."""
    rendered(templates)
    installed = tmp_path / "site" / "jinja2-4.0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: jinja2\nVersion: 4.0\n")
    monkeypatch.syspath_prepend(installed.parent)

    assert rendered(templates)[1] == 1
    assert len(kept(templates)) == 2


def test_read_only_cache_compiles_everything(templates: Path) -> None:
    """A file takes the place of the folder, because root can write everywhere."""
    (templates / "__pycache__").write_text("")

    assert rendered(templates) == ("1 of GiB 2 of GiB ", 1)
    assert rendered(templates) == ("1 of GiB 2 of GiB ", 1)


def test_dont_write_bytecode_is_respected(templates: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    rendered(templates)

    assert not (templates / "__pycache__").exists()


def test_cache_respects_pycache_prefix(templates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "elsewhere"))
    rendered(templates)

    assert not (templates / "__pycache__").exists()
    assert [path for path in (tmp_path / "elsewhere").rglob("*") if path.is_file()]


def test_files_are_readable_by_other_users(templates: Path) -> None:
    """Root installs, the service runs as another user."""
    umask = os.umask(0o022)
    try:
        rendered(templates)
    finally:
        os.umask(umask)

    assert [path.stat().st_mode & 0o777 for path in kept(templates)] == [0o644]


def build(templates: Path) -> Path:
    compiled = templates / "compiled"
    compiled.mkdir()
    write_compiled(compiled, templates)
    return compiled


def test_template_of_a_build_is_not_compiled(templates: Path) -> None:
    """Nothing is cached: the service may not be able to write."""
    build(templates)

    assert rendered(templates) == ("1 of GiB 2 of GiB ", 0)
    assert not (templates / "__pycache__").exists()


def test_edited_template_of_a_build_is_compiled(templates: Path) -> None:
    build(templates)
    (templates / "page.html").write_text(SECOND)

    assert rendered(templates) == ("only GiB", 1)


def test_template_of_a_build_with_another_jinja2_is_compiled(templates: Path) -> None:
    (file,) = build(templates).iterdir()
    file.rename(file.with_name(file.name.replace(version("jinja2"), "3.0.0")))

    assert rendered(templates) == ("1 of GiB 2 of GiB ", 1)


def test_error_in_a_template_of_a_build_names_the_template(templates: Path) -> None:
    (templates / "page.html").write_text("\n\n{{ word.missing.part }}")
    build(templates)

    with pytest.raises(UndefinedError) as raised:
        rendered(templates)

    assert (templates / "page.html", 2) in {(one.path, one.lineno) for one in raised.traceback}


def test_build_compiles_as_a_daemon_does(tmp_path: Path) -> None:
    """The build knows no filter of ours, and their functions decide how some are called."""
    write_compiled(tmp_path)
    environment = create_environment()
    names = environment.list_templates(("html", "svg"))

    assert sorted(file.read_text() for file in tmp_path.iterdir()) == sorted(
        environment.compile((TEMPLATES / name).read_text(), name, raw=True) for name in names
    )
