"""Users that are created before a broker runs, in the form of kafka-storage."""

import asyncio
import os
import stat
from pathlib import Path

import pytest

from ottla.broker.authentication.scram_users import NewUser, add_users_to, parse_add_scram, read_add_scram
from ottla.errors import ConfigError, OttlaError
from ottla.metadata.changes.scram_changes import user_key
from ottla.metadata.records import read_config
from ottla.metadata.sqlite.store import SqliteStore
from ottla.security.sasl.scram_math import SCRAM_SHA_256, SCRAM_SHA_512, ScramCredential
from tests.support.wire.scram_credentials import new_credential


def test_users_are_written_as_for_kafka_storage() -> None:
    assert parse_add_scram("SCRAM-SHA-256=[name=alice,password=alice-secret]") == NewUser(
        "alice", "alice-secret", SCRAM_SHA_256
    )
    found = parse_add_scram('SCRAM-SHA-512=[name="bob", iterations=8192, password="x=y"]')
    assert found == NewUser("bob", "x=y", SCRAM_SHA_512, 8192)
    assert "x=y" not in repr(found)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("PLAIN=[name=a,password=hush]", "does not begin with SCRAM-SHA-256"),
        ("SCRAM-SHA-256=name=a,password=hush", "does not begin with"),
        ("SCRAM-SHA-256=[name=a]", "needs a name and a password"),
        ("SCRAM-SHA-256=[name=a,hush]", "an option without a value"),
        ("SCRAM-SHA-256=[name=a,password=hush,iterations=1]", "invalid iterations: 1"),
        ("SCRAM-SHA-256=[name=a,password=hush,iterations=٤٠٩٦]", "invalid iterations: ٤٠٩٦"),
        ("SCRAM-SHA-256=[name=a,password=hush,color=red]", "unknown options: color"),
    ],
)
def test_errors_do_not_show_passwords(text: str, error: str) -> None:
    with pytest.raises(ConfigError, match=error) as caught:
        parse_add_scram(text)
    assert "hush" not in str(caught.value)


def test_users_may_be_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "users"
    file.write_text("SCRAM-SHA-256=[name=a,password=x]\n\nSCRAM-SHA-512=[name=b,password=y]\n")
    assert [user.name for user in read_add_scram(f"@{file}")] == ["a", "b"]
    with pytest.raises(OttlaError, match="cannot read /no/file"):
        read_add_scram("@/no/file")


def test_an_existing_user_keeps_its_password_unless_it_is_replaced(tmp_path: Path) -> None:
    location = str(tmp_path / "new" / "metadata.sqlite")

    def user(password: str) -> NewUser:
        return NewUser("alice", password, SCRAM_SHA_512)

    async def stored() -> ScramCredential:
        store = SqliteStore(location)
        await store.start()
        entry = await store.get(user_key("alice"))
        await store.close()
        assert entry is not None
        return ScramCredential.from_text(read_config("", entry.value)["SCRAM-SHA-512"])

    async def is_password(password: str) -> bool:
        found = await stored()
        return found == new_credential(SCRAM_SHA_512, password, found.salt, found.iterations)

    async def story() -> None:
        assert await add_users_to(location, [user("first")], replace=False) == ["alice"]
        assert await add_users_to(location, [user("second")], replace=False) == []
        assert await is_password("first")
        assert await add_users_to(location, [user("third")], replace=True) == ["alice"]
        assert await is_password("third")

    asyncio.run(story())


def test_directories_that_are_created_for_users_are_private(tmp_path: Path) -> None:
    """All of them: a broker warns of a data directory that others can read, and the metadata is one level below."""
    before = os.umask(0)
    try:
        location = tmp_path / "ottla-data" / "metadata" / "metadata.sqlite"
        asyncio.run(add_users_to(str(location), [NewUser("alice", "alice-secret", SCRAM_SHA_256)], replace=True))
    finally:
        os.umask(before)
    for directory in (location.parent, location.parent.parent):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700, directory
