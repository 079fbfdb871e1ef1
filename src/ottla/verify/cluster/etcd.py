"""OWNER of an etcd of three members on this machine, as the metadata store of a run. The user installs the program."""

import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from threading import Event
from typing import Self

from ottla.clock import monotonic
from ottla.errors import OttlaError
from ottla.verify.cluster.ports import free_ports

MEMBERS = 3
START_S = 60.0
STOP_S = 10.0


class LocalEtcd:
    """Runs for the length of a `with` block. `ports` are those for clients."""

    def __init__(self) -> None:
        program = shutil.which("etcd")
        if program is None:
            raise OttlaError(
                "etcd is not on the PATH",
                "install it (apt install etcd-server; in a checkout: ./run setup-extras, then ./run verify), "
                "or use --metadata sqlite",
            )
        self._home = Path(tempfile.mkdtemp(prefix="ottla-verify-etcd-"))
        ports = free_ports(2 * MEMBERS)
        self.ports, peers = ports[:MEMBERS], ports[MEMBERS:]
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        cluster = ",".join(f"m{n}=http://127.0.0.1:{port}" for n, port in enumerate(peers))
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            for n in range(MEMBERS):
                with open(self._home / f"m{n}.log", "wb") as log:
                    self._processes.append(
                        subprocess.Popen(
                            [
                                program,
                                f"--name=m{n}",
                                f"--data-dir={self._home}/m{n}",
                                f"--listen-client-urls={urls[n]}",
                                f"--advertise-client-urls={urls[n]}",
                                f"--listen-peer-urls={urls[MEMBERS + n]}",
                                f"--initial-advertise-peer-urls={urls[MEMBERS + n]}",
                                f"--initial-cluster={cluster}",
                                "--log-level=warn",
                            ],
                            stdin=subprocess.DEVNULL,
                            stdout=log,
                            stderr=log,
                            start_new_session=True,
                        )
                    )
            self._await_ready()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self._home, ignore_errors=True)

    def _await_ready(self) -> None:
        deadline = monotonic() + START_S
        for n, port in enumerate(self.ports):
            while not _is_healthy(port):
                if self._processes[n].poll() is not None or monotonic() > deadline:
                    log = (self._home / f"m{n}.log").read_text(errors="replace").strip().splitlines()
                    raise OttlaError(f"etcd member m{n} does not start", "; ".join(log[-3:]) or "see its log")
                Event().wait(0.1)


def _is_healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as answer:
            return b'"true"' in answer.read()
    except (urllib.error.URLError, OSError):
        return False
