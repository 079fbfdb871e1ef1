"""The server's side of each mechanism: who gets in, and what others can learn."""

import asyncio
import json

import pytest

from ottla.security.sasl.client_exchanges import OauthBearerExchange, PlainExchange, ScramExchange
from ottla.security.sasl.scram_math import (
    SCRAM_SHA_256,
    SCRAM_SHA_512,
    ClientFinal,
    ClientFirst,
    ScramCredential,
    ScramMechanism,
    ServerFirst,
    auth_message,
    client_proof,
    salted_password,
    to_base64,
)
from ottla.security.sasl.server_exchanges import (
    OauthBearerServer,
    Outcome,
    PlainServer,
    SaslFailure,
    ScramServer,
    Token,
)
from tests.support.wire.scram_credentials import new_credential

USERS = {"alice": "secret", "zoë": "geheim"}


def test_plain_accepts_the_right_password() -> None:
    for user, password in USERS.items():
        assert PlainServer(USERS).answer(PlainExchange(user, password).first()) == Outcome(b"", user)


@pytest.mark.parametrize(
    ("token", "error"),
    [
        (b"\0alice\0wrong", "Invalid username or password"),
        (b"\0nobody\0secret", "Invalid username or password"),
        (b"\0alice\0", "password not specified"),
        (b"\0\0secret", "username not specified"),
        (b"alice\0secret", "expected 3 tokens, got 2"),
        (b"bob\0alice\0secret", "authorization id that is different from username"),
        (b"\0alice\0\xff", "not UTF-8"),
        (b"", "expected 3 tokens"),
    ],
)
def test_plain_rejects_everything_else(token: bytes, error: str) -> None:
    with pytest.raises(SaslFailure, match=error):
        PlainServer(USERS).answer(token)


def find(mechanism: ScramMechanism, user: str) -> ScramCredential | None:
    password = USERS.get(user)
    return None if password is None else new_credential(mechanism, password, b"salt", 4096)


def server(mechanism: ScramMechanism) -> ScramServer:
    return ScramServer(mechanism, lambda user: find(mechanism, user), b"cluster secret")


@pytest.mark.parametrize("mechanism", [SCRAM_SHA_256, SCRAM_SHA_512])
def test_scram_proves_both_sides(mechanism: ScramMechanism) -> None:
    for user, password in USERS.items():
        here, there = server(mechanism), ScramExchange(mechanism.name, user, password)
        proof = there.next(here.answer(there.first()).challenge)
        assert proof is not None
        outcome = here.answer(proof)
        assert outcome.user == user
        assert there.next(outcome.challenge) is None, "the client accepts the server's signature"


@pytest.mark.parametrize(("user", "password"), [("alice", "wrong"), ("nobody", "secret")])
def test_a_scram_user_that_does_not_exist_looks_like_a_wrong_password(user: str, password: str) -> None:
    here, there = server(SCRAM_SHA_512), ScramExchange("SCRAM-SHA-512", user, password)
    challenge = here.answer(there.first()).challenge
    assert ServerFirst.parse(challenge).iterations == 4096
    proof = there.next(challenge)
    assert proof is not None
    with pytest.raises(SaslFailure, match=r"^Authentication failed during authentication due to invalid credentials"):
        here.answer(proof)


def test_a_user_that_does_not_exist_has_the_same_salt_on_every_broker() -> None:
    """Otherwise asking twice would tell who exists."""

    def salt(user: str) -> bytes:
        first = ScramExchange("SCRAM-SHA-256", user, "x").first()
        return ServerFirst.parse(server(SCRAM_SHA_256).answer(first).challenge).salt

    assert salt("nobody") == salt("nobody") != salt("somebody")


def test_scram_rejects_replies_to_other_challenges() -> None:
    here, there = server(SCRAM_SHA_256), ScramExchange("SCRAM-SHA-256", "alice", "secret")
    proof = there.next(server(SCRAM_SHA_256).answer(there.first()).challenge)
    assert proof is not None
    here.answer(there.first())
    with pytest.raises(SaslFailure, match="nonce"):
        here.answer(proof)


def test_old_versions_of_librdkafka_get_in() -> None:
    """Before 2.6.1 they repeat their part of the nonce in the final message; Kafka accepts that."""
    here = server(SCRAM_SHA_256)
    first = ClientFirst.create("alice", "abc")
    challenge = ServerFirst.parse(here.answer(first.encode()).challenge)
    without_proof = ClientFinal.text_without_proof("abc" + challenge.nonce)
    signed = auth_message(first.bare, challenge.text, without_proof)
    salted = salted_password(SCRAM_SHA_256, "secret", challenge.salt, challenge.iterations)
    proof = to_base64(client_proof(SCRAM_SHA_256, salted, signed))
    assert here.answer(f"{without_proof},p={proof}".encode()).user == "alice"


def test_the_final_message_repeats_the_header_of_the_first() -> None:
    here = server(SCRAM_SHA_256)
    first = ClientFirst.create("alice", "abc")
    challenge = ServerFirst.parse(here.answer(first.encode()).challenge)
    other = ClientFinal.text_without_proof(challenge.nonce, "y,,")
    with pytest.raises(SaslFailure, match="Invalid client nonce"):
        here.answer(f"{other},p=YQ==".encode())


@pytest.mark.parametrize(
    ("token", "error"),
    [
        (b"junk", "Invalid SCRAM client-first"),
        (b"n,a=bob,n=alice,r=x", "authorization id"),
        (b"n,,n=alice,r=x,tokenauth=true", "delegation tokens"),
    ],
)
def test_scram_rejects_malformed_and_foreign_messages(token: bytes, error: str) -> None:
    with pytest.raises(SaslFailure, match=error):
        server(SCRAM_SHA_256).answer(token)


async def verify(token: str) -> Token:
    if token != "good":
        raise SaslFailure("the token was rejected: Signature verification failed")
    return Token("alice", 1234)


def test_a_good_bearer_token_says_who_the_client_is() -> None:
    token = OauthBearerExchange("good", {"traceId": "12"}).first()
    assert asyncio.run(OauthBearerServer(verify).answer(token)) == Outcome(b"", "alice", 1234)


def test_a_bad_bearer_token_is_refused_in_two_steps() -> None:
    """The client gets the error as JSON; it acknowledges, and the exchange fails (RFC 7628)."""
    here, there = OauthBearerServer(verify), OauthBearerExchange("bad")
    outcome = asyncio.run(here.answer(there.first()))
    assert outcome.user is None
    assert json.loads(outcome.challenge) == {"status": "invalid_token"}
    acknowledgement = there.next(outcome.challenge)
    assert acknowledgement == b"\x01"
    with pytest.raises(SaslFailure, match="Signature verification failed"):
        asyncio.run(here.answer(acknowledgement))


@pytest.mark.parametrize(
    "token",
    [
        b"",
        b"\xff",
        b"n,,",
        b"n,,\x01auth=Bearer x\x01",
        b"y,,\x01auth=Bearer x\x01\x01",
        b"n,,\x01auth=Basic x\x01\x01",
    ],
)
def test_malformed_bearer_messages_are_rejected(token: bytes) -> None:
    with pytest.raises(SaslFailure, match="Invalid OAUTHBEARER client first message"):
        asyncio.run(OauthBearerServer(verify).answer(token))


def test_the_authorization_id_must_be_the_tokens_user() -> None:
    outcome = asyncio.run(OauthBearerServer(verify).answer(b"n,a=bob,\x01auth=Bearer good\x01\x01"))
    assert outcome.user is None
