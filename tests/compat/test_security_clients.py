"""Clients of other projects on a secured Ottla: each way to log in, and their errors when something is wrong.

The default lane has one login and one wrong password for each client; the whole table is in the long lane, where
Apache Kafka gets the same mistakes and each client must answer with the same kind of error.
"""

import re
import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from ottla import Producer
from tests.support.clients import secured
from tests.support.clients.secured import CLIENTS, OK, Login, Outcome, attempt
from tests.support.processes.secure_oracle import ALICE, MECHANISMS, PASSWORDS, SecureKafka
from tests.support.processes.secure_ottla import SecureOttla, secure_ottla
from tests.support.waiting import PATIENCE_S, until

MARKS = {"java": [pytest.mark.java], "kcat": [pytest.mark.kcat]}
EACH_CLIENT = pytest.mark.parametrize("client", [pytest.param(name, marks=MARKS.get(name, [])) for name in CLIENTS])

LOGINS = [
    ("SSL", ""),
    ("MTLS", ""),
    *((listener, mechanism) for listener in ("SASL_PLAINTEXT", "SASL_SSL") for mechanism in MECHANISMS),
]

LOG_INTERVAL_S = 10
"""After this time the broker logs refusals again, if it had reached its limit."""
BAD_LOGIN = r"authentication of 127\.0\.0\.1:\d+ on listener SASL_SSL failed: "
BAD_CERTIFICATE = (
    r"TLS handshake failed: (the client does not (trust|accept) this broker's certificate"
    r"|the client says that this broker's certificate has expired|the client disconnected)"
)
# A client that was refused on one connection closes those that it has just begun.
HUNG_UP = "TLS handshake failed: the client disconnected"


class Mistake(NamedTuple):
    """A mistake in the settings of a client."""

    listener: str
    protocol: str
    log: str
    """What the broker logs."""
    kind: str
    others: tuple[tuple[str, str], ...] = ()
    """Clients that report something else, because the connection is just closed or they hide the reason."""
    later_log: str = ""
    """What else the broker may log, about clients that ignore its refusal."""
    mechanism: str = ""
    user: str = ALICE
    password: str = "wrong"
    authority: str = "ca.pem"
    certificate: str = ""


# aiokafka reads what the broker says after its part of the handshake as the end of the connection.
NO_ALERT = (("aiokafka", "connection"),)
# kafka-python often notices the end of the connection first.
END_FIRST = (("kafka-python", "authentication connection"),)
# The Java client retries until its timeout; some others name TLS as a possible reason.
GUESSES = (("librdkafka", "tls connection"), ("kafka-python", "tls connection"), ("kcat", "tls connection"))

MISTAKES = {
    "wrong password, PLAIN": Mistake("SASL_SSL", "SASL_SSL", BAD_LOGIN, "authentication", END_FIRST, mechanism="PLAIN"),
    "wrong password, SCRAM-SHA-256": Mistake(
        "SASL_SSL", "SASL_SSL", BAD_LOGIN, "authentication", END_FIRST, mechanism="SCRAM-SHA-256"
    ),
    "wrong password, SCRAM-SHA-512": Mistake(
        "SASL_SSL", "SASL_SSL", BAD_LOGIN, "authentication", END_FIRST, mechanism="SCRAM-SHA-512"
    ),
    # aiokafka does not read the broker's refusal of a token, and goes on as if it were logged in.
    "token of a thief": Mistake(
        "SASL_SSL",
        "SASL_SSL",
        BAD_LOGIN,
        "authentication",
        (*END_FIRST, *NO_ALERT),
        "before authentication",
        "OAUTHBEARER",
    ),
    "unknown user, PLAIN": Mistake(
        "SASL_SSL", "SASL_SSL", BAD_LOGIN, "authentication", END_FIRST, mechanism="PLAIN", user="nobody"
    ),
    "unknown user, SCRAM-SHA-512": Mistake(
        "SASL_SSL", "SASL_SSL", BAD_LOGIN, "authentication", END_FIRST, mechanism="SCRAM-SHA-512", user="nobody"
    ),
    "server's certificate is for another host": Mistake("ELSEWHERE", "SSL", BAD_CERTIFICATE, "tls"),
    "client does not trust the server's CA": Mistake("SSL", "SSL", BAD_CERTIFICATE, "tls", authority="another-ca.pem"),
    "server does not trust the client's CA": Mistake(
        "MTLS", "SSL", "the client's certificate was rejected", "tls", NO_ALERT, certificate="stranger.pem"
    ),
    "no client certificate": Mistake("MTLS", "SSL", "the client has no certificate", "tls", NO_ALERT),
    "plain client on a TLS port": Mistake("SSL", "PLAINTEXT", "the client does not use TLS", "connection", GUESSES),
    "TLS client on a plain port": Mistake("PLAINTEXT", "SSL", "the client uses TLS", "connection", GUESSES),
    "client without SASL": Mistake("SASL_PLAINTEXT", "PLAINTEXT", "requires SASL", "connection", GUESSES),
    "server's certificate has expired": Mistake("EXPIRED", "SSL", BAD_CERTIFICATE, "tls"),
}


