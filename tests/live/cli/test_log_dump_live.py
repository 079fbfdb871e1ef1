"""`ottla log dump` on the files of a running broker."""

from pathlib import Path
from typing import Any

import pytest

from ottla import Admin, Producer
from ottla.cli.main import main


def test_log_dump_reads_the_files_of_a_running_broker(
    broker: Any, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topic(topic, partitions=1)
        with Producer(bootstrap_servers=broker.bootstrap, compression_type="lz4") as producer:
            for i in range(10):
                producer.send(topic, f"value {i}", key="k")
        directories = admin.describe_log_dirs()
    directory = Path(directories[0].path) / f"{topic}-0"
    assert main(["log", "dump", str(directory / f"{0:020}.log"), "--records"]) == 0
    out = capsys.readouterr().out
    assert [line.split()[-1] for line in out.splitlines() if line.startswith("  ")] == [str(i) for i in range(10)]
    assert main(["log", "dump", str(directory)]) == 0
