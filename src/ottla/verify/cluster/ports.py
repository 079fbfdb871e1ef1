"""Free ports of this machine, for processes that need to know theirs before they start. OWNER."""

import socket


def free_ports(count: int) -> list[int]:
    """Ports that are not in use at the moment."""
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()
