"""TLS and SASL on the client's side: what is sent and when, re-authentication, and an error for every mistake."""

import asyncio
import itertools
import logging
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from ottla.errors import AuthenticationError, ConfigError, ErrorCode, KafkaError
from ottla.net.client.client_security import ClientSecurity, Login, plain_login, scram_login
from ottla.net.client.connection import Connection
from ottla.net.client.peers import DROPS_MAX, Peers
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.security.protocols import SecurityProtocol
from ottla.security.sasl.client_exchanges import ClientExchange, OauthBearerExchange
from ottla.security.tls import client_context, server_context
from ottla.testing.sim_loop import SimLoop
from ottla.testing.sim_network import SimNetwork
from ottla.types import Endpoint
from tests.support.certificates import Authority
from tests.support.wire.sasl_broker import SaslBroker

HERE = Endpoint("broker", 9092)
SCRAM = scram_login("SCRAM-SHA-512", "alice", "wonderland")


def metadata(version: int) -> MetadataRequest:
    return MetadataRequest(topics=None)


def secured(login: Login) -> ClientSecurity:
    return ClientSecurity(SecurityProtocol.SASL_PLAINTEXT, login=login)


def token_login(token: str) -> Login:
    async def start() -> ClientExchange:
        return OauthBearerExchange(token, {"traceId": "7"})

    return Login("OAUTHBEARER", "", start)


def simulate(story: Callable[[], Coroutine[Any, Any, None]], **options: Any) -> list[SaslBroker]:
    """Runs a story with one broker, and returns what accepted its connections."""
    loop = SimLoop(1)
    SimNetwork(loop)
    accepted: list[SaslBroker] = []

    def accept() -> SaslBroker:
        accepted.append(SaslBroker(**options))
        return accepted[-1]

    async def main() -> None:
        await loop.create_server(accept, HERE.host, HERE.port)
        await story()

    loop.run(main())
    return accepted


def refused(story: Callable[[], Coroutine[Any, Any, None]], **options: Any) -> AuthenticationError:
    with pytest.raises(AuthenticationError) as raised:
        simulate(story, **options)
    assert not raised.value.retriable
    return raised.value


def opening(login: Login) -> Callable[[], Coroutine[Any, Any, None]]:
    async def story() -> None:
        connection = await Connection.open(HERE, security=secured(login))
        assert (await connection.send(ApiKey.METADATA, metadata)).message.cluster_id.startswith("answer")

    return story


# --- SASL ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "login",
    [
        plain_login("alice", "wonderland"),
        scram_login("SCRAM-SHA-256", "alice", "wonderland"),
        SCRAM,
        token_login("token-1"),
    ],
    ids=str,
)
@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_client_authenticates_before_its_first_request(login: Login, version: int) -> None:
    (broker,) = simulate(opening(login), authenticate_version=version)
    names = [name for name, _ in broker.asked]
    assert names[:3] == ["ApiVersions", "SaslHandshake", "SaslAuthenticate"]
    assert broker.asked[-1] == ("Metadata", 1)


def test_a_name_with_the_separators_of_scram_is_escaped() -> None:
    login = scram_login("SCRAM-SHA-256", "a=b,c", "p,=w")
    (broker,) = simulate(opening(login), username="a=b,c", password="p,=w")
    assert broker.logins == 1


@pytest.mark.parametrize("login", [plain_login("alice", "rabbit"), scram_login("SCRAM-SHA-512", "alice", "rabbit")])
def test_a_wrong_password_is_reported_with_the_brokers_message_and_a_hint(login: Login) -> None:
    error = refused(opening(login))
    assert error.code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert f"broker:9092 rejected {login.mechanism} as alice: " in str(error)
    assert "nvalid" in error.detail
    assert "Check the user name and password" in error.hint
    assert "rabbit" not in str(error) + repr(error) + repr(login)


def test_a_rejected_token_is_reported_with_its_status() -> None:
    error = refused(opening(token_login("token-2")))
    assert "OAUTHBEARER: the token is not valid (status invalid_token)" in error.detail
    assert "token-2" not in str(error)


def test_an_unsupported_mechanism_is_reported_with_the_supported_ones() -> None:
    error = refused(opening(SCRAM), mechanisms=("PLAIN", "OAUTHBEARER"))
    assert error.code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert "does not offer SCRAM-SHA-512; it offers PLAIN, OAUTHBEARER" in error.detail


def test_sasl_on_a_listener_without_it_is_reported() -> None:
    error = refused(opening(SCRAM), is_open=True)
    assert error.code == ErrorCode.ILLEGAL_SASL_STATE
    assert "does not use SASL" in error.detail


def test_a_broker_that_cannot_prove_that_it_knows_the_user_is_not_trusted() -> None:
    error = refused(opening(SCRAM), lies=True)
    assert "could not prove" in error.detail
    assert "impostor" in error.hint


