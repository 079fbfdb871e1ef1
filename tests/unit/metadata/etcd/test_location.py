"""Locations of metadata in etcd, as users write them."""

import pytest

from ottla.errors import ConfigError
from ottla.metadata.etcd.location import EtcdAccess, Member, is_etcd, parse_location


def test_a_location_has_members_and_a_prefix() -> None:
    found = parse_location("etcds://a:1,[::1]:2, c/shop/orders/")
    assert found.members == (Member("a", 1), Member("::1", 2), Member("c", 2379))
    assert (found.prefix, found.uses_tls) == ("/shop/orders", True)
    assert str(found) == "etcds://a:1,[::1]:2,c:2379/shop/orders"
    assert parse_location("etcd://localhost").prefix == "/ottla"
    assert parse_location("etcd://localhost/").prefix == "/ottla"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("etcd://", "'' is not HOST:PORT"),
        ("etcd://a:0", "'a:0' is not HOST:PORT"),
        ("etcd://a:70000", "'a:70000' is not HOST:PORT"),
        ("etcd://a:x", "'a:x' is not HOST:PORT"),
        ("etcd://::1:2379", "is not HOST:PORT"),
        ("etcd://a,,b", "'' is not HOST:PORT"),
        ("etcd://a,a:2379", "named twice"),
        ("etcd://a//b", "without empty parts"),
        ("etcd://a/b c", "without empty parts or spaces"),
    ],
)
def test_a_wrong_location_is_rejected_with_its_text(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=r"etcd://") as caught:
        parse_location(text)
    assert message in caught.value.message


def test_a_password_in_a_location_is_rejected_and_not_repeated() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_location("etcd://root:hunter2@a:2379/x")
    assert "hunter2" not in str(caught.value) + caught.value.message + caught.value.hint
    assert "hunter2" not in repr(EtcdAccess(user="root", password="hunter2"))


def test_a_path_is_not_in_etcd() -> None:
    assert [is_etcd(text) for text in (None, "/srv/x", "etcd", "etcd://a", "etcds://a", "http://a")] == [
        False, False, False, True, True, False,
    ]  # fmt: skip
