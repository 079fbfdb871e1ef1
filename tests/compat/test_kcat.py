"""kcat (librdkafka 2.0) against both brokers."""

import json
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.clients import foreign_clients
from tests.support.waiting import PATIENCE_S

pytestmark = [
    pytest.mark.kcat,
    pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed (./run setup-extras)"),
]


def kcat(broker: Any, *arguments: str, stdin: bytes = b"") -> str:
    done = subprocess.run(
        ["kcat", "-q", "-b", broker.bootstrap, *arguments],
        input=stdin,
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def read_all(broker: Any, topic: str, *arguments: str) -> list[dict[str, Any]]:
    """From the beginning to the end, as kcat's JSON envelopes."""
    lines = kcat(broker, "-C", "-t", topic, "-o", "beginning", "-e", "-J", *arguments).splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture
def created(broker: Any, topic: str, await_leaders: Callable[..., None]) -> str:
    assert foreign_clients()[0].create_topic(broker.bootstrap, topic, partitions=2) == "ok"
    await_leaders(topic, 2)
    return topic


def test_lines_are_produced_and_consumed(broker: Any, created: str) -> None:
    kcat(broker, "-P", "-t", created, "-p", "1", "-K", ":", stdin=b"a:one\nb:two\nc:three\n")
    envelopes = read_all(broker, created, "-p", "1")
    assert [(e["offset"], e["key"], e["payload"]) for e in envelopes] == [
        (0, "a", "one"),
        (1, "b", "two"),
        (2, "c", "three"),
    ]
    assert all(e["partition"] == 1 and e["tstype"] == "create" for e in envelopes)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_each_codec(broker: Any, created: str, codec: str) -> None:
    lines = b"".join(b"line number %d\n" % i for i in range(500))
    kcat(broker, "-P", "-t", created, "-p", "0", "-z", codec, stdin=lines)
    assert kcat(broker, "-C", "-t", created, "-p", "0", "-e").encode() == lines


def test_headers_and_tombstones(broker: Any, created: str) -> None:
    target = ["-t", created, "-p", "0"]
    kcat(broker, "-P", *target, "-k", "k", "-H", "a=1", "-H", "b=two words", stdin=b"with headers")
    kcat(broker, "-P", *target, "-K", ":", "-Z", stdin=b"k:\n")
    with_headers, tombstone = read_all(broker, created, "-p", "0")
    assert with_headers["headers"] == ["a", "1", "b", "two words"]
    assert (tombstone["key"], tombstone["payload"]) == ("k", None)


def test_an_idempotent_producer(broker: Any, created: str) -> None:
    lines = b"".join(b"%d\n" % i for i in range(2000))
    kcat(broker, "-P", "-t", created, "-p", "0", "-X", "enable.idempotence=true", stdin=lines)
    assert kcat(broker, "-C", "-t", created, "-p", "0", "-e").encode() == lines


def test_metadata_shows_the_topic(broker: Any, created: str) -> None:
    metadata = json.loads(kcat(broker, "-L", "-J", "-t", created))
    assert len(metadata["brokers"]) == 1
    assert metadata["brokers"][0]["name"] == broker.bootstrap
    (topic,) = metadata["topics"]
    node = metadata["brokers"][0]["id"]
    assert topic["topic"] == created
    assert topic["partitions"] == [
        {"partition": p, "leader": node, "replicas": [{"id": node}], "isrs": [{"id": node}]} for p in (0, 1)
    ]


def test_offsets_by_time(broker: Any, created: str) -> None:
    kcat(broker, "-P", "-t", created, "-p", "0", stdin=b"a\nb\nc\n")
    assert kcat(broker, "-Q", "-t", f"{created}:0:-2", "-t", f"{created}:1:-1").splitlines() == [
        f"{created} [0] offset 0",
        f"{created} [1] offset 0",
    ]
    assert kcat(broker, "-Q", "-t", f"{created}:0:-1") == f"{created} [0] offset 3\n"
    assert kcat(broker, "-Q", "-t", f"{created}:0:1000000000000") == f"{created} [0] offset 0\n"
    assert kcat(broker, "-Q", "-t", f"{created}:0:9999999999999") == f"{created} [0] offset -1\n"


def test_only_the_last_records_are_read(broker: Any, created: str) -> None:
    kcat(broker, "-P", "-t", created, "-p", "0", stdin=b"".join(b"%d\n" % i for i in range(100)))
    assert kcat(broker, "-C", "-t", created, "-p", "0", "-o", "-3", "-e") == "97\n98\n99\n"
