"""The broker settings that the controller and the cluster's metadata use. Pure."""

from dataclasses import dataclass

from ottla.config import BaseConfig, setting


@dataclass(init=False, repr=False, eq=False)
class ControllerConfig(BaseConfig):
    """How a broker participates in the cluster, and how it acts as controller."""

    broker_session_timeout_ms: int = setting(
        "broker.session.timeout.ms",
        9_000,
        "A broker that sends no heartbeat for this long is considered dead. On one host, a broker whose process ended "
        "is detected at once, so this is for processes that hang. With metadata in etcd the default is 3000, and the "
        "value is rounded up to seconds.",
        at_least=1,
    )
    etcd_ca_file: str | None = setting(
        "ottla.etcd.ca.file",
        None,
        "PEM file with the certificate authorities that sign etcd's certificates (etcds://); default: the system's.",
    )
    etcd_certificate_file: str | None = setting(
        "ottla.etcd.certificate.file", None, "PEM file with this broker's certificate for etcd, if etcd requires one."
    )
    etcd_key_file: str | None = setting(
        "ottla.etcd.key.file", None, "PEM file with the private key of ottla.etcd.certificate.file."
    )
    etcd_user: str | None = setting("ottla.etcd.user", None, "The user of this broker in etcd, if etcd requires one.")
    etcd_password: str | None = setting(
        "ottla.etcd.password", None, "The password of ottla.etcd.user. Keep it in the settings file.", kind="password"
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
        "When the whole cluster starts, the controller waits at most this long for missing brokers before it elects "
        "leaders in their place.",
        kind="long",
        at_least=0,
    )
