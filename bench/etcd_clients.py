"""Two ways to talk to etcd, alternating: its JSON gateway, which Ottla uses, and gRPC with the library aetcd.

`.venv/bin/python -m bench.etcd_clients` starts three members of etcd. aetcd is included if it is installed
(`pip install aetcd`). Each measurement runs in a separate process, because it includes the import.
"""

import argparse
import asyncio
import base64
import importlib
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.util import find_spec
from typing import Any

from bench.process_memory import resident_bytes
from bench.wire import percentile
from tests.support.processes.etcd import EtcdCluster

COMMITS = 500
WARM_UP_S = 0.3
Commit = Callable[[bytes], Awaitable[Any]]


async def gateway(address: str) -> tuple[Commit, AsyncIterator[bytes]]:
    from ottla.metadata.etcd.client import EtcdClient
    from ottla.metadata.etcd.location import EtcdAccess, parse_location
    from ottla.metadata.etcd.transactions import encode, put, version_is

    client = EtcdClient(parse_location(f"etcd://{address}"), EtcdAccess())
    key = encode(b"/gateway")

    async def commit(value: bytes) -> None:
        body = {"compare": [version_is(encode(b"/none"), 0)], "success": [put(key, value)], "failure": []}
        await client.call("kv/txn", body, timeout_s=5, repeat=False)

    async def changes() -> AsyncIterator[bytes]:
        async for message in client.stream("watch", {"create_request": {"key": key}}, client.member):
            for event in message.get("events", []):
                yield base64.b64decode(event["kv"]["value"])

    return commit, changes()


async def grpc(address: str) -> tuple[Commit, AsyncIterator[bytes]]:
    aetcd: Any = importlib.import_module("aetcd")
    host, _, port = address.partition(":")
    client = aetcd.Client(host=host, port=int(port))
    await client.connect()

    async def commit(value: bytes) -> None:
        await client.transaction(
            compare=[client.transactions.version(b"/none") == 0],
            success=[client.transactions.put(b"/grpc", value)],
            failure=[],
        )

    async def changes() -> AsyncIterator[bytes]:
        async for event in await client.watch(b"/grpc"):
            yield event.kv.value

    return commit, changes()


CLIENTS = {"gateway": (gateway, "ottla.metadata.etcd.store"), "aetcd": (grpc, "aetcd")}


async def measure(name: str, address: str) -> str:
    commit, changes = await CLIENTS[name][0](address)
    arrived: asyncio.Queue[float] = asyncio.Queue()

    async def watch() -> None:
        async for _ in changes:
            arrived.put_nowait(time.perf_counter())

    watching = asyncio.create_task(watch())
    await asyncio.sleep(WARM_UP_S)
    taken, seen = [], []
    cpu = time.process_time()
    for number in range(COMMITS):
        started = time.perf_counter()
        await commit(b"%d" % number)
        taken.append(time.perf_counter() - started)
        seen.append(await arrived.get() - started)
    cpu = time.process_time() - cpu
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    return (
        f"commit p50 {percentile(taken, 0.5) * 1000:.2f} ms, p99 {percentile(taken, 0.99) * 1000:.2f} ms; "
        f"seen by a watch p50 {percentile(seen, 0.5) * 1000:.2f} ms; {cpu / COMMITS * 1e6:.0f} µs of CPU a commit"
    )


def run_one(name: str, address: str) -> None:
    before, cpu = resident_bytes(), time.process_time()
    importlib.import_module(CLIENTS[name][1])
    imported = f"import {(time.process_time() - cpu) * 1000:.0f} ms of CPU, +{(resident_bytes() - before) / 1e6:.1f} MB"
    print(f"{name:8} {imported}; {asyncio.run(measure(name, address))}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", nargs=2, metavar=("CLIENT", "ADDRESS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        run_one(*options.one)
        return
    names = [name for name, (_, module) in CLIENTS.items() if find_spec(module.partition(".")[0]) is not None]
    with EtcdCluster(members=3, heartbeat_ms=100, options=()) as etcd:
        for _ in range(options.rounds):
            for name in names:
                command = [sys.executable, "-m", "bench.etcd_clients", "--one", name, etcd.leader().address]
                subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
