"""What the admin reads out of a member's bytes and addresses."""

from ottla.client.admin.group_model import GroupMember, read_assignment, read_subscription
from ottla.types import TopicPartition


def test_subscriptions_are_read_in_every_version_and_newer_ones() -> None:
    newest = bytes.fromhex("000300000001000174ffffffff0000000100017400000001000000000000000400057261636b41")
    read = read_subscription(newest)
    assert read is not None
    assert (read.topics, read.owned_partitions) == (("t",), (TopicPartition("t", 0),))
    assert (read.generation, read.rack) == (4, "rackA")
    from_the_future = b"\x00\x09" + newest[2:] + b"more"
    assert read_subscription(from_the_future) == read
    assert read_subscription(b"") is None
    assert read_subscription(b"\x00\x00garbage") is None
    assert read_assignment(b"") == ()
    assert read_assignment(b"garbage") == ()


def test_a_host_is_shown_without_javas_slash() -> None:
    def host(text: str) -> str:
        return GroupMember("m", None, "c", text, None, ()).host

    assert (host("/10.0.0.1"), host("web-1/10.0.0.1"), host("10.0.0.1")) == ("10.0.0.1",) * 3
