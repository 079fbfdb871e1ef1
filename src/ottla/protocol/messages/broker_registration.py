"""BrokerRegistration (API 62): registers a broker with the controller. Pure.

Versions: v1 migration state; v2 log directories; v3 supported features may start at level 0; v4 previous
broker epoch; later versions add cordoned directories.
"""

# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class BrokerRegistrationRequest(Message, api_key=62, versions=range(0, 5), flexible_since=0):
    broker_id:              int         = field("int32")
    cluster_id:             str         = field("string")
    incarnation_id:         bytes       = field("uuid")
    listeners:              list[BrokerRegistrationRequest.Listener] = field("[]Listener")
    features:               list[BrokerRegistrationRequest.Feature] = field("[]Feature")
    rack:                   str | None  = field("string", nullable="0+")
    is_migrating_zk_broker: bool        = field("bool", "1+")
    log_dirs:               list[bytes] = field("[]uuid", "2+", ignorable=True)
    previous_broker_epoch:  int         = field("int64", "3+", default=-1, ignorable=True)

    class Listener(Struct):
        name:              str = field("string")
        host:              str = field("string")
        port:              int = field("uint16")
        security_protocol: int = field("int16")

    class Feature(Struct):
        name:                  str = field("string")
        min_supported_version: int = field("int16")
        max_supported_version: int = field("int16")


class BrokerRegistrationResponse(Message, api_key=62, versions=range(0, 5), flexible_since=0):
    throttle_time_ms: int = field("int32")
    error_code:       int = field("int16")
    broker_epoch:     int = field("int64", default=-1)
