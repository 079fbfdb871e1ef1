"""The topics of `ottla verify`."""

from ottla.verify.run import topic_configs


def test_topics_keep_everything_whatever_the_defaults_of_the_cluster_are() -> None:
    configs = topic_configs(3)
    assert (configs["retention.ms"], configs["retention.bytes"], configs["cleanup.policy"]) == ("-1", "-1", "delete")


def test_one_broker_may_be_lost() -> None:
    assert [topic_configs(replicas)["min.insync.replicas"] for replicas in (1, 2, 3)] == ["1", "1", "2"]
