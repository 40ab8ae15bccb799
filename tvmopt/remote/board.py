"""Where a board is: the tracker that knows it, and the key it registered under."""

from __future__ import annotations

import dataclasses
import re

from tvmopt.errors import ConfigError

_ADDRESS = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):(\d{1,5})")
_KEY = re.compile(r"[^\s:]{1,200}")
_RULE = "rpc_tracker must be host:port of a TVM RPC tracker, such as 127.0.0.1:9190"


@dataclasses.dataclass(frozen=True)
class Board:
    """A kind of board; any free one of its key is taken.

    Attributes:
        host: Host of the tracker.
        port: Port of the tracker.
        key: Key that the board's server registered under.
    """

    host: str
    port: int
    key: str

    @classmethod
    def parse(cls, tracker: str, key: str) -> Board | None:
        """The board of these two parameters; None when both are empty.

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