@pytest.mark.parametrize("iterations", [1, 4095, 1_000_001])
def test_a_broker_may_not_choose_iterations_that_give_the_password_away_or_take_forever(iterations: int) -> None:
    assert f"requires {iterations} iterations" in refused(opening(SCRAM), iterations=iterations).detail


def test_an_exchange_without_end_is_ended() -> None:
    class Endless:
        def first(self) -> bytes:
            return b"n,,\x01auth=Bearer no\x01\x01"

        def next(self, challenge: bytes) -> bytes | None:
            return self.first()

        def refusal(self) -> str:
            return ""

    async def start() -> ClientExchange:
        return Endless()

    assert "did not complete the exchange" in refused(opening(Login("OAUTHBEARER", "", start))).detail


def test_a_function_that_fails_to_provide_a_token_is_named() -> None:
    async def start() -> ClientExchange:
        raise ValueError("the vault is sealed")

    error = refused(opening(Login("OAUTHBEARER", "", start)))
    assert "ValueError: the vault is sealed" in error.detail
    assert "provides the token" in error.hint


def test_an_unsecured_client_learns_that_the_listener_requires_sasl() -> None:
    """The broker closes a connection without a login at its first request. The next connection asks why."""

    async def story() -> None:
        peers = Peers(client_id="me")
        peers.set_nodes({0: HERE})
        with pytest.raises(KafkaError) as first:
            await peers.send(0, ApiKey.METADATA, metadata)
        assert first.value.retriable
        with pytest.raises(AuthenticationError, match=r"requires SASL.*PLAIN.*Set security\.protocol"):
            await peers.send(0, ApiKey.METADATA, metadata)
        await peers.close()

    simulate(story)


def test_a_connection_that_a_plain_listener_closes_at_its_first_request_is_simply_opened_again() -> None:
    attempts = itertools.count()

    def answer_the_second(broker: SaslBroker, version: int, correlation_id: int) -> None:
        if next(attempts):
            broker.answer_metadata(version, correlation_id)
        else:
            broker.transport.close()

    async def story() -> None:
        peers = Peers(client_id="me")
        peers.set_nodes({0: HERE})
        with pytest.raises(KafkaError, match="the broker closed it"):
            await peers.send(0, ApiKey.METADATA, metadata)
        assert (await peers.send(0, ApiKey.METADATA, metadata)).message.cluster_id
        await peers.close()

    accepted = simulate(story, is_open=True, on_metadata=answer_the_second)
    assert [name for name, _ in accepted[1].asked] == ["ApiVersions", "SaslHandshake", "Metadata"]


# --- re-authentication (KIP-368) ---------------------------------------------------------------------------------


def test_a_session_is_renewed_before_it_ends_without_losing_or_reordering_requests() -> None:
    """Requests sent while the new login is under way are held, then sent in order."""
    answers: list[str] = []

    async def story() -> None:
        connection = await Connection.open(HERE, security=secured(SCRAM))
        futures = []
        for _ in range(4_000):
            futures.append(connection.send(ApiKey.METADATA, metadata))
            await asyncio.sleep(0.001)
        answers.extend([(await future).message.cluster_id for future in futures])

    (broker,) = simulate(story, lifetime_ms=1_000)
    assert len(answers) == 4_000
    assert [int(answer.split()[1]) for answer in answers] == sorted(int(answer.split()[1]) for answer in answers)
    assert broker.logins >= 4
    # While a login is under way, the broker sees nothing else.
    for (name, _), (following, _) in itertools.pairwise(broker.asked):
        if name == "SaslHandshake":
            assert following == "SaslAuthenticate"


def test_a_request_that_waits_at_the_broker_delays_the_new_login_and_is_answered() -> None:
    waiting: list[tuple[SaslBroker, int, int]] = []

    async def story() -> None:
        loop = asyncio.get_running_loop()
        connection = await Connection.open(HERE, security=secured(SCRAM))
        long_poll = connection.send(ApiKey.METADATA, metadata)
        await asyncio.sleep(0.97)  # the login should have begun, and waits for the long poll
        held = connection.send(ApiKey.METADATA, metadata)
        assert connection.in_flight == 2
        loop.call_later(1, lambda: waiting[0][0].answer_metadata(*waiting[0][1:]))
        await long_poll
        await asyncio.sleep(1)  # in simulated time: the login is complete by then
        waiting[1][0].answer_metadata(*waiting[1][1:])
        await held

    (broker,) = simulate(story, lifetime_ms=1_000, on_metadata=lambda *request: waiting.append(request))
    assert broker.asked[-1][0] == "Metadata"
    assert broker.asked[-1][1] == 2


