"""TVM's RPC tracker and server on this machine, each on a port that the system says is free."""

from __future__ import annotations

import socket
from typing import Any

HOST = "127.0.0.1"


def _free_port() -> int:
    """Return a free port.

    TVM looks for the first free port of a range with SO_REUSEADDR set. Two test workers that look
    at the same time may both bind the same port; the second then fails when it listens.
    """
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def start_tracker() -> Any:
    """Start a tracker; return it. Its ``port`` is where it listens, ``terminate()`` ends it."""
    from tvm.rpc.tracker import Tracker

    port = _free_port()
    return Tracker(HOST, port=port, port_end=port + 1, silent=True)


def start_server(tracker_port: int, key: str) -> Any:
    """Start a server that registers with ``key`` at the tracker; return it."""
    from tvm import rpc

    port = _free_port()
    return rpc.Server(HOST, port, port + 1, tracker_addr=(HOST, tracker_port), key=key, silent=True)
