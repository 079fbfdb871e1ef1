"""New producer ids, for InitProducerId and EndTxn."""

from typing import TYPE_CHECKING

from ottla.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from ottla.broker.services import Services


async def new_producer_id(services: "Services") -> int:
    """A producer id that no broker of the cluster has assigned. If the metadata store cannot reserve more of them at
    the moment, raises COORDINATOR_LOAD_IN_PROGRESS: every client retries it, without looking for another broker."""
    try:
        return await services.metadata.changes.allocate_producer_ids(1)
    except KafkaError as error:
        if error.code in (ErrorCode.NOT_CONTROLLER, ErrorCode.KAFKA_STORAGE_ERROR):
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, error.detail) from error
        raise