def test_requests_that_were_held_fail_when_the_new_login_is_rejected() -> None:
    async def story() -> None:
        connection = await Connection.open(HERE, security=secured(SCRAM))
        accepted = connection.send(ApiKey.METADATA, metadata)
        await accepted
        change_password()
        await asyncio.sleep(0.97)
        with pytest.raises(AuthenticationError, match="rejected"):
            await connection.send(ApiKey.METADATA, metadata)
        assert connection.is_closed

    brokers: list[SaslBroker] = []

    def change_password() -> None:
        brokers[0].password = "looking-glass"

    def note(broker: SaslBroker, version: int, correlation_id: int) -> None:
        brokers.append(broker)
        broker.answer_metadata(version, correlation_id)

    simulate(story, lifetime_ms=1_000, on_metadata=note)


def test_a_new_login_waits_until_the_broker_reads_again() -> None:
    """The client is above a quota when its session should be renewed: the login would time out."""

    def demand_pause(broker: SaslBroker, version: int, correlation_id: int) -> None:
        throttle_ms = 3_000 if not pauses else 0
        pauses.append(asyncio.get_running_loop().time())
        broker.answer_metadata(version, correlation_id, throttle_ms)

    pauses: list[float] = []

    async def story() -> None:
        connection = await Connection.open(HERE, security=secured(SCRAM))
        await connection.send(ApiKey.METADATA, metadata)
        await asyncio.sleep(2)
        held = connection.send(ApiKey.METADATA, metadata)
        await held
        assert pauses[1] - pauses[0] >= 3

    (broker,) = simulate(story, lifetime_ms=1_000, on_metadata=demand_pause)
    asked = [name for name, _ in broker.asked]
    assert asked[-1] == "Metadata"
    assert asked[asked.index("Metadata") + 1] == "SaslHandshake"


def test_a_closed_connection_does_not_authenticate_again() -> None:
    async def story() -> None:
        connection = await Connection.open(HERE, security=secured(SCRAM))
        connection.close()
        await asyncio.sleep(5)

    (broker,) = simulate(story, lifetime_ms=1_000)
    assert broker.logins == 1


# --- TLS ----------------------------------------------------------------------------------------------------------

LOOPS = {"uvloop": uvloop.run, "asyncio": asyncio.run}
EMPTY = {"ssl.endpoint.identification.algorithm": ""}


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """uvloop and Python's own event loop report errors of TLS at different places."""
    return LOOPS[request.param]


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


