"""The end of a run: reads everything in the topics after all writers have stopped. OWNER."""

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from ottla.client.blocking import Admin, Consumer
from ottla.clock import monotonic
from ottla.errors import KafkaError
from ottla.types import TopicPartition
from ottla.verify.clients.port import ClientError, ClientLibrary, Place
from ottla.verify.hangs import all_within
from ottla.verify.history import (
    COMMITTED,
    FETCH_OFFSETS,
    FINAL,
    OK,
    POLL,
    UNCOMMITTED,
    Operation,
    partition_name,
)
from ottla.verify.workers.recorder import Recorder, reads

READ_AT_ONCE = 5_000
POLL_S = 0.5
RETRY_INTERVAL_S = 0.2
HANG_AFTER_S = 240.0
"""Longer than the sum of all timeouts of a client's call, including its close."""

Settings = Mapping[str, str]


class FinalRead:
    """Reads everything. Failures, although the cluster should work, are recorded in `history.stuck`."""

    def __init__(
        self,
        settings: Settings,
        recorder: Recorder,
        topics: Sequence[str],
        partitions: int,
        patience_s: float,
        note: Callable[[str], None],
    ) -> None:
        self._settings = dict(settings)
        self._recorder = recorder
        self._places: list[Place] = [(topic, partition) for topic in topics for partition in range(partitions)]
        self._patience_s = patience_s
        self._note = note
        self._pause = threading.Event()

    def fence(self, libraries: Sequence[ClientLibrary], transactional_ids: Sequence[str]) -> None:
        """Aborts transactions that the workers have left open, as the next instance of each would."""

        def take_over(number: int, name: str) -> None:
            producer = libraries[number % len(libraries)].producer("final", name)
            try:
                producer.init()
            except ClientError:
                pass  # the transaction times out
            finally:
                producer.crash()

        if transactional_ids:
            acts = [partial(take_over, *each) for each in enumerate(transactional_ids)]
            all_within(HANG_AFTER_S, "taking over transactional ids", acts)

    def wait_for_groups(self, groups: Mapping[str, str]) -> None:
        """Waits until the groups have committed the end of their topics."""
        deadline = monotonic() + self._patience_s
        lags = dict.fromkeys(groups, "not known")
        while lags and monotonic() < deadline:
            for group in list(lags):
                lags[group] = self._lag(group, groups[group])
                if not lags[group]:
                    del lags[group]
            self._pause.wait(RETRY_INTERVAL_S)
        for group, lag in lags.items():
            self._recorder.history.stuck.append(
                f"group {group} did not reach the end of {groups[group]} within {self._patience_s:g} s: {lag}"
            )

    def _lag(self, group: str, topic: str) -> str:
        places = [TopicPartition(*place) for place in self._places if place[0] == topic]
        settings = {**self._settings, "group.id": group, "isolation.level": COMMITTED, "enable.auto.commit": "false"}
        try:
            with Consumer(settings) as consumer:
                ends = consumer.end_offsets(places)
                found = consumer.committed(places)
        except KafkaError as error:
            return f"{error.code.name} {error.detail}"
        behind = []
        for place in places:
            committed = found.get(place)
            position = -1 if committed is None else committed.offset
            # The end is behind a transaction marker if the topic has transactions; ours has none.
            if position < ends[place]:
                behind.append(f"{place} is at {max(position, 0)} of {ends[place]}")
        return ", ".join(behind)

    def read(self, libraries: Sequence[ClientLibrary]) -> None:
        """Reads every partition with both isolation levels and each client library."""
        ends = self._stable_ends()
        if not ends:
            return  # the cluster does not answer
        for library in libraries:
            for isolation in (UNCOMMITTED, COMMITTED):
                self._note(f"final read with {library.name}, {isolation}")
                self._read(library, isolation, ends)

    def _stable_ends(self) -> dict[Place, int]:
        """The ends of all partitions, once no transaction is open any more."""
        deadline = monotonic() + self._patience_s
        open_ones: list[str] = []
        ends: dict[Place, int] = {}
        while True:
            try:
                stable, ends = self._ends(COMMITTED), self._ends(UNCOMMITTED)
                open_ones = [
                    f"{partition_name(*place)} is stable up to {stable[place]} of {end}"
                    for place, end in ends.items()
                    if stable[place] < end
                ]
                if not open_ones:
                    return ends
            except KafkaError as error:
                open_ones = [f"{error.code.name} {error.detail}"]
            if monotonic() > deadline:
                what = "transactions are open" if ends else "the ends of the topics cannot be read"
                self._recorder.history.stuck.append(
                    f"{what} {self._patience_s:g} s after all clients have ended: {', '.join(open_ones)}"
                )
                return ends
            self._pause.wait(RETRY_INTERVAL_S)

    def _ends(self, isolation: str) -> dict[Place, int]:
        with Consumer({**self._settings, "isolation.level": isolation}) as consumer:
            found = consumer.end_offsets([TopicPartition(*place) for place in self._places])
        return {(place.topic, place.partition): end for place, end in found.items()}

    def _read(self, library: ClientLibrary, isolation: str, ends: Mapping[Place, int]) -> None:
        client = f"final-{library.name}"
        recorder = self._recorder
        consumer = library.consumer(client, isolation)
        parts: list[Operation] = []
        deadline = monotonic() + self._patience_s
        problem = ""
        try:
            consumer.assign(self._places)
            while not consumer.is_at_end(ends):
                started_us = recorder.now_us()
                records = consumer.poll(POLL_S, READ_AT_ONCE)
                if records:
                    part = recorder.begin(Operation(client, FINAL, polled=reads(records), isolation=isolation))
                    part.started_us = started_us
                    recorder.end(part, OK)
                    parts.append(part)
                    deadline = monotonic() + self._patience_s
                elif monotonic() > deadline:
                    problem = f"did not reach the end within {self._patience_s:g} s"
                    break
        except ClientError as error:
            problem = f"failed: {error}"
        finally:
            consumer.close()
        if problem:
            recorder.history.stuck.append(f"the final read with {library.name}, {isolation}, {problem}")
            for part in parts:
                part.kind = POLL  # an incomplete read does not prove that a record is missing
            return
        last = recorder.begin(Operation(client, FINAL, isolation=isolation))
        last.offsets = {partition_name(*place): end for place, end in ends.items()}
        recorder.end(last, OK)

    def fetch_offsets(self, groups: Mapping[str, str]) -> None:
        """Records the committed offsets of groups."""
        with Admin(self._settings) as admin:
            for group, topic in groups.items():
                places = [place for place in self._places if place[0] == topic]
                operation = self._recorder.begin(Operation("final-ottla", FETCH_OFFSETS, group=group))
                try:
                    found = admin.list_group_offsets(group, places)
                except KafkaError as error:
                    self._recorder.history.stuck.append(
                        f"the committed offsets of {group} cannot be read: {error.code.name} {error.detail}"
                    )
                    return
                by_place = {(place.topic, place.partition): each.offset for place, each in found.items()}
                operation.offsets = {partition_name(*place): by_place.get(place, -1) for place in places}
                self._recorder.end(operation, OK)
