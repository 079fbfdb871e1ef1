"""SCRAM's keys, proofs and messages, with the examples of the RFCs."""

import pytest

from ottla.security.sasl.scram_math import (
    SCRAM_SHA_256,
    SCRAM_SHA_512,
    ClientFinal,
    ClientFirst,
    ScramCredential,
    ScramError,
    ScramMechanism,
    ServerFinal,
    ServerFirst,
    auth_message,
    client_proof,
    from_base64,
    is_proof_of,
    salted_password,
    server_signature,
    to_base64,
)
from tests.support.wire.scram_credentials import new_credential

NONCE = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
CLIENT_FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = f"r={NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
CLIENT_FINAL = f"c=biws,r={NONCE},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=".encode()
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def signed() -> bytes:
    return auth_message(
        ClientFirst.parse(CLIENT_FIRST).bare,
        ServerFirst.parse(SERVER_FIRST).text,
        ClientFinal.parse(CLIENT_FINAL).without_proof,
    )


def test_the_exchange_of_RFC_7677() -> None:
    server_first = ServerFirst.parse(SERVER_FIRST)
    salted = salted_password(SCRAM_SHA_256, "pencil", server_first.salt, server_first.iterations)
    credential = ScramCredential.from_salted_password(SCRAM_SHA_256, salted, server_first.salt, 4096)
    proof = client_proof(SCRAM_SHA_256, salted, signed())
    assert proof == ClientFinal.parse(CLIENT_FINAL).proof
    assert is_proof_of(SCRAM_SHA_256, credential.stored_key, signed(), proof)
    signature = server_signature(SCRAM_SHA_256, credential.server_key, signed())
    assert ServerFinal(signature).encode() == SERVER_FINAL
    assert ServerFinal.parse(SERVER_FINAL).signature == signature


def test_messages_are_written_as_they_are_read() -> None:
    assert ClientFirst.create("user", "rOprNGfwEbeRWgbNEkqO").encode() == CLIENT_FIRST
    assert ServerFirst.create(NONCE, from_base64("W22ZaJ0SNY7soEsUEjb6gQ=="), 4096).text.encode() == SERVER_FIRST
    assert CLIENT_FINAL.decode().startswith(ClientFinal.text_without_proof(NONCE) + ",p=")


@pytest.mark.parametrize("mechanism", [SCRAM_SHA_256, SCRAM_SHA_512])
def test_only_the_right_password_proves_itself(mechanism: ScramMechanism) -> None:
    credential = new_credential(mechanism, "pencil", b"salt", 4096)
    for password, is_right in (("pencil", True), ("Pencil", False), ("", False)):
        proof = client_proof(mechanism, salted_password(mechanism, password, b"salt", 4096), b"message")
        assert is_proof_of(mechanism, credential.stored_key, b"message", proof) is is_right
        assert not is_proof_of(mechanism, credential.stored_key, b"another message", proof)
        assert not is_proof_of(mechanism, credential.stored_key, b"message", proof[:-1])


def test_names_may_contain_the_separators_of_messages() -> None:
    first = ClientFirst.create("a=b,c", "xyz")
    assert first.bare == "n=a=3Db=2Cc,r=xyz"
    assert ClientFirst.parse(first.encode()).name == "a=b,c"


def test_the_first_message_may_have_an_authorization_id_and_extensions() -> None:
    first = ClientFirst.parse(b"n,a=bob,n=alice,r=xyz,tokenauth=true")
    assert (first.name, first.authorization_id, first.header) == ("alice", "bob", "n,a=bob,")
    assert first.extensions == {"tokenauth": "true"}
    assert first.bare == "n=alice,r=xyz,tokenauth=true"


@pytest.mark.parametrize(
    "message",
    [b"", b"n,,", b"n,,n=,r=x", b"n,,n=a", b"y,,n=a,r=x", b"n,,n=a,r=", b"n,,n=a=b,r=x", b"\xff", b"n,,n=a,r=x\n"],
)
def test_malformed_first_messages_are_rejected(message: bytes) -> None:
    with pytest.raises(ScramError):
        ClientFirst.parse(message)


@pytest.mark.parametrize("message", [b"", b"c=biws,r=x", b"c=b,r=x,p=", b"c=biws,r=x,p=!", b"c=biws,r=x,p=abc"])
def test_malformed_final_messages_are_rejected(message: bytes) -> None:
    with pytest.raises(ScramError):
        ClientFinal.parse(message)


def test_a_failed_exchange_ends_with_an_error() -> None:
    assert ServerFinal.parse(b"e=invalid-proof") == (b"", "invalid-proof")


def test_a_credential_is_stored_in_kafkas_text_form() -> None:
    credential = new_credential(SCRAM_SHA_512, "secret", b"salt", 8192)
    text = credential.to_text()
    assert text.startswith(f"salt={to_base64(b'salt')},stored_key=")
    assert text.endswith(",iterations=8192")
    assert ScramCredential.from_text(text) == credential


@pytest.mark.parametrize("text", ["", "salt=,stored_key=x", "salt=YQ==,stored_key=YQ==,server_key=YQ==,iterations=x"])
def test_a_damaged_credential_is_an_error(text: str) -> None:
    with pytest.raises(ScramError):
        ScramCredential.from_text(text)
