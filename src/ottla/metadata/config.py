"""The broker settings that the controller and the cluster's metadata use. Pure."""

from dataclasses import dataclass

from ottla.config import BaseConfig, setting


@dataclass(init=False, repr=False, eq=False)
class ControllerConfig(BaseConfig):
    """How a broker takes part in the cluster, and how it acts as controller."""

    broker_session_timeout_ms: int = setting(
        "broker.session.timeout.ms",
        9_000,
        "A broker that sends no heartbeat for this long is considered dead. On one host, a broker whose process ended "
        "is noticed at once, so this is for processes that hang.",
        at_least=1,
    )
    auto_leader_rebalance_enable: bool = setting(
        "auto.leader.rebalance.enable", True, "Whether leadership returns to the first replica once it is in sync."
    )
    leader_imbalance_check_interval_seconds: int = setting(
        "leader.imbalance.check.interval.seconds",
        300,
        "How often to check whether leadership should return. It returns earlier, see ottla.leader.rebalance.delay.ms.",
        kind="long",
        at_least=1,
    )
    leader_rebalance_delay_ms: int = setting(
        "ottla.leader.rebalance.delay.ms",
        3_000,
        "Leadership returns to the first replica when it has been in sync for this long.",
        kind="long",
        at_least=0,
    )
    startup_wait_ms: int = setting(
        "ottla.startup.wait.ms",
        3_000,
        "When the whole cluster starts, the controller elects no leaders around brokers that are not there yet, for "
        "at most this long.",
        kind="long",
        at_least=0,
    )