@pytest.fixture(scope="module")
def secured_ottla(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureOttla]:
    with secure_ottla(tmp_path_factory.mktemp("security")) as running:
        yield running
        secured.java.close()


def login(ottla: SecureOttla, listener: str, mechanism: str) -> Login:
    directory = ottla.shared.directory
    return Login(
        ottla.shared.addresses[listener],
        "SSL" if listener == "MTLS" else listener,
        mechanism,
        ALICE,
        PASSWORDS[ALICE],
        ottla.token_url,
        ottla.provider.token(),
        str(directory / "ca.pem"),
        str(directory / "alice.pem") if listener == "MTLS" else "",
    )


def mistaken(where: SecureKafka, mistake: Mistake, token_url: str = "", token: str = "") -> Login:
    return Login(
        where.addresses[mistake.listener],
        mistake.protocol,
        mistake.mechanism,
        mistake.user,
        mistake.password,
        token_url,
        token,
        str(where.directory / mistake.authority),
        str(where.directory / mistake.certificate) if mistake.certificate else "",
    )


def refused(ottla: SecureOttla, client: str, name: str, topic: str) -> Outcome:
    """Makes the mistake: the client reports it, the broker logs the reason, and other clients are served."""
    mistake = MISTAKES[name]
    if mistake.listener == "EXPIRED":
        time.sleep(max(0.0, ottla.expires_at + 1 - time.monotonic()))
    log_size = len(ottla.broker.log)
    wrong = mistaken(ottla.shared, mistake, ottla.token_url, ottla.thief.token())
    outcome = attempt(client, wrong, topic)
    assert outcome.kind in dict(mistake.others).get(client, mistake.kind).split(), outcome
    assert mistake.password not in outcome.text.replace("wrong version", "")

    def lines() -> list[str]:
        # On a busy machine the watchdog reports that the broker did not get the CPU.
        new = ottla.broker.log[log_size:].splitlines()
        return [line for line in new if " leader " not in line and "the event loop was" not in line]

    def is_logged() -> bool:
        return any(re.search(mistake.log, line) for line in lines())

    if not until(is_logged, 2):
        # The broker logs only so many refusals at a time, and clients before this one may have tried many times.
        time.sleep(LOG_INTERVAL_S)
        attempt(client, wrong, topic)
        assert until(is_logged), lines()
    expected = "|".join(filter(None, (mistake.log, mistake.later_log, HUNG_UP)))
    for line in lines():
        assert re.search(expected, line), line
    with Producer({"bootstrap.servers": ottla.shared.addresses["PLAINTEXT"]}) as bystander:
        bystander.send("bystander", b"x").result(PATIENCE_S)
    return outcome


def skip_unless_possible(client: str, mechanism: str) -> None:
    if (client, mechanism) == ("kcat", "OAUTHBEARER"):
        pytest.skip("kcat of Debian is built without OAUTHBEARER's token endpoint")


@EACH_CLIENT
def test_a_client_logs_in_over_tls(secured_ottla: SecureOttla, client: str, topic: str) -> None:
    assert attempt(client, login(secured_ottla, "SASL_SSL", "SCRAM-SHA-512"), topic) == OK


@EACH_CLIENT
def test_a_wrong_password_is_reported_immediately_and_disturbs_nobody(
    secured_ottla: SecureOttla, client: str, topic: str
) -> None:
    refused(secured_ottla, client, "wrong password, SCRAM-SHA-512", topic)


@pytest.mark.long
@EACH_CLIENT
@pytest.mark.parametrize(("listener", "mechanism"), LOGINS)
def test_each_way_to_log_in(secured_ottla: SecureOttla, client: str, listener: str, mechanism: str, topic: str) -> None:
    skip_unless_possible(client, mechanism)
    assert attempt(client, login(secured_ottla, listener, mechanism), topic) == OK


@pytest.mark.long
@EACH_CLIENT
@pytest.mark.parametrize("name", MISTAKES)
def test_each_mistake(secured_ottla: SecureOttla, client: str, name: str, topic: str) -> None:
    skip_unless_possible(client, MISTAKES[name].mechanism)
    refused(secured_ottla, client, name, topic)


@pytest.mark.long
@pytest.mark.oracle
@EACH_CLIENT
@pytest.mark.parametrize("name", [name for name, each in MISTAKES.items() if each.mechanism != "OAUTHBEARER"])
def test_apache_kafka_lets_each_client_fail_with_the_same_kind_of_error(
    secure_kafka: SecureKafka, client: str, name: str, topic: str
) -> None:
    """The kinds that `test_each_mistake` expects of Ottla. Of its tokens, Apache Kafka would accept any."""
    mistake = MISTAKES[name]
    outcome = attempt(client, mistaken(secure_kafka, mistake), topic)
    assert outcome.kind in dict(mistake.others).get(client, mistake.kind).split(), outcome
