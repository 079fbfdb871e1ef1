"""A broker whose limit of open files is low: connections must not use up the files that its logs need."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from ottla.child_process import child_environment
from tests.support.waiting import PATIENCE_S
from tests.support.wire.raw import RawConnection, Side, batch

FILES_MAX = 256


@contextlib.contextmanager
def broker_with_few_files(data: Path) -> Iterator[str]:
    """Yields its address."""
    serve = f"ulimit -n {FILES_MAX}; exec {sys.executable} -m ottla serve --listen 127.0.0.1:0 --data {data}"
    with (data.parent / "log").open("wb") as log:
        process = subprocess.Popen(
            ["/bin/sh", "-c", serve], stdout=subprocess.PIPE, stderr=log, env=child_environment(), text=True
        )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().removeprefix("ottla ready: ").strip()
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_S)


def test_connections_leave_enough_files_for_the_logs(tmp_path: Path) -> None:
    with broker_with_few_files(tmp_path / "data") as bootstrap, contextlib.ExitStack() as stack:
        early = Side("ottla", bootstrap, "early")
        stack.callback(early.close)
        for _ in range(FILES_MAX + 50):
            stack.enter_context(RawConnection(bootstrap))
        for number in range(20):
            early.create(f"t{number}", 2)
            answer = early.produce(batch(b"x"), topic=f"t{number}")
            assert answer["responses"][0]["partition_responses"][0]["error_code"] == 0
    log = (tmp_path / "log").read_text()
    assert "Too many open files" not in log, log[-2000:]
    assert "too many connections" in log
