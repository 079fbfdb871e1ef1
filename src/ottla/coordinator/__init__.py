"""Coordinators: state machines that change by appending records to a log, and the runtime that drives them.

Hard state is what the log says. A step appends records and replays them through the same `replay` that loads a shard,
so a fresh load gives the state of the live shard (`Shard.hard_state`; tests compare the two after every run).

Live steps and a load differ in these places:

- A group's record is written from the group in memory, so a live shard does not replay it; only a load does. In
  between the group may rebalance: memory is then ahead of the record until the group is Stable or Empty again. If the
  append fails, the step is marked `is_soft` and the shard is reloaded.
- The record holds only the chosen one of a member's protocols. After a load, a member that rejoins with several seems
  to have changed its subscription; `Member.is_loaded` marks it.
- Sessions start again after a load, and member ids that were returned but not used yet are forgotten.
- A transaction's record is not decoded when the live shard replays what it just encoded: it keeps the object it
  encoded (`TransactionShard._staged`).
- After a load, the markers of decided transactions are all written again: which of them were written is not stored.
- The producer epoch before the last bump is not stored (nor does Kafka store it). After a load, a producer that repeats
  an InitProducerId whose answer was lost is fenced instead of answered.
- A load checks every stored offset and stops at one that cannot be read. Live values are not checked again.
"""
