"""Rules of a run that need a child process to test."""

import multiprocessing
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.pipeline.definition.loading import load
from ottla.pipeline.definition.model import Pipeline
from ottla.pipeline.running.state import StateDirectory


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    path = tmp_path / "shop.yaml"
    path.write_text("source: orders\nsql: select 1\nsink: t\n")
    return load(path)


def test_a_driver_that_outlives_its_run_still_holds_the_lock(made: Pipeline) -> None:
    state = StateDirectory(made)
    with state.lock(made.name) as descriptor:
        child = subprocess.Popen(
            [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE, pass_fds=(descriptor,)
        )
    try:
        assert state.is_locked()
    finally:
        child.communicate()
    assert not state.is_locked()


def test_reading_a_pipeline_does_not_import_spark(made: Pipeline) -> None:
    """`ottla pipeline --help` and mistakes in YAML must not take a second."""
    code = (
        "import sys; from pathlib import Path; from ottla.pipeline.definition.loading import load;"
        f"load(Path({made.file!r})); import ottla.pipeline.running.supervisor, ottla.pipeline.running.status;"
        "sys.exit(any(name in sys.modules for name in ('pyspark', 'pyarrow', 'pandas')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert multiprocessing.active_children() == []
