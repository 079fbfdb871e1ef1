"""A real PostgreSQL for tests, in its own process and on a Unix socket."""

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ottla.clock import monotonic
from tests.support.waiting import PATIENCE_S, PAUSE_S


class NoPostgres(Exception):
    """PostgreSQL cannot be started; the message says what is missing."""


@contextlib.contextmanager
def postgres_server() -> Iterator[Path]:
    """Runs a server as user `ottla` without a password; yields the directory of its socket."""
    programs = find_programs()
    home = Path(tempfile.mkdtemp(prefix="ottla-postgres-"))
    user = _unprivileged(home)
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "HOME": str(home)}
    options: dict[str, Any] = {"cwd": home, "env": environment, **user}
    server = None
    try:
        initdb = [str(programs / "initdb"), "-D", str(home / "data"), "-U", "ottla", "-A", "trust", "-N", "-E", "UTF8"]
        subprocess.run(initdb, check=True, capture_output=True, **options)
        command = [
            str(programs / "postgres"),
            "-D",
            str(home / "data"),
            "-k",
            str(home),
            "-c",
            "listen_addresses=",
            "-F",
        ]
        with open(home / "log", "wb") as log:
            server = subprocess.Popen(command, stdout=log, stderr=log, **options)
        _wait_for(home, server)
        yield home
    finally:
        if server is not None:
            server.terminate()
            server.wait(PATIENCE_S)
        shutil.rmtree(home, ignore_errors=True)


def find_programs() -> Path:
    """The directory with initdb and postgres, wherever the distribution keeps it."""
    found = shutil.which("postgres")
    candidates = [Path(found).parent] if found else []
    candidates += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for place in candidates:
        if (place / "initdb").exists() and (place / "postgres").exists():
            return place
    raise NoPostgres("no PostgreSQL server is installed (Debian: apt install postgresql)")


def _unprivileged(home: Path) -> dict[str, Any]:
    """PostgreSQL refuses to run as root: another user runs it and owns the directory."""
    if os.getuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            account = pwd.getpwnam(name)
            os.chown(home, account.pw_uid, account.pw_gid)
            return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    raise NoPostgres("PostgreSQL does not run as root, and there is no other user")


def _wait_for(home: Path, server: "subprocess.Popen[Any]") -> None:
    try:
        import psycopg
    except ImportError:
        raise NoPostgres("psycopg is not installed") from None
    deadline = monotonic() + PATIENCE_S
    while True:
        try:
            psycopg.connect(f"host={home} user=ottla dbname=postgres").close()
            return
        except psycopg.OperationalError:
            assert server.poll() is None, "the server ended"
            assert monotonic() < deadline, "the server does not answer"
            time.sleep(PAUSE_S)
