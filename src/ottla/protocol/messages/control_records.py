"""Key and value of the control records that end a transaction. Consumers skip them. Pure.

`record_batch.py` writes and reads them without these tables, which tests use to check its bytes. The control records
of KRaft's metadata log are not here: Ottla has no such log.
"""

# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, field


class ControlRecordTypeSchema(Message, versions=range(0, 1)):
    type: int = field("int16")


class EndTxnMarker(Message, versions=range(0, 1)):
    coordinator_epoch: int = field("int32")
