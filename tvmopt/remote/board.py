"""Board: address of an RPC tracker and the key under which the board's server registered."""

from __future__ import annotations

import dataclasses
import re

from tvmopt.errors import ConfigError

_ADDRESS = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):(\d{1,5})")
_KEY = re.compile(r"[^\s:]{1,200}")
_RULE = "rpc_tracker must be host:port of a TVM RPC tracker, such as 127.0.0.1:9190"


@dataclasses.dataclass(frozen=True)
class Board:
    """One or several equal boards; a session takes any free one.

    Attributes:
        host: Host of the tracker.
        port: Port of the tracker.
        key: Key under which the board's server registered.
    """

    host: str
    port: int
    key: str

    @classmethod
    def parse(cls, tracker: str, key: str) -> Board | None:
        """Return the board of ``rpc_tracker`` and ``rpc_key``; None when both are empty.

        Raises:
            ConfigError: When only one is given, or one is malformed.
        """
        if not tracker and not key:
            return None
        if not tracker or not key:
            given, missing = ("rpc_key", "rpc_tracker") if key else ("rpc_tracker", "rpc_key")
            raise ConfigError(
                f"rpc_tracker and rpc_key must be given together, but got {given} alone; "
                f"add {missing}"
            )
        found = _ADDRESS.fullmatch(tracker)
        if found is None or not 0 < int(found[2]) < 65536:
            raise ConfigError(f"{_RULE}, but got {tracker!r}")
        if _KEY.fullmatch(key) is None:
            raise ConfigError(
                f"rpc_key must be one word without a colon, such as pi5, but got {key!r}"
            )
        return cls(found[1].strip("[]"), int(found[2]), key)

    @property
    def address(self) -> str:
        """``host:port`` of the tracker."""
        return f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.key} at {self.address}"
