"""The client's side of SASL: a broker that breaks the exchange is an error that says what to check."""

import pytest

from ottla.errors import ConfigError
from ottla.security.sasl.client_exchanges import PlainExchange, SaslError, ScramExchange


def test_a_nul_character_in_a_password_is_a_mistake_in_the_settings() -> None:
    with pytest.raises(ConfigError, match="must not contain a NUL character") as caught:
        PlainExchange("alice", "se\0cret")
    assert caught.value.hint


@pytest.mark.parametrize(
    ("challenge", "message"),
    [
        (b"nonsense", "the broker sent an invalid message"),
        (b"r=other,s=c2FsdA==,i=4096", "the broker did not continue the nonce of this client"),
        (b"r=mine,s=c2FsdA==,i=4096", "the broker did not continue the nonce of this client"),
        (b"r=mine-and-more,s=c2FsdA==,i=1", "the broker requires 1 iterations"),
    ],
)
def test_a_broker_that_breaks_the_exchange_is_an_error_with_a_hint(challenge: bytes, message: str) -> None:
    exchange = ScramExchange("SCRAM-SHA-256", "alice", "secret", nonce="mine")
    with pytest.raises(SaslError, match=message) as caught:
        exchange.next(challenge)
    assert caught.value.hint
