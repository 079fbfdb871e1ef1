"""Which clients are the cluster's own brokers. Pure."""

from typing import TYPE_CHECKING

from ottla.checks import unsigned_from_text
from ottla.replication.broker_peers import BROKER_CLIENT_ID
from ottla.security.resources import CLUSTER, Operation

if TYPE_CHECKING:
    from ottla.broker.services import Context


def is_broker(context: "Context") -> bool:
    """Whether a request comes from another broker, as far as this broker can know: by its client id and, with an
    authorizer, only if its principal may act for the cluster."""
    client_id = context.client_id or ""
    number = client_id.removeprefix(BROKER_CLIENT_ID)
    return (
        number != client_id
        and unsigned_from_text(number) in context.services.image.brokers
        and context.allows(Operation.CLUSTER_ACTION, CLUSTER, quietly=True)
    )
