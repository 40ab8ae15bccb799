"""Boards behind TVM's RPC tracker: addresses, sessions, and compiled models that run there."""

from tvmopt.remote.board import Board

__all__ = ["Board"]
