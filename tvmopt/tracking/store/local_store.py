"""Detect tracking stores that only this machine can use."""

from __future__ import annotations

from pathlib import Path

import psutil

_SQLITE = "sqlite:///"
# File systems that one kernel mounts at a time; NFS, CIFS, 9p, virtiofs, FUSE and others are not.
_LOCAL = ("btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "ramfs", "tmpfs", "xfs", "zfs")


def is_local_store(uri: str) -> bool:
    """Return whether the store is a SQLite file on a local file system.

    Args:
        uri: Absolute tracking URI.
    """
    return uri.startswith(_SQLITE) and _filesystem(Path(uri.removeprefix(_SQLITE))) in _LOCAL


def _filesystem(path: Path) -> str:
    """Return the file-system type of ``path``; empty when unknown."""
    path = path.resolve()
    holding = [p for p in psutil.disk_partitions(all=True) if path.is_relative_to(p.mountpoint)]
    # the deepest mount point; of several mounts there the last, hence the reversal
    deepest = max(reversed(holding), key=lambda p: len(p.mountpoint), default=None)
    return deepest.fstype if deepest is not None else ""
