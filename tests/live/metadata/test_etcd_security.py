"""etcd behind TLS and passwords: what is checked, what is refused, and that secrets appear nowhere."""

import asyncio
import base64
import logging
import ssl
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from ottla.errors import OttlaError
from ottla.metadata.etcd.location import EtcdAccess, parse_location
from ottla.metadata.etcd.store import EtcdStore
from ottla.metadata.store import Create, Set
from tests.support.certificates import Authority
from tests.support.processes.etcd import EtcdCluster
from tests.support.waiting import PATIENCE_S, slowness, stretched

PASSWORD = "correct-horse-hunter2"


def text(name: str) -> str:
    return base64.b64encode(name.encode()).decode()


async def commit_once(store: EtcdStore) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await store.start()
        try:
            await store.commit([Create("/a", b"1", ephemeral=True)])
            assert (await store.get("/a")) is not None
        finally:
            await store.close()


def test_etcd_with_tls_is_checked_and_checks_the_broker(
    etcd_program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.metadata.etcd.store.FIRST_START_S", 0.0)
    authority, stranger = Authority(), Authority("CN=Stranger")
    ca = authority.write(tmp_path / "ca.pem")
    server, broker = authority.issue(), authority.issue("CN=broker")
    (tmp_path / "server.key").write_text(server.key_pem())
    (tmp_path / "server.pem").write_text(server.certificate_pem)
    (tmp_path / "broker.key").write_text(broker.key_pem())
    (tmp_path / "broker.pem").write_text(broker.certificate_pem)
    own = ssl.create_default_context(cafile=ca)
    own.load_cert_chain(str(tmp_path / "broker.pem"), str(tmp_path / "broker.key"))
    options = [
        "--unsafe-no-fsync",
        f"--cert-file={tmp_path / 'server.pem'}",
        f"--key-file={tmp_path / 'server.key'}",
        f"--trusted-ca-file={ca}",
        "--client-cert-auth",
    ]
    with EtcdCluster(options=options, scheme="https", tls=own) as etcd:
        assert etcd.url("/tls").startswith("etcds://")
        location = parse_location(etcd.url("/tls"))
        certificate = {
            "certificate_file": str(tmp_path / "broker.pem"),
            "key_file": str(tmp_path / "broker.key"),
        }
        asyncio.run(commit_once(EtcdStore(location, EtcdAccess(ca, **certificate))))
        wrong: list[tuple[EtcdAccess, str]] = [
            (EtcdAccess(ca), "cannot use etcd"),  # without a certificate of its own
            (EtcdAccess(stranger.write(tmp_path / "other.pem"), **certificate), "certificate verify failed"),
        ]
        for access, message in wrong:
            with pytest.raises(OttlaError, match=message):
                asyncio.run(commit_once(EtcdStore(location, access)))
        with pytest.raises(OttlaError, match="cannot read the certificates for etcd"):
            EtcdStore(location, EtcdAccess(str(tmp_path / "missing.pem")))


@pytest.fixture
def guarded(etcd_program: str) -> Any:
    """An etcd in which user `ottla` may use the prefix /mine; tokens expire after a second."""
    with EtcdCluster(options=["--unsafe-no-fsync", "--auth-token=simple", "--auth-token-ttl=1"]) as etcd:
        enable_passwords(etcd)
        yield etcd


def enable_passwords(etcd: EtcdCluster) -> None:
    ask = etcd.members[0].ask
    for name, password in (("root", PASSWORD), ("ottla", PASSWORD)):
        ask("auth/user/add", {"name": name, "password": password})
        ask("auth/role/add", {"name": name})
        ask("auth/user/grant", {"user": name, "role": name})
    permission = {"permType": "READWRITE", "key": text("/mine/"), "range_end": text("/mine0")}
    ask("auth/role/grant", {"name": "ottla", "perm": permission})
    ask("auth/enable", {})


def test_a_change_of_users_makes_tokens_void_and_the_session_goes_on(etcd_program: str, tmp_path: Path) -> None:
    """With JWT as tokens: etcd then reports an old token, which is another error than the one for an expired token."""
    private, public = tmp_path / "jwt.key", tmp_path / "jwt.pem"
    subprocess.run(["openssl", "genrsa", "-out", private, "2048"], check=True, capture_output=True)
    subprocess.run(["openssl", "rsa", "-in", private, "-pubout", "-out", public], check=True, capture_output=True)
    token = f"--auth-token=jwt,pub-key={public},priv-key={private},sign-method=RS256,ttl=10m"
    access = EtcdAccess(user="ottla", password=PASSWORD)

    async def story(etcd: EtcdCluster) -> None:
        async with asyncio.timeout(PATIENCE_S):
            store = EtcdStore(parse_location(etcd.url("/mine")), access, session_timeout_ms=stretched(10_000))
            await store.start()
            await store.commit([Create("/a", b"0")])
            member = etcd.members[0]
            login = member.ask("auth/authenticate", {"name": "root", "password": PASSWORD})
            etcd.headers["Authorization"] = login["token"]
            member.ask("auth/user/add", {"name": "somebody", "password": PASSWORD})
            await store.commit([Set("/a", b"1", 0)])
            await store.close()

    with EtcdCluster(options=["--unsafe-no-fsync", token]) as etcd:
        enable_passwords(etcd)
        asyncio.run(story(etcd))


def test_a_user_needs_the_password_and_the_prefix_and_tokens_are_renewed(
    guarded: EtcdCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    access = EtcdAccess(user="ottla", password=PASSWORD)

    async def story() -> None:
        async with asyncio.timeout(PATIENCE_S):
            store = EtcdStore(parse_location(guarded.url("/mine")), access, session_timeout_ms=stretched(10_000))
            await store.start()
            await store.commit([Create("/a", b"0")])
            for number in range(3):
                await asyncio.sleep(1.2)  # the token has expired
                await store.commit([Set("/a", b"%d" % number, number)])
            await store.close()

    asyncio.run(story())
    problems = []
    for prefix, wrong in (
        ("/mine", EtcdAccess(user="ottla", password="wrong-secret")),
        ("/theirs", access),
        ("/mine", EtcdAccess()),
    ):
        started = time.monotonic()
        with pytest.raises(OttlaError) as caught:
            asyncio.run(commit_once(EtcdStore(parse_location(guarded.url(prefix)), wrong)))
        assert time.monotonic() - started < 5 * slowness(), "it does not retry an error that cannot go away"
        problems.append(f"{caught.value.message} {caught.value.hint}")
    assert "authentication failed, invalid user ID or password" in problems[0]
    assert "permission denied" in problems[1]
    assert "Give the user of ottla.etcd.user a role" in problems[1]
    assert "Check ottla.etcd.user and ottla.etcd.password" in problems[2]
    for secret in (PASSWORD, "wrong-secret"):
        assert secret not in caplog.text + "".join(problems)
