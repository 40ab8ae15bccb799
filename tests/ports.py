"""Free TCP ports of this machine, for servers that tests start."""

from __future__ import annotations

import socket

HOST = "127.0.0.1"


def free_port() -> int:
    """Return a port that the system says is free."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
