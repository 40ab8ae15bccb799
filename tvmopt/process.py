"""Processes that work on something shared: known for good, seen to be alive or dead."""

from __future__ import annotations

import dataclasses
import os
import platform
import time
from collections.abc import Mapping
from typing import Any

from tvmopt import host

#: Seconds without a sign of life after which a process of another machine counts as dead.
SILENT_S = 90.0


@dataclasses.dataclass(frozen=True)
class Process:
    """One process, told from any other that may get its number later.

    Attributes:
        host: Name of its machine.
        boot: Identity of that machine's boot.
        pid: Process id.
        start: Its start in clock ticks since boot.
    """

    host: str
    boot: str
    pid: int
    start: str

    @classmethod
    def own(cls) -> Process:
        """This process."""
        pid = os.getpid()
        return cls(platform.node(), host.boot_id(), pid, host.process_start(pid) or "")

    def to_dict(self) -> dict[str, Any]:
        """JSON-able form."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Process:
        """Rebuild a process from :meth:`to_dict`."""
        return cls(**data)

    def is_alive(self, last_seen: float) -> bool:
        """Whether it lives; on another machine: whether it was seen lately.

        Args:
            last_seen: Its last sign of life, in seconds since the epoch.
        """
        if self.host == platform.node():
            return self.boot == host.boot_id() and self.start == host.process_start(self.pid)
        return time.time() - last_seen < SILENT_S
