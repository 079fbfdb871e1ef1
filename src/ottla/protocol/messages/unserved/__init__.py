"""Message tables that neither the broker nor the client uses yet. Pure.

To serve one of them: move the file up to `messages/`, remove the word `unserved` from its row in `protocol/api.py`,
and add a handler in `broker/handlers/` with its row in `broker/dispatch.py`.

Kept, because planned or plausible work needs them:

- Clusters: AlterPartition, ElectLeaders, AlterPartitionReassignments, ListPartitionReassignments,
  AlterReplicaLogDirs, UnregisterBroker, UpdateFeatures, DescribeQuorum.
- The consumer group protocol of KIP-848: ConsumerGroupHeartbeat. (ConsumerGroupDescribe is used by the admin client.)
- Share groups (KIP-932): all of their requests, and the records of `__share_group_state`.

Without a table, because Ottla will not serve them. `protocol/api.py` still knows their names and versions, so that
tools can show what another broker serves.

- KRaft's consensus and controllers: Vote, Begin/EndQuorumEpoch, FetchSnapshot, Add/Remove/UpdateRaftVoter,
  BrokerRegistration, BrokerHeartbeat, ControllerRegistration, UnregisterController, AllocateProducerIds,
  AssignReplicasToDirs, Envelope. Ottla's brokers meet in the metadata store instead (`ottla.metadata.store`).
- LeaderAndIsr, StopReplica, UpdateMetadata and ControlledShutdown (keys 4 to 7), which Kafka 4.0 removed together
  with ZooKeeper.
- Delegation tokens (KIP-48): only needed where many workers share one Kerberos login.
- Client telemetry (KIP-714): a client only sends it to a broker that offers it.
- Streams groups (KIP-1071): Kafka Streams also runs on classic groups.
"""
