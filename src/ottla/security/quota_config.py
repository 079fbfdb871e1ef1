"""The broker settings of quotas. Pure."""

from dataclasses import dataclass

from ottla.config import BaseConfig, setting
from ottla.types import INT32_MAX


@dataclass(init=False, repr=False, eq=False)
class QuotaConfig(BaseConfig):
    """The settings of quotas."""

    quota_window_num: int = setting(
        "quota.window.num", 11, "How many samples the rates of client quotas are measured over.", at_least=1
    )
    quota_window_size_seconds: int = setting(
        "quota.window.size.seconds", 1, "The length of each sample of client quotas.", at_least=1
    )
    controller_quota_window_num: int = setting(
        "controller.quota.window.num", 11, "How many samples controller_mutation_rate is measured over.", at_least=1
    )
    controller_quota_window_size_seconds: int = setting(
        "controller.quota.window.size.seconds", 1, "The length of each sample of controller_mutation_rate.", at_least=1
    )
    max_connection_creation_rate: int = setting(
        "max.connection.creation.rate",
        INT32_MAX,
        "The most connections per second that are accepted; others wait. With the prefix listener.name.NAME. it limits "
        "one listener.",
        at_least=1,
        read_only=False,
    )
