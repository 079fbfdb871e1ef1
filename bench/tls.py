"""What TLS and SASL cost: throughput with confluent-kafka on an SSL and a SASL_SSL listener, handshakes and logins.

Both brokers have the same listeners, certificates (P-256) and users. A handshake is a full one, without resumption, on
a new connection. A login is one with SCRAM-SHA-512, without TLS; the rate includes the client's part, which derives
its key in 4,096 rounds, so the CPU time of the broker is more meaningful. Both run sequentially, from one client.
"""

import contextlib
import socket
import ssl
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench import throughput
from bench.brokers import Contender
from bench.results import Results
from ottla.protocol.api import ApiKey
from ottla.protocol.framing import decode_response, encode_request
from ottla.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from ottla.protocol.messages.sasl_handshake import SaslHandshakeRequest
from ottla.security.sasl.client_exchanges import ScramExchange
from tests.support.processes.oracle import PRODUCTION_JVM
from tests.support.processes.secure_oracle import ALICE, PASSWORDS, SecureKafka, SecureKafkaProcess
from tests.support.processes.secure_ottla import secure_ottla

SUITE = "tls"
MECHANISM = "SCRAM-SHA-512"
COUNTS = {100: 1_000_000, 1000: 400_000}
CONNECTIONS = 2_000
Secured = tuple[Contender, SecureKafka]


@contextlib.contextmanager
def ottla(directory: Path) -> Iterator[Secured]:
    with secure_ottla(directory) as running:
        yield Contender("ottla", running.shared.addresses["PLAINTEXT"], running.broker.pid), running.shared


@contextlib.contextmanager
def kafka(directory: Path) -> Iterator[Secured]:
    with SecureKafkaProcess(directory, jvm=PRODUCTION_JVM) as broker:
        shared = SecureKafka({**broker.addresses, "PLAINTEXT": broker.bootstrap}, directory, broker.pid)
        yield Contender("kafka", broker.bootstrap, broker.pid), shared


def run(names: list[str], results: Results, rounds: int, quick: bool, step: Any) -> None:
    """Each round measures every contender in every case. The first round is a warm-up and is not counted."""
    starts: dict[str, Callable[[Path], contextlib.AbstractContextManager[Secured]]] = {"ottla": ottla, "kafka": kafka}
    chosen = [name for name in names if name in starts]
    cases = [(listener, size) for listener in ("PLAINTEXT", "SSL", "SASL_SSL") for size in COUNTS]
    step(total=(rounds + 1) * (len(cases) + 2) * len(chosen))
    share = 10 if quick else 1
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ottla-bench-")))
        contenders = [stack.enter_context(starts[name](directory / name)) for name in chosen]
        for round_number in range(rounds + 1):
            turn = round_number % len(contenders)
            order = contenders[turn:] + contenders[:turn]
            for listener, size in cases:
                for contender, shared in order:
                    step(f"{contender.name}: {listener}, {size} B")
                    figures = throughput_of(contender, shared, listener, size, COUNTS[size] // share)
                    if round_number:
                        note(results, contender.name, f"{size} B, {listener}", figures)
            for what, connect in (("TLS handshakes", handshake), ("SCRAM logins", log_in)):
                for contender, shared in order:
                    step(f"{contender.name}: {what}")
                    rate, cpu = connections_of(contender, shared, connect, CONNECTIONS // share)
                    if round_number:
                        results.add(SUITE, what, "1/s", contender.name, rate, more_is_better=True)
                        results.add(SUITE, f"broker CPU, {what}", "µs each", contender.name, cpu)


def throughput_of(contender: Contender, shared: SecureKafka, listener: str, size: int, count: int) -> dict[str, float]:
    security: dict[str, str] = {}
    if listener != "PLAINTEXT":
        security = {"security.protocol": listener, "ssl.ca.location": str(shared.directory / "ca.pem")}
    if listener == "SASL_SSL":
        security |= {"sasl.mechanism": MECHANISM, "sasl.username": ALICE, "sasl.password": PASSWORDS[ALICE]}
    topic = f"tls-{listener}-{size}-{time.monotonic_ns()}"
    contender.create_topic(topic)
    address = shared.addresses[listener]
    cpu, started = contender.cpu_seconds(), time.perf_counter()
    throughput.produce(address, topic, size, "all", count, security)
    produced_s, produced_cpu = time.perf_counter() - started, contender.cpu_seconds() - cpu
    cpu = contender.cpu_seconds()
    consumed, consumed_s = throughput.consume(address, topic, count, security)
    consumed_cpu = contender.cpu_seconds() - cpu
    contender.delete_topic(topic)
    return {
        "produce": count / produced_s,
        "produce cpu": produced_cpu / count * 1e6,
        "consume": consumed / consumed_s,
        "consume cpu": consumed_cpu / consumed * 1e6,
    }


def note(results: Results, name: str, case: str, figures: dict[str, float]) -> None:
    for way in ("produce", "consume"):
        results.add(SUITE, f"{way} {case}", "records/s", name, figures[way], more_is_better=True)
        results.add(SUITE, f"broker CPU, {way} {case}", "µs/record", name, figures[f"{way} cpu"])


def connections_of(
    contender: Contender, shared: SecureKafka, connect: Callable[[SecureKafka, Any], None], count: int
) -> tuple[float, float]:
    """(connections per second, microseconds of the broker's CPU time for each), one after the other."""
    prepared: Any = ssl.create_default_context(cafile=str(shared.directory / "ca.pem")) if connect is handshake else {}
    connect(shared, prepared)
    cpu, started = contender.cpu_seconds(), time.perf_counter()
    for _ in range(count):
        connect(shared, prepared)
    seconds = time.perf_counter() - started
    return count / seconds, (contender.cpu_seconds() - cpu) / count * 1e6


def _dial(shared: SecureKafka, listener: str) -> socket.socket:
    host, _, port = shared.addresses[listener].rpartition(":")
    found = socket.create_connection((host, int(port)), timeout=30)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return found


def handshake(shared: SecureKafka, context: ssl.SSLContext) -> None:
    with _dial(shared, "SSL") as plain, context.wrap_socket(plain, server_hostname="localhost"):
        pass


def log_in(shared: SecureKafka, _: object) -> None:
    with _dial(shared, "SASL_PLAINTEXT") as connection, connection.makefile("rb") as stream:

        def ask(request: Any, version: int) -> Any:
            connection.sendall(encode_request(request.api_key, version, 1, "bench", request))
            (size,) = struct.unpack(">i", stream.read(4))
            answer = decode_response(ApiKey(request.api_key), version, stream.read(size))[1]
            assert not answer.error_code, answer
            return answer

        ask(SaslHandshakeRequest(mechanism=MECHANISM), 1)
        exchange = ScramExchange(MECHANISM, ALICE, PASSWORDS[ALICE])
        token: bytes | None = exchange.first()
        while token is not None:
            token = exchange.next(bytes(ask(SaslAuthenticateRequest(auth_bytes=token), 2).auth_bytes))
