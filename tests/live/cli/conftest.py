"""Fixtures of the tests of the commands."""

from typing import Any

import pytest

from ottla.cli.main import main
from tests.support.command_line import Ran, Run


@pytest.fixture
def bootstrap(broker: Any) -> Any:
    """The address that commands find in OTTLA_BOOTSTRAP. Test modules with their own broker override it."""
    return broker.bootstrap


@pytest.fixture
def run(bootstrap: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs one command line in this process."""
    if bootstrap is not None:
        monkeypatch.setenv("OTTLA_BOOTSTRAP", bootstrap)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*words: str) -> Ran:
        capsys.readouterr()
        status = main(list(words))
        captured = capsys.readouterr()
        return Ran(status, captured.out, captured.err)

    return run