class Stage:
    """A broker with TLS, and clients for it."""

    def __init__(self, authority: Authority, directory: Path, **issued: Any) -> None:
        self.trust = {"ssl.truststore.location": authority.write(directory / "ca.pem")}
        self.keystore = authority.issue(**issued).write(directory / "broker.pem")
        self.client_keystore = {"ssl.keystore.location": authority.issue("CN=alice").write(directory / "alice.pem")}
        self.server_settings: dict[str, str] = {}

    def context(self) -> ssl.SSLContext:
        return server_context({"ssl.keystore.location": self.keystore, **self.server_settings})

    async def open(self, settings: dict[str, str] | None, *, host: str = "localhost", plain: bool = False) -> str:
        """Connects and sends a request. `settings` of None are a client without TLS."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: SaslBroker(is_open=True), "127.0.0.1", 0, ssl=None if plain else self.context()
        )
        endpoint = Endpoint(host, server.sockets[0].getsockname()[1])
        security = None
        if settings is not None:
            security = ClientSecurity(SecurityProtocol.SSL, create_context=lambda: client_context(settings))
        try:
            connection = await Connection.open(endpoint, security=security, connect_timeout_ms=5_000)
            answer = await connection.send(ApiKey.METADATA, metadata)
            connection.close()
            await connection.wait_closed()
            return str(answer.message.cluster_id)
        finally:
            server.close()


@pytest.fixture
def stage(authority: Authority, tmp_path: Path) -> Stage:
    return Stage(authority, tmp_path)


def test_a_client_with_tls_verifies_the_broker(stage: Stage, run: Any) -> None:
    assert run(stage.open(stage.trust)) == "answer 1"


def test_a_client_may_skip_the_check_of_the_host_name(authority: Authority, tmp_path: Path, run: Any) -> None:
    stage = Stage(authority, tmp_path, hosts=("elsewhere",))
    with pytest.raises(AuthenticationError, match=r"localhost:\d+ is for another host .*endpoint.identification"):
        run(stage.open(stage.trust))
    assert run(stage.open(stage.trust | EMPTY)) == "answer 1"


def test_an_untrusted_authority_is_reported(stage: Stage, tmp_path: Path, run: Any) -> None:
    other = {"ssl.truststore.location": Authority("CN=other").write(tmp_path / "other.pem")}
    with pytest.raises(AuthenticationError, match=r"not signed by a CA that this client trusts.*ssl\.truststore"):
        run(stage.open(other))


def test_an_expired_certificate_is_reported(authority: Authority, tmp_path: Path, run: Any) -> None:
    stage = Stage(authority, tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.issue(days=(-3, -1)).write(tmp_path / "old.pem"))
    stage.context = lambda: context  # type: ignore[method-assign]
    with pytest.raises(AuthenticationError, match=r"has expired.*clock"):
        run(stage.open(stage.trust))


def test_a_plain_client_on_a_port_with_tls_is_reported(stage: Stage, run: Any) -> None:
    with pytest.raises(AuthenticationError, match=r"uses TLS, but this client does not.*security\.protocol to SSL"):
        run(stage.open(None))


def test_a_client_with_tls_on_a_plain_port_is_reported(stage: Stage, run: Any) -> None:
    with pytest.raises(AuthenticationError, match=r"does not use TLS.*security\.protocol to PLAINTEXT"):
        run(stage.open(stage.trust, plain=True))


@pytest.mark.parametrize("versions", ["TLSv1.2", "TLSv1.2,TLSv1.3"])
def test_a_missing_client_certificate_is_reported(stage: Stage, run: Any, versions: str) -> None:
    stage.server_settings = {"ssl.client.auth": "required", **stage.trust, "ssl.enabled.protocols": versions}
    with pytest.raises(KafkaError, match=r"closed the connection at the end of the TLS handshake.*client certificate"):
        run(stage.open(stage.trust))
    assert run(stage.open(stage.trust | stage.client_keystore)) == "answer 1"


def test_a_client_that_never_got_through_gives_up_after_a_few_dropped_handshakes(stage: Stage, run: Any) -> None:
    """A broker that stops drops handshakes too, so the first ones are retried."""
    stage.server_settings = {"ssl.client.auth": "required", **stage.trust}

    async def story() -> list[bool]:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: SaslBroker(is_open=True), "127.0.0.1", 0, ssl=stage.context())
        security = ClientSecurity(SecurityProtocol.SSL, create_context=lambda: client_context(stage.trust))
        peers = Peers(client_id="me", security=security)
        peers.set_nodes({0: Endpoint("localhost", server.sockets[0].getsockname()[1])})
        retriable = []
        for _ in range(DROPS_MAX):
            with pytest.raises(KafkaError) as raised:
                await peers.send(0, ApiKey.METADATA, metadata)
            retriable.append(raised.value.retriable)
        await peers.close()
        server.close()
        return retriable

    assert run(story()) == [True] * (DROPS_MAX - 1) + [False]


def test_tls_without_a_common_version_is_reported(stage: Stage, run: Any) -> None:
    stage.server_settings = {"ssl.enabled.protocols": "TLSv1.3"}
    with pytest.raises(KafkaError, match="TLS"):
        run(stage.open(stage.trust | {"ssl.enabled.protocols": "TLSv1.2"}))


def test_large_responses_arrive_over_tls(stage: Stage, run: Any) -> None:
    """The kernel is not told to wait for the rest of a frame: it counts encrypted bytes, some of which were read."""

    def large(broker: SaslBroker, version: int, correlation_id: int) -> None:
        broker.answer(ApiKey.METADATA, version, correlation_id, MetadataResponse(cluster_id="x" * 30_000))

    async def story() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: SaslBroker(is_open=True, on_metadata=large), "127.0.0.1", 0, ssl=stage.context()
        )
        security = ClientSecurity(SecurityProtocol.SSL, create_context=lambda: client_context(stage.trust))
        endpoint = Endpoint("localhost", server.sockets[0].getsockname()[1])
        connection = await Connection.open(endpoint, security=security)
        sent = [connection.send(ApiKey.METADATA, metadata) for _ in range(200)]
        for future in sent:
            assert len((await future).message.cluster_id) == 30_000
        connection.close()
        server.close()

    run(story())


def test_a_failed_login_is_logged_once_and_not_as_something_that_is_retried(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        peers = Peers(client_id="me", security=secured(plain_login("alice", "rabbit")))
        peers.set_nodes({0: HERE})
        for _ in range(3):
            with pytest.raises(AuthenticationError):
                await peers.send(0, ApiKey.METADATA, metadata)
        await peers.close()

    with caplog.at_level(logging.DEBUG):
        simulate(story)
    lines = [record.getMessage() for record in caplog.records if record.name == "ottla.net"]
    assert len(lines) == 1
    assert "rejected PLAIN as alice" in lines[0]
    assert "retrying" not in lines[0]
    assert "rabbit" not in lines[0]


@pytest.mark.parametrize("name", ["auth", "a b", "", "ü"])
def test_extensions_that_the_mechanism_cannot_carry_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="is not a valid SASL extension"):
        OauthBearerExchange("t", {name: "x"})
