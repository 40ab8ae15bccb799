"""TVM's tracker and RPC servers as processes of this machine, on loopback only."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.ports import HOST
from tests.rpc import start_server, start_tracker
from tvmopt.remote import Board


def keys_at(port: int) -> list[str]:
    """Return the keys of the servers that a tracker knows."""
    from tvm.rpc import base

    with socket.create_connection((HOST, port), 5) as connection:
        connection.settimeout(5)
        connection.sendall(struct.pack("<i", base.RPC_TRACKER_MAGIC))
        base.recvall(connection, 4)
        base.sendjson(connection, [base.TrackerCode.SUMMARY])
        _, summary = base.recvjson(connection)
    return [key for key, queue in summary["queue_info"].items() if queue["free"]]


def wait_for(port: int, key: str, seconds: float = 60.0) -> Board:
    """Return the board of ``key`` once it is registered and free."""
    end = time.monotonic() + seconds
    while key not in keys_at(port):
        assert time.monotonic() < end, f"{key} did not register within {seconds} s"
        time.sleep(0.1)
    return Board(HOST, port, key)


@pytest.fixture(scope="session")
def tracker() -> Iterator[int]:
    """Start a tracker; return its port."""
    started = start_tracker()
    yield started.port
    started.terminate()


@pytest.fixture(scope="session")
def serve(tracker: int) -> Iterator[Callable[[str], Board]]:
    """Start a server with a key; return its board."""
    with contextlib.ExitStack() as stack:

        def start(key: str) -> Board:
            server = start_server(tracker, key)
            stack.callback(server.terminate)
            return wait_for(tracker, key)

        yield start


@pytest.fixture(scope="session")
def own_board(serve: Callable[[str], Board]) -> Board:
    """This machine as a board."""
    return serve("own")


@pytest.fixture
def board(own_board: Board) -> Board:
    """This machine as a board, free."""
    return wait_for(own_board.port, own_board.key)


@pytest.fixture
def of_board(board: Board) -> dict[str, str]:
    """Return the parameters that select the board."""
    return {"rpc_tracker": board.address, "rpc_key": board.key}


@pytest.fixture
def broken_bundle(conv_bundle: Path, tmp_path: Path) -> Path:
    """Return a bundle with a library that no machine can load, and matching metadata."""
    import dataclasses
    import shutil

    from tvmopt.digest import sha256_file
    from tvmopt.runtime import ModelMetadata

    folder = shutil.copytree(conv_bundle, tmp_path / "broken")
    (folder / "model.so").write_bytes(b"not a library")
    metadata = ModelMetadata.read(folder)
    sha = sha256_file(folder / "model.so")
    dataclasses.replace(metadata, library_sha256=sha).write(folder)
    return folder
