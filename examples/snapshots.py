"""A stateful task that survives restarts: offsets in the transaction of the output, full snapshots from time to time.

python examples/snapshots.py 127.0.0.1:9092 orders totals

Needs the topics orders, totals, totals-offsets and totals-state with one partition each; the last two may be compacted.
"""

import sys

from ottla import Consumer, SnapshotStore, TopicPartition


def run(
    bootstrap: str,
    source: str,
    to: str,
    *,
    full_snapshot_every: int = 100,
    until_end: bool = False,
    max_poll_records: int = 500,
) -> int:
    """Adds up the numbers in `source` and writes each sum to `to`. Returns the last sum."""
    place = TopicPartition(source, 0)
    with (
        SnapshotStore.open(
            bootstrap_servers=bootstrap,
            transactional_id=to,
            incremental=(f"{to}-offsets", 0),
            full=(f"{to}-state", 0),
            mirror_group=to,  # only to show the lag
        ) as store,
        Consumer(
            bootstrap_servers=bootstrap, auto_offset_reset="earliest", max_poll_records=max_poll_records
        ) as consumer,
    ):
        total = int(store.restored.state or b"0")
        consumer.assign([place])
        consumer.seek(place, store.restored.state_offsets.get(place, 0))
        written = store.offsets.get(place, 0)
        since_full = 0
        while not (until_end and consumer.is_at_end()):
            records = list(consumer.poll(1_000))
            sums = []
            for record in records:
                total += int(record.value or b"0")
                if record.offset >= written:  # before that, output exists already: only rebuild the state
                    sums.append(total)
            if not sums:
                continue
            with store.transaction({place: records[-1].offset + 1}):
                for each in sums:
                    store.producer.send(to, f"{each}", partition=0)
            since_full += len(sums)
            if since_full >= full_snapshot_every:
                store.save_full(b"%d" % total)
                since_full = 0
        return total


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    run(*sys.argv[1:4])
