"""The rules of one partition: leadership, the in-sync set, and the high watermark."""

import pytest

from ottla.errors import ErrorCode, KafkaError
from ottla.metadata.image import PartitionImage
from ottla.replication.replica import Replica
from ottla.types import TopicPartition

LAG_MAX_MS = 30_000


class Partition:
    """A partition led by broker 0, with helpers for these tests. Time passes only when a test says so."""

    def __init__(
        self,
        *,
        replicas: tuple[int, ...] = (0, 1, 2),
        isr: tuple[int, ...] | None = None,
        min_insync: int = 1,
        end: int = 0,
        flush_before_ack: bool = False,
        leader: int = 0,
    ) -> None:
        self.now = 1_000_000
        self.end = end
        self.flushed = end
        self.high_watermark = end
        self.replicas = replicas
        self.epoch, self.partition_epoch = 5, 0
        self.eligible = dict.fromkeys(range(5), -1)
        self.replica = Replica(
            0,
            TopicPartition("orders", 0),
            bytes(range(16)),
            min_insync_replicas=min_insync,
            flush_before_ack=flush_before_ack,
            lag_max_ms=LAG_MAX_MS,
            eligible=self.eligible,
        )
        self.image(leader=leader, isr=replicas if isr is None else isr)

    def image(
        self,
        *,
        leader: int = 0,
        isr: tuple[int, ...] = (0, 1, 2),
        epoch: int | None = None,
        partition_epoch: int | None = None,
    ) -> bool:
        self.epoch = self.epoch if epoch is None else epoch
        self.partition_epoch = self.partition_epoch + 1 if partition_epoch is None else partition_epoch
        image = PartitionImage(0, leader, self.epoch, self.partition_epoch, tuple(self.replicas), tuple(isr))
        return self.replica.become(image, log_end_offset=self.end, monotonic_ms=self.now)

    def appends(self, count: int) -> None:
        self.end += count
        self.settles()

    def fetches(self, broker_id: int, offset: int) -> None:
        self.replica.follower(broker_id).fetched(offset, 0, self.end, self.now)
        self.settles()

    def may_join(self, broker_id: int, high_watermark: int | None = None) -> bool:
        return self.replica.may_join(
            broker_id,
            log_end_offset=self.end,
            high_watermark=self.high_watermark if high_watermark is None else high_watermark,
            monotonic_ms=self.now,
        )

    def flushes(self) -> None:
        self.flushed = self.end
        self.settles()

    def settles(self) -> None:
        self.high_watermark = self.replica.committed_offset(
            log_end_offset=self.end,
            flushed_offset=self.flushed,
            high_watermark=self.high_watermark,
            monotonic_ms=self.now,
        )


def test_a_single_replica_commits_its_appends_immediately() -> None:
    partition = Partition(replicas=(0,))
    assert partition.replica.is_alone
    partition.appends(3)
    assert partition.high_watermark == 3


def test_the_high_watermark_is_the_slowest_in_sync_replica() -> None:
    partition = Partition()
    partition.appends(10)
    assert partition.high_watermark == 0, "no follower has fetched yet"
    partition.fetches(1, 10)
    partition.fetches(2, 4)
    assert partition.high_watermark == 4
    partition.fetches(2, 10)
    assert partition.high_watermark == 10


def test_a_lagging_out_of_sync_replica_does_not_hold_back_the_high_watermark() -> None:
    partition = Partition(isr=(0, 1))
    partition.appends(10)
    partition.now += LAG_MAX_MS * 2
    partition.fetches(2, 3)
    partition.fetches(1, 10)
    assert partition.high_watermark == 10


@pytest.mark.parametrize("is_new_epoch", [True, False], ids=["new epoch", "new replica"])
def test_a_replica_that_never_caught_up_is_not_in_sync_because_the_machine_has_just_started(is_new_epoch: bool) -> None:
    """Monotonic time starts near zero."""
    partition = Partition(replicas=(0, 1), end=10)
    partition.now, partition.replicas = 5, (0, 1, 2)
    partition.image(isr=(0, 1), epoch=6 if is_new_epoch else None)
    partition.appends(1)
    partition.fetches(2, 3)
    partition.fetches(1, 11)
    assert partition.high_watermark == 11


