"""Who a quota is for: a user, a client id, both, or an address; and the quotas that each can have. Pure."""

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple
from urllib.parse import quote, unquote

PRODUCER_BYTE_RATE = "producer_byte_rate"
CONSUMER_BYTE_RATE = "consumer_byte_rate"
REQUEST_PERCENTAGE = "request_percentage"
CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
CONNECTION_CREATION_RATE = "connection_creation_rate"

CLIENT_QUOTAS = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE, CONTROLLER_MUTATION_RATE)
"""The quotas of users and client ids."""
IP_QUOTAS = (CONNECTION_CREATION_RATE,)
"""The quotas of addresses."""
WHOLE_NUMBERS = {PRODUCER_BYTE_RATE: 2**63 - 1, CONSUMER_BYTE_RATE: 2**63 - 1, CONNECTION_CREATION_RATE: 2**31 - 1}
"""Quotas without a fraction, and the largest value of each."""

USER, CLIENT_ID, IP = "user", "client-id", "ip"
ENTITY_TYPES = (USER, CLIENT_ID, IP)

DEFAULT = ""
"""The name of the default entity. Nothing else can have it: Kafka accepts no quota for an empty name."""
STORED_DEFAULT = "<default>"
"""The default entity in the metadata store. A user of that name is stored as %3Cdefault%3E."""


class QuotaEntity(NamedTuple):
    """None means that the entity lacks the type, DEFAULT that it is the default of the type."""

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None

    def items(self) -> Iterator[tuple[str, str]]:
        """Its types and names."""
        for entity_type, name in zip(ENTITY_TYPES, self, strict=True):
            if name is not None:
                yield entity_type, name


Quotas = Mapping[QuotaEntity, Mapping[str, float]]
"""Every quota of the cluster."""


def quota_path(entity: QuotaEntity) -> str:
    """Where the entity's quotas are stored, below `/config/`, as in Kafka's ZooKeeper layout.

    >>> quota_path(QuotaEntity(user="alice", client_id=""))
    'users/alice/clients/<default>'
    """
    if entity.ip is not None:
        return f"ips/{_stored(entity.ip)}"
    clients = None if entity.client_id is None else f"clients/{_stored(entity.client_id)}"
    if entity.user is None:
        assert clients is not None, "an entity has a type"
        return clients
    return f"users/{_stored(entity.user)}" + (f"/{clients}" if clients else "")


def entity_at(path: str) -> QuotaEntity | None:
    """The entity whose quotas are stored below `/config/` at `path`, or None.

    >>> entity_at("users/alice/clients/<default>")
    QuotaEntity(user='alice', client_id='', ip=None)
    """
    match path.split("/"):
        case ["users", user]:
            return QuotaEntity(user=_read(user))
        case ["users", user, "clients", client_id]:
            return QuotaEntity(user=_read(user), client_id=_read(client_id))
        case ["clients", client_id]:
            return QuotaEntity(client_id=_read(client_id))
        case ["ips", ip]:
            return QuotaEntity(ip=_read(ip))
    return None


def quotas_in(configs: Mapping[str, Mapping[str, str]]) -> dict[QuotaEntity, dict[str, float]]:
    """The quotas in the stored settings of users, client ids and addresses. Other settings are ignored."""
    found = {}
    for path, config in configs.items():
        entity = entity_at(path)
        if entity is not None:
            quotas = {name: value for name in CLIENT_QUOTAS + IP_QUOTAS if (value := _number(config.get(name)))}
            if quotas:
                found[entity] = quotas
    return found


def _number(text: str | None) -> float | None:
    """None also for an invalid stored value: one bad entry must not stop a broker."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None


def _stored(name: str) -> str:
    return quote(name, safe="") if name else STORED_DEFAULT


def _read(stored: str) -> str:
    return DEFAULT if stored == STORED_DEFAULT else unquote(stored)
