"""Ottla's own consumer as a member of a group that can be watched, next to those of the other clients."""

from typing import Any

from ottla.errors import KafkaError
from ottla.types import TopicPartition
from tests.support.clients.members import HEARTBEAT_MS, Member


class OttlaMember(Member):
    name = "ottla"
    assignors = frozenset({"range", "roundrobin", "sticky", "cooperative-sticky"})

    def run(self) -> None:
        from ottla import Consumer
        from ottla.client.group.rebalance_listener import RebalanceListener

        member = self

        class Listener(RebalanceListener):
            def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
                member.assigned(partitions)

            def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
                member.revoked(partitions)

            def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
                member.revoked(partitions)

        settings: dict[str, Any] = {
            "client.id": self.client_id,
            "partition.assignment.strategy": self.assignor,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": self.session_timeout_ms,
            "heartbeat.interval.ms": HEARTBEAT_MS,
            "fetch.max.wait.ms": 100,
            "metadata.max.age.ms": self.metadata_max_age_ms,
        }
        if self.instance_id is not None:
            settings["group.instance.id"] = self.instance_id
        with Consumer(settings, bootstrap_servers=self.bootstrap, group_id=self.group) as consumer:
            if self.topics[0].startswith("^"):
                consumer.subscribe(pattern=self.topics[0], listener=Listener())
            else:
                consumer.subscribe(self.topics, listener=Listener())
            while not self._stopping.is_set():
                records = consumer.poll(50)
                for record in records:
                    self.read(record.topic, record.partition, record.offset, record.value or b"")
                if records:
                    with self.committing(KafkaError):
                        consumer.commit()
