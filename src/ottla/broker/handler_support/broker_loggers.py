"""The loggers of this broker's process, whose levels can be described and changed at run time (KIP-412)."""

import logging
from collections.abc import Sequence

from ottla.broker.settings.config import ConfigEntry
from ottla.errors import ErrorCode, KafkaError
from ottla.metadata.changes.config_changes import ConfigChange, check_form
from ottla.protocol.wire_values import ConfigOperation, ConfigSource

log = logging.getLogger("ottla.broker")

LEVELS = {"TRACE": 5, "DEBUG": 10, "INFO": 20, "WARN": 30, "ERROR": 40, "FATAL": 50}
"""Kafka's names for levels, in the numbers of Python's logging."""
ROOT = "root"
UNKNOWN_TYPE = 0


def _loggers() -> dict[str, logging.Logger]:
    """Our loggers and the root. Loggers of libraries are left alone."""
    names = ["ottla", *(name for name in logging.root.manager.loggerDict if name.startswith("ottla."))]
    return {ROOT: logging.root} | {name: logging.getLogger(name) for name in sorted(names)}


def describe_loggers() -> list[ConfigEntry]:
    return [
        ConfigEntry(
            name=name,
            value=_level_name(logger.getEffectiveLevel()),
            source=ConfigSource.BROKER_LOGGER,
            is_read_only=False,
            is_sensitive=False,
            synonyms=(),
            config_type=UNKNOWN_TYPE,
            documentation="",
        )
        for name, logger in _loggers().items()
    ]


def alter_loggers(changes: Sequence[ConfigChange], *, validate_only: bool, by: str) -> None:
    """Changes all levels or none. They are not stored: after a restart, the level of the command line applies again."""
    check_form(changes)
    loggers = _loggers()
    for name, level, operation in changes:
        if operation in (ConfigOperation.APPEND, ConfigOperation.SUBTRACT):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"The level of logger {name} is not a list.")
        if name not in loggers:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Logger {name} does not exist; there are {', '.join(loggers)}.")
        if operation == ConfigOperation.SET and level not in LEVELS:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG, f"{level} is not a log level for {name}: use one of {', '.join(LEVELS)}."
            )
        if operation == ConfigOperation.DELETE and name == ROOT:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "The root logger must have a level.")
    if validate_only:
        return
    for name, level, _ in changes:
        loggers[name].setLevel(LEVELS[level] if level is not None else logging.NOTSET)
        log.info("logger %s is now at level %s, by %s", name, _level_name(loggers[name].getEffectiveLevel()), by)


def _level_name(number: int) -> str:
    """The name of a level, or of the next higher one."""
    return next((name for name, level in LEVELS.items() if number <= level), "FATAL")