def test_a_replica_that_is_added_in_sync_holds_back_the_high_watermark() -> None:
    partition = Partition(replicas=(0, 1), end=10)
    partition.replicas = (0, 1, 2)
    partition.image(isr=(0, 1, 2))
    partition.now += LAG_MAX_MS
    assert partition.replica.lagging(partition.end, partition.now) == ()
    partition.now += 1
    assert partition.replica.lagging(partition.end, partition.now) == (1, 2)


def test_a_change_of_min_insync_replicas_takes_effect_at_once() -> None:
    partition = Partition(isr=(0, 1), min_insync=2)
    assert partition.replica.has_enough_in_sync
    partition.replica.configure(min_insync_replicas=3)
    assert not partition.replica.has_enough_in_sync


def test_a_caught_up_replica_holds_back_the_high_watermark_before_it_joins() -> None:
    partition = Partition(isr=(0, 1))
    partition.fetches(2, 0)
    partition.appends(10)
    partition.fetches(1, 10)
    assert partition.high_watermark == 0, "broker 2 was caught up a moment ago, and could never join otherwise"
    partition.fetches(2, 10)
    assert partition.high_watermark == 10


def test_a_joining_replica_counts_before_the_controller_confirms_it() -> None:
    partition = Partition(isr=(0, 1))
    partition.fetches(2, 0)
    assert partition.replica.propose_join((2,)) == (0, 1, 2)
    partition.appends(5)
    partition.now += LAG_MAX_MS * 2
    partition.fetches(1, 5)
    assert partition.high_watermark == 0
    partition.image(isr=(0, 1))
    partition.settles()
    assert partition.high_watermark == 5, "the next state of the partition does not have it"


def test_a_joining_replica_counts_until_the_partition_has_a_new_state() -> None:
    """KIP-497: an image that changes nothing here does not tell the outcome. If the joiner was accepted, it may become
    leader next, and must have everything that was acknowledged."""
    partition = Partition(isr=(0, 1))
    partition.fetches(2, 0)
    partition.replica.propose_join((2,))
    partition.appends(5)
    partition.now += LAG_MAX_MS * 2
    partition.image(isr=(0, 1), partition_epoch=partition.partition_epoch)
    partition.fetches(1, 5)
    assert partition.high_watermark == 0
    assert partition.replica.proposed == (0, 1, 2)


def test_a_rejected_joiner_no_longer_counts() -> None:
    partition = Partition(isr=(0, 1))
    partition.fetches(2, 0)
    partition.replica.propose_join((2,))
    partition.appends(5)
    partition.now += LAG_MAX_MS * 2
    partition.fetches(1, 5)
    partition.replica.proposal_rejected()
    partition.settles()
    assert partition.high_watermark == 5


def test_a_replica_that_is_to_leave_counts_until_that_is_confirmed() -> None:
    partition = Partition()
    partition.fetches(1, 0)
    partition.appends(5)
    partition.now += LAG_MAX_MS * 2
    partition.fetches(1, 5)
    assert partition.replica.propose_leave((2,)) == (0, 1)
    partition.settles()
    assert partition.high_watermark == 0
    partition.image(isr=(0, 1))
    partition.settles()
    assert partition.high_watermark == 5


@pytest.mark.parametrize("why", ["gone", "restarted"])
def test_a_replica_that_cannot_join_does_not_hold_back_the_high_watermark(why: str) -> None:
    """KAFKA-15021: after a follower's death, acks=all would wait for replica.lag.time.max.ms."""
    partition = Partition(isr=(0, 1))
    for broker_id in (1, 2):
        partition.replica.follower(broker_id).broker_epoch = 70 + broker_id
        partition.fetches(broker_id, 0)
    partition.eligible[0], partition.eligible[1], partition.eligible[2] = 70, 71, 72
    partition.appends(5)
    partition.fetches(1, 5)
    assert partition.high_watermark == 0, "broker 2 has caught up and may join"
    if why == "gone":
        del partition.eligible[2]
    else:
        partition.eligible[2] = 99
    partition.settles()
    assert partition.high_watermark == 5


