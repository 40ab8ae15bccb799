"""Boards behind TVM's RPC tracker: how to reach one, and a compiled model that runs on it."""

from tvmopt.remote.board import Board

__all__ = ["Board"]
