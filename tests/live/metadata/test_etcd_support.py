"""The etcd of the tests does what the tests rely on."""

import pytest

from tests.support.processes.etcd import EtcdCluster


def test_another_member_leads_when_the_leader_is_killed_and_a_cut_way_is_silent(etcd_of_three: EtcdCluster) -> None:
    first = etcd_of_three.leader()
    with etcd_of_three.proxied() as way:
        way.cut()
        port = first.client_port
        first.client_port = way.proxies[etcd_of_three.members.index(first)].port
        with pytest.raises(TimeoutError):
            first.ask("maintenance/status", {}, timeout_s=0.2)
        way.restore()
        first.ask("maintenance/status", {})
        first.client_port = port
    first.kill()
    assert etcd_of_three.leader() is not first
    first.start()
    etcd_of_three.await_ready()
