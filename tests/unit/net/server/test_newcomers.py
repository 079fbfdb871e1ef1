"""Connections that have not authenticated: who is cut when there are too many of them."""

from ottla.net.server.newcomers import Newcomers


def test_the_crowd_makes_room_not_the_others() -> None:
    newcomers: Newcomers[str] = Newcomers(3)
    for name, host in (("a1", "a"), ("b1", "b"), ("b2", "b")):
        assert newcomers.add(name, host, 0.0) is None
    assert newcomers.add("b3", "b", 1.0) == "b1", "the oldest one of the address with the most"
    newcomers.remove("b1")
    assert newcomers.add("a2", "a", 2.0) in ("a1", "b2")


def test_an_authenticated_connection_is_no_newcomer() -> None:
    newcomers: Newcomers[str] = Newcomers(1)
    newcomers.add("a", "host", 0.0)
    newcomers.remove("a")
    newcomers.remove("a")
    assert len(newcomers) == 0
    assert newcomers.add("b", "host", 0.0) is None


def test_a_replaced_newcomer_keeps_its_age() -> None:
    newcomers: Newcomers[str] = Newcomers(5)
    newcomers.add("handshake", "host", 1.0)
    newcomers.add("later", "host", 3.0)
    newcomers.replace("handshake", "connection")
    assert newcomers.older_than(2.0) == ["connection"]
    assert "handshake" not in newcomers
    newcomers.replace("unknown", "nobody")
    assert "nobody" not in newcomers
