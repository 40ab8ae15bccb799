"""TVM's RPC tracker and server on this machine.

Each gets one free port. Given a range, TVM looks for the first free port with SO_REUSEADDR set: two
test workers that look at the same time may both bind the same port, and the second then fails when
it listens.
"""

from __future__ import annotations

from typing import Any

from tests.ports import HOST, free_port


def start_tracker() -> Any:
    """Start a tracker; return it. Its ``port`` is where it listens, ``terminate()`` ends it."""
    from tvm.rpc.tracker import Tracker

    port = free_port()
    return Tracker(HOST, port=port, port_end=port + 1, silent=True)


def start_server(tracker_port: int, key: str) -> Any:
    """Start a server that registers with ``key`` at the tracker; return it."""
    from tvm import rpc

    port = free_port()
    return rpc.Server(HOST, port, port + 1, tracker_addr=(HOST, tracker_port), key=key, silent=True)
