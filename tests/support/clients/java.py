"""The Java client, through the co-process in tools/java: one JSON line out, one JSON line back."""

import base64
import json
import subprocess
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tests.support.clients import (
    MAX_REQUEST_BYTES,
    TIMEOUT_S,
    ClientError,
    ForeignClient,
    Found,
    Message,
    Received,
)
from tests.support.processes.oracle import class_path, extras_directory, java_missing


class JavaClient(ForeignClient):
    name = "java"
    offset_specs = frozenset({"earliest", "latest", "timestamp", "max_timestamp"})

    def __init__(self, *options: str) -> None:
        """`options` are those of the command java, such as -Dname=value."""
        self._options = options
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()

    def unavailable(self) -> str | None:
        if not (extras_directory() / "java" / "Driver.class").exists():
            return "the Java client is not there (./run setup-extras builds it)"
        return java_missing()

    def call(self, op: str, bootstrap: str, **arguments: object) -> Any:
        """One command of the driver; its error becomes ClientError under Kafka's name."""
        with self._lock:
            process = self._running()
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps({"op": op, "bootstrap": bootstrap, **arguments}) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"the Java client ended with status {process.wait(TIMEOUT_S)} during {op}")
        answer = json.loads(line)
        if "error" in answer:
            raise ClientError(answer["error"], answer.get("message", ""))
        return answer["result"]

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            # It ends by itself when its standard input closes, so it never outlives this process.
            self._process = subprocess.Popen(
                [
                    "java",
                    "-Xmx256m",
                    "-XX:+UseSerialGC",
                    "-XX:TieredStopAtLevel=1",
                    *self._options,
                    # Without a configuration log4j reports errors alone, on standard error.
                    "-cp",
                    f"{extras_directory() / 'java'}:{class_path()}",
                    "Driver",
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        return self._process

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            process.stdin.close()
            try:
                process.wait(TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(TIMEOUT_S)
            if process.stdout is not None:
                process.stdout.close()

    def produce(
        self,
        bootstrap: str,
        topic: str,
        messages: Sequence[Message],
        *,
        partition: int | None = 0,
        codec: str = "none",
        acks: str = "all",
        idempotent: bool = False,
        max_request_bytes: int = MAX_REQUEST_BYTES,
    ) -> list[int | str]:
        results = self.call(
            "produce",
            bootstrap,
            topic=topic,
            partition=partition,
            config={
                "acks": acks,
                "compression.type": codec,
                "enable.idempotence": idempotent,
                "max.request.size": max_request_bytes,
                "linger.ms": 5,
                "max.block.ms": int(TIMEOUT_S * 1000),
                "request.timeout.ms": int(TIMEOUT_S * 1000) - 5000,
                "delivery.timeout.ms": int(TIMEOUT_S * 1000),
            },
            records=[
                {
                    "key": _text(message.key),
                    "value": _text(message.value),
                    "timestamp": message.timestamp_ms,
                    "headers": [[name, _text(value)] for name, value in message.headers],
                }
                for message in messages
            ],
        )
        return [result["error"] if "error" in result else result["offset"] for result in results]

    def consume(self, bootstrap: str, topic: str, count: int, *, partition: int = 0, start: int = 0) -> list[Received]:
        records = self.call(
            "consume",
            bootstrap,
            topic=topic,
            partition=partition,
            start=start,
            count=count,
            timeout_ms=int(TIMEOUT_S * 1000),
            config={"auto.offset.reset": "none", "fetch.max.wait.ms": 100},
        )
        return [
            Received(
                record["offset"],
                record["timestamp"],
                _bytes(record["key"]),
                _bytes(record["value"]),
                tuple((name, _bytes(value)) for name, value in record["headers"]),
            )
            for record in records[:count]
        ]

    def _admin(self, op: str, bootstrap: str, **arguments: object) -> Any:
        timeouts = {
            "default.api.timeout.ms": int(TIMEOUT_S * 1000),
            "request.timeout.ms": int(TIMEOUT_S * 1000) - 5000,
        }
        return self.call(op, bootstrap, config=timeouts, **arguments)

    def create_topic(
        self, bootstrap: str, topic: str, *, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> str:
        wanted = {
            "name": topic,
            "partitions": partitions,
            "replication_factor": 1,
            "configs": dict(configs or {}),
        }
        return str(self._admin("create_topics", bootstrap, topics=[wanted])[topic])

    def delete_topic(self, bootstrap: str, topic: str) -> str:
        return str(self._admin("delete_topics", bootstrap, topics=[topic])[topic])

    def create_partitions(self, bootstrap: str, topic: str, count: int) -> str:
        return str(self._admin("create_partitions", bootstrap, partitions={topic: count})[topic])

    def partition_count(self, bootstrap: str, topic: str) -> int | str:
        described = self._admin("describe_topics", bootstrap, topics=[topic])[topic]
        return described["error"] if "error" in described else len(described["partitions"])

    def topics(self, bootstrap: str) -> set[str]:
        return set(self._admin("list_topics", bootstrap))

    def describe_config(self, bootstrap: str, topic: str) -> dict[str, tuple[str | None, bool]]:
        described = self._admin("describe_configs", bootstrap, type="TOPIC", name=topic)
        return {name: (entry["value"], entry["source"] == "DEFAULT_CONFIG") for name, entry in described.items()}

    def alter_config(self, bootstrap: str, topic: str, configs: Mapping[str, str]) -> str:
        operations = [["SET", name, value] for name, value in configs.items()]
        try:
            self._admin("alter_configs", bootstrap, type="TOPIC", name=topic, operations=operations)
        except ClientError as failure:
            return failure.name
        return "ok"

    def delete_records(self, bootstrap: str, topic: str, before: int, *, partition: int = 0) -> int:
        return int(self._admin("delete_records", bootstrap, topic=topic, partition=partition, before=before))

    def list_offsets(
        self, bootstrap: str, topic: str, specs: Iterable[str | int], *, partition: int = 0
    ) -> dict[str | int, Found]:
        asked = list(specs)
        answer = self._admin(
            "list_offsets",
            bootstrap,
            topic=topic,
            partition=partition,
            specs=[str(spec) for spec in asked],
        )
        found: dict[str | int, Found] = {}
        for spec in asked:
            result = answer[str(spec)]
            if "error" in result:
                raise ClientError(result["error"], result.get("message", ""))
            found[spec] = Found(result["offset"], result["timestamp"])
        return found


def _text(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