def test_the_high_watermark_does_not_move_below_min_insync_replicas() -> None:
    partition = Partition(min_insync=2, isr=(0,))
    partition.now += LAG_MAX_MS * 2
    partition.appends(5)
    assert partition.high_watermark == 0
    assert not partition.replica.has_enough_in_sync
    partition.image(isr=(0, 1))
    partition.fetches(1, 5)
    assert partition.high_watermark == 5


def test_min_insync_replicas_is_capped_at_the_replica_count() -> None:
    partition = Partition(replicas=(0,), min_insync=3)
    partition.appends(1)
    assert partition.replica.has_enough_in_sync
    assert partition.high_watermark == 1


def test_the_high_watermark_of_a_leader_never_decreases() -> None:
    partition = Partition()
    partition.appends(10)
    partition.fetches(1, 10)
    partition.fetches(2, 10)
    partition.fetches(2, 6)
    assert partition.high_watermark == 10


def test_a_follower_does_not_advance_the_high_watermark() -> None:
    partition = Partition(leader=1)
    assert not partition.replica.is_leader
    partition.appends(10)
    assert partition.high_watermark == 0


def test_flush_before_ack_counts_only_synced_records() -> None:
    partition = Partition(replicas=(0,), flush_before_ack=True)
    assert not partition.replica.is_alone
    partition.appends(4)
    assert partition.high_watermark == 0
    partition.flushes()
    partition.appends(2)
    assert partition.high_watermark == 4


def test_a_new_epoch_resets_the_followers_progress() -> None:
    partition = Partition()
    partition.appends(10)
    partition.fetches(1, 10)
    partition.fetches(2, 10)
    assert partition.image(epoch=6) is True
    assert partition.replica.epoch_start_offset == 10
    partition.appends(1)
    assert partition.high_watermark == 10
    partition.fetches(1, 11)
    partition.fetches(2, 11)
    assert partition.high_watermark == 11


def test_a_change_of_the_in_sync_set_keeps_the_followers_progress() -> None:
    partition = Partition()
    partition.appends(10)
    partition.fetches(1, 10)
    partition.now += LAG_MAX_MS * 2
    assert partition.image(isr=(0, 1)) is False
    partition.settles()
    assert partition.high_watermark == 10


def test_an_older_image_changes_nothing() -> None:
    partition = Partition()
    assert partition.image(leader=1, epoch=4) is False
    assert partition.replica.is_leader
    assert partition.replica.leader_epoch == 5
    partition.epoch = 5
    partition.image(isr=(0, 1), partition_epoch=9)
    partition.image(isr=(0, 2), partition_epoch=8)
    assert partition.replica.isr == {0, 1}


def test_losing_leadership_drops_the_followers() -> None:
    partition = Partition()
    assert partition.image(leader=2, epoch=6) is True
    assert not partition.replica.is_leader
    assert partition.replica.followers == {}
    with pytest.raises(KafkaError) as caught:
        partition.replica.follower(1)
    assert caught.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize(
    ("epoch", "code"),
    [(4, ErrorCode.FENCED_LEADER_EPOCH), (6, ErrorCode.UNKNOWN_LEADER_EPOCH), (5, None), (-1, None)],
)
def test_a_clients_leader_epoch_must_be_current(epoch: int, code: ErrorCode | None) -> None:
    replica = Partition().replica
    if code is None:
        replica.check_leader_epoch(epoch)
    else:
        with pytest.raises(KafkaError) as caught:
            replica.check_leader_epoch(epoch)
        assert caught.value.code == code


def test_a_follower_can_join_when_it_has_everything_committed_and_the_start_of_the_epoch() -> None:
    partition = Partition(isr=(0, 1), end=7)
    partition.appends(3)
    partition.fetches(2, 10)
    assert partition.may_join(2)
    assert not partition.may_join(1), "it is in the in-sync set already"
    partition.fetches(2, 6)
    assert not partition.may_join(2), "it does not have every committed record"


