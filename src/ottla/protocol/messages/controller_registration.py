"""ControllerRegistration (API 70): registers a controller with the active one. Pure."""

# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class ControllerRegistrationRequest(Message, api_key=70, versions=range(0, 1), flexible_since=0):
    controller_id:      int   = field("int32")
    incarnation_id:     bytes = field("uuid")
    zk_migration_ready: bool  = field("bool")
    listeners:          list[ControllerRegistrationRequest.Listener] = field("[]Listener")
    features:           list[ControllerRegistrationRequest.Feature] = field("[]Feature")

    class Listener(Struct):
        name:              str = field("string")
        host:              str = field("string")
        port:              int = field("uint16")
        security_protocol: int = field("int16")

    class Feature(Struct):
        name:                  str = field("string")
        min_supported_version: int = field("int16")
        max_supported_version: int = field("int16")


class ControllerRegistrationResponse(Message, api_key=70, versions=range(0, 1), flexible_since=0):
    throttle_time_ms: int        = field("int32")
    error_code:       int        = field("int16")
    error_message:    str | None = field("string", nullable="0+")
