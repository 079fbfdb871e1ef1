"""The life cycle of a shard on one broker: INITIAL, LOADING, ACTIVE, FAILED, CLOSED."""

import logging
from itertools import product

import pytest

from ottla.coordinator.group.config import GroupConfig
from ottla.coordinator.group.shard import GroupShard
from ottla.coordinator.hosted import TRANSITIONS, HostedShard, ShardState

S = ShardState
TOPIC_ID = bytes(15) + b"1"

ALLOWED = {
    (S.INITIAL, S.LOADING),
    (S.INITIAL, S.CLOSED),
    (S.LOADING, S.ACTIVE),
    (S.LOADING, S.FAILED),
    (S.LOADING, S.CLOSED),
    (S.ACTIVE, S.FAILED),
    (S.ACTIVE, S.CLOSED),
    (S.FAILED, S.CLOSED),
}


def hosted(state: ShardState = S.INITIAL, epoch: int = 3) -> HostedShard[GroupShard]:
    shard = HostedShard("__consumer_offsets", 7, epoch, TOPIC_ID, GroupShard(GroupConfig(), str))
    shard.state = state
    return shard


@pytest.mark.parametrize(("before", "after"), list(product(S, S)))
def test_a_shard_allows_only_the_transitions_of_the_table(before: ShardState, after: ShardState) -> None:
    shard = hosted(before)
    if (before, after) in ALLOWED:
        shard.move(after)
        assert shard.state is after
    else:
        with pytest.raises(AssertionError, match=f"cannot move from {before.name} to {after.name}"):
            shard.move(after)
        assert shard.state is before


def test_the_table_names_every_state_and_all_can_be_closed() -> None:
    assert set(TRANSITIONS) == set(S)
    assert all(S.CLOSED in following for state, following in TRANSITIONS.items() if state is not S.CLOSED)
    assert not TRANSITIONS[S.CLOSED]


def test_each_change_of_state_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="ottla.coordinator")
    shard = hosted()
    shard.move(S.LOADING)
    shard.fail("bad record at offset 12")
    assert caplog.messages == [
        "__consumer_offsets-7 (epoch 3): INITIAL -> LOADING",
        "__consumer_offsets-7 (epoch 3): LOADING -> FAILED",
    ]
    assert (shard.state, shard.failure) == (S.FAILED, "bad record at offset 12")


@pytest.mark.parametrize(
    ("state", "epoch", "topic_id", "continues"),
    [
        (S.ACTIVE, 3, TOPIC_ID, True),
        (S.ACTIVE, 4, TOPIC_ID, True),
        (S.ACTIVE, 5, TOPIC_ID, False),  # another broker may have led it in epoch 4
        (S.ACTIVE, 3, bytes(16), False),  # the topic was deleted and created again
        (S.LOADING, 4, TOPIC_ID, True),
        (S.FAILED, 3, TOPIC_ID, True),
        (S.FAILED, 4, TOPIC_ID, False),  # tried again in the next epoch
    ],
)
def test_a_shard_stays_in_use_unless_another_broker_may_have_written(
    state: ShardState, epoch: int, topic_id: bytes, continues: bool
) -> None:
    assert hosted(state).may_continue(epoch, topic_id) is continues