def test_a_follower_that_is_not_caught_up_cannot_join() -> None:
    """KAFKA-19996: below min.insync.replicas the high watermark stands still, and a replica that reaches it would join,
    lag, leave and join again."""
    partition = Partition(isr=(0,), min_insync=2)
    partition.now += LAG_MAX_MS * 2
    partition.appends(1000)
    partition.fetches(2, 10)
    assert not partition.may_join(2)
    partition.fetches(2, 1000)
    assert partition.may_join(2)


def test_a_follower_that_is_not_registered_cannot_join() -> None:
    partition = Partition(isr=(0, 1))
    partition.fetches(2, 0)
    assert partition.may_join(2)
    del partition.eligible[2]
    assert not partition.may_join(2)


def test_there_is_one_proposal_at_a_time() -> None:
    partition = Partition(isr=(0,))
    partition.fetches(1, 0)
    partition.fetches(2, 0)
    partition.replica.propose_join((1,))
    assert not partition.may_join(2)
    partition.image(isr=(0, 1))
    assert partition.may_join(2)


def test_a_follower_behind_the_start_of_the_epoch_cannot_join() -> None:
    partition = Partition(isr=(0, 1), end=7)
    partition.replica.follower(2).caught_up_ms = partition.now
    partition.fetches(2, 5)
    assert not partition.may_join(2, high_watermark=4)
    partition.fetches(2, 7)
    assert partition.may_join(2, high_watermark=4)


def test_a_follower_that_stops_fetching_lags_and_a_steady_one_does_not() -> None:
    partition = Partition()
    for _ in range(8):
        # Broker 1 is always one fetch behind a steady stream of writes; broker 2 does not fetch.
        partition.fetches(1, partition.end)
        partition.now += LAG_MAX_MS // 4
        partition.appends(100)
    assert partition.replica.lagging(partition.end, partition.now) == (2,)
    assert partition.replica.propose_leave((2,)) == (0, 1)


def test_an_idle_follower_does_not_lag_because_of_the_next_append() -> None:
    """A fetch session names a partition only when it has news, so the last fetch of an idle one may be hours ago."""
    partition = Partition()
    partition.appends(1)
    partition.fetches(1, 1)
    partition.fetches(2, 1)
    partition.now += LAG_MAX_MS * 100
    partition.appends(1)
    assert partition.replica.lagging(partition.end, partition.now) == ()
    partition.now += LAG_MAX_MS + 1
    partition.fetches(1, 2)
    assert partition.replica.lagging(partition.end, partition.now) == (2,)


def test_a_new_leaders_high_watermark_is_not_current() -> None:
    partition = Partition(end=10)
    assert partition.replica.is_high_watermark_current(10)
    assert not partition.replica.is_high_watermark_current(8)


def test_the_low_watermark_is_the_lowest_log_start() -> None:
    partition = Partition(replicas=(0, 1))
    assert partition.replica.low_watermark(5) == -1, "broker 1 has not reported its log start"
    partition.replica.follower(1).fetched(9, 3, 9, partition.now)
    assert partition.replica.low_watermark(5) == 3
    assert Partition(replicas=(0,)).replica.low_watermark(5) == 5


def test_readable_bytes_are_exact_at_the_end_and_interpolated_before_it() -> None:
    replica = Partition().replica
    replica.unreplicated_bytes = 1_000
    assert replica.committed_bytes(0, 1, 10) == 100
    assert replica.committed_bytes(1, 10, 10) == 900
    assert replica.unreplicated_bytes == 0
    assert replica.undecided_bytes == 1_000
    assert replica.decided_bytes(0, 0, 10) == 0
    assert replica.decided_bytes(0, 10, 10) == 1_000
    assert replica.undecided_bytes == 0
    replica.unreplicated_bytes = 1
    assert replica.committed_bytes(10, 11, 99) == 1, "progress is never rounded down to zero"


def test_a_follower_that_left_the_in_sync_set_joins_only_after_another_fetch() -> None:
    """It may have left because its disk is full: what it had before says nothing about now."""
    partition = Partition()
    partition.fetches(2, 0)
    partition.image(isr=(0, 1))
    assert not partition.may_join(2)
    partition.fetches(2, 0)
    assert partition.may_join(2)
