"""A cluster of brokers with their metadata in etcd, each on a loopback address of its own, as on several hosts.

>>> with EtcdCluster(members=3) as etcd, EtcdBrokers(etcd) as cluster:
...     cluster.ways[1].cut()          # broker 1 cannot reach etcd any more; clients and brokers still reach it
"""

from collections.abc import Iterable, Mapping
from contextlib import ExitStack

from tests.support.ports import fixed_ports
from tests.support.processes.cluster import Node, OttlaCluster, OttlaNode
from tests.support.processes.etcd import EtcdCluster, Proxies


class EtcdBrokers(OttlaCluster):
    name = "etcd"

    def __init__(
        self,
        etcd: EtcdCluster,
        brokers: int = 3,
        settings: Mapping[str, str] | None = None,
        *,
        prefix: str = "/ottla",
    ) -> None:
        super().__init__(brokers, settings)
        self.etcd = etcd
        self.prefix = prefix
        self.ways: dict[int, Proxies] = {}
        """Each broker's way to etcd."""
        self._stack = ExitStack()

    def make_nodes(self) -> Iterable[Node]:
        for node_id, port in enumerate(fixed_ports(self.count), 1):
            way = self.ways[node_id] = self._stack.enter_context(self.etcd.proxied())
            node = OttlaNode(node_id, port, self.home / f"broker-{node_id}", way.url(self.prefix), self.settings)
            node.host = f"127.0.0.{node_id}"
            yield node

    def close(self) -> None:
        super().close()
        self._stack.close()
