"""`ottla cluster wait-in-sync`: returns when replicas are in sync, for hooks of a rolling restart."""

import json
import time
import urllib.error
import urllib.request
from typing import Annotated, Any

import typer

from ottla.cli.cluster.state import ClusterState
from ottla.cli.cluster.watch import API_TIMEOUT_MS, summary, watch_until
from ottla.cli.output import CommandError, plural
from ottla.cli.session import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, check_reachable, client_settings
from ottla.client.blocking import Admin
from ottla.client.core.model import PartitionDescription
from ottla.clock import monotonic
from ottla.errors import OttlaError
from ottla.types import TopicPartition, others_needed_in_sync

SHOWN = 5
"""The most partitions that the error lists."""


def wait_in_sync(
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=0, help="Fail with exit status 1 after this time.")
    ] = 60.0,
    before_stopping: Annotated[
        int | None,
        typer.Option(
            "--before-stopping",
            metavar="BROKER",
            min=0,
            help="Wait only until every partition stays available without this broker.",
        ),
    ] = None,
    endpoint: Annotated[
        str | None,
        typer.Option(
            "--endpoint",
            metavar="URL",
            help="Query the broker that you want to stop, at its --metrics address. Needs no Kafka client settings.",
        ),
    ] = None,
    interval: Annotated[
        float, typer.Option("--interval", "-i", metavar="SECONDS", min=0.1, help="Time between two checks.")
    ] = 1.0,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Wait until all replicas are in sync and no partition is being moved.

    With --before-stopping or --endpoint, other brokers may be down: each
    partition of this broker must keep min.insync.replicas in-sync replicas
    without it, or all others if it has fewer. Partitions with one replica are
    ignored. Exit status: 0 in sync, 1 timeout or no answer, 2 wrong options.

    \b
    Examples:
      ottla cluster wait-in-sync
      ottla cluster wait-in-sync --before-stopping 2 --timeout 120
      ottla cluster wait-in-sync --endpoint http://127.0.0.1:9308   # in a hook
      ottla cluster wait-in-sync --json --bootstrap broker-1:9092
    """
    if endpoint is not None:
        if before_stopping is not None:
            raise OttlaError(
                "--endpoint cannot be combined with --before-stopping", "the endpoint answers for its own broker"
            )
        _ask_endpoint(endpoint, timeout, interval, as_json)
        return
    check_reachable(bootstrap)
    with Admin(client_settings(bootstrap) | {"default.api.timeout.ms": str(API_TIMEOUT_MS)}) as admin:
        minimums = Minimums(admin)
        needed: list[TopicPartition] = []
        last: ClusterState | None = None

        def is_done(state: ClusterState) -> bool:
            nonlocal needed, last
            last = state
            if before_stopping is None:
                return state.is_healthy and not state.down
            if before_stopping not in {*state.running, *state.down}:
                raise OttlaError(f"there is no broker {before_stopping}", f"{_known(state)}; see: ottla cluster")
            needed = needed_by(state, before_stopping, minimums)
            return not needed

        if watch_until(admin, is_done, interval=interval, as_json=as_json, timeout=timeout):
            return
        if needed:
            names = ", ".join(map(str, needed[:SHOWN])) + (", …" if len(needed) > SHOWN else "")
            what = f"{plural(len(needed), 'partition')} would be unavailable without broker {before_stopping}: {names}"
        else:
            what = "not in sync: " + (summary(last) if last is not None else "the cluster does not answer")
        raise CommandError(f"timed out after {timeout:g} s: {what}", "see: ottla cluster watch")


def _ask_endpoint(endpoint: str, timeout: float, interval: float, as_json: bool) -> None:
    url = endpoint.rstrip("/") + "/safe-to-stop"
    if not url.startswith(("http://", "https://")):
        raise OttlaError(f"--endpoint {endpoint} is not a URL", "write http://HOST:PORT, as in http://127.0.0.1:9308")
    deadline, last = monotonic() + timeout, ""
    while True:
        answer = _get(url)
        line = json.dumps(answer) if as_json else "; ".join(answer["reasons"]) or "safe to stop"
        if line != last:
            last = line
            print(line, flush=True)
        if answer["ok"]:
            return
        if monotonic() >= deadline:
            raise CommandError(
                f"timed out after {timeout:g} s: {'; '.join(answer['reasons'])}", "see: ottla cluster watch"
            )
        time.sleep(max(0.0, min(interval, deadline - monotonic())))


def _get(url: str) -> dict[str, Any]:
    try:
        try:
            with urllib.request.urlopen(url, timeout=API_TIMEOUT_MS / 1000) as response:
                body = response.read()
        except urllib.error.HTTPError as error:  # 503 is an answer too
            body = error.read()
        answer = json.loads(body)
        if not isinstance(answer, dict) or not isinstance(answer.get("reasons"), list):
            raise ValueError("the response is not from a broker")
        return answer
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise CommandError(f"cannot query {url}: {reason}", "is the broker running with --metrics HOST:PORT?") from None


class Minimums:
    """min.insync.replicas by topic. Looked up once per topic, and only if one of its replicas is out of sync."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._found: dict[str, int] = {}

    def __getitem__(self, topic: str) -> int:
        if topic not in self._found:
            entries = self._admin.describe_configs("topic", topic, names=["min.insync.replicas"])
            values = [entry.value for entry in entries if entry.name == "min.insync.replicas"]
            self._found[topic] = int(values[0]) if values and values[0] else 1
        return self._found[topic]


def needed_by(state: ClusterState, broker: int, minimums: Minimums) -> list[TopicPartition]:
    """The partitions that need this broker until other replicas are in sync."""

    def is_harmed(partition: TopicPartition, p: PartitionDescription) -> bool:
        if broker not in p.replicas:
            return False
        others = sum(member != broker and member in state.running for member in p.in_sync_replicas)
        # All others are in sync: there is nothing to wait for, and no need to look up the minimum.
        if others == len(p.replicas) - 1:
            return False
        return others < others_needed_in_sync(len(p.replicas), minimums[partition.topic])

    return [partition for partition, p in state.partitions() if is_harmed(partition, p)]


def _known(state: ClusterState) -> str:
    return "the brokers are " + ", ".join(str(each) for each in sorted({*state.running, *state.down}))
