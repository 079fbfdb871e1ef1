"""`ottla verify --metadata etcd` on a machine without etcd."""

from pathlib import Path

import pytest

from ottla.cli.main import main


def test_a_run_on_etcd_without_etcd_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["verify", "--cluster", "local:3", "--metadata", "etcd"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "etcd is not on the PATH" in said
    assert "apt install etcd-server" in said
    assert "./run setup-extras" in said
