"""Copy and hash large files in parts, on several cores."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

#: Bytes of a part; the last one of a file is shorter.
PART_BYTES = 8 << 20
_BUFFER_BYTES = 1 << 20
_MOST_THREADS = 8
_Result = TypeVar("_Result")


def part_hashes(file: int) -> tuple[str, ...]:
    """Return the sha256 of each part of a file, hex.

    Args:
        file: Descriptor of the file.
    """

    def digest(begin: int, end: int) -> str:
        found, buffer = hashlib.sha256(), memoryview(bytearray(min(_BUFFER_BYTES, end - begin)))
        while begin < end:
            count = _read(file, buffer[: end - begin], begin)
            found.update(buffer[:count])
            begin += count
        return found.hexdigest()

    return tuple(_each_part(os.fstat(file).st_size, digest))


def copy_parts(source: int, target: int) -> None:
    """Copy a file; both are descriptors.

    Raises:
        OSError: When reading or writing fails, or the file becomes shorter meanwhile.
    """

    def copy(begin: int, end: int) -> None:
        buffer = memoryview(bytearray(min(_BUFFER_BYTES, end - begin)))
        while begin < end:
            count = _read(source, buffer[: end - begin], begin)
            for_file = buffer[:count]
            while for_file:
                written = os.pwrite(target, for_file, begin)
                for_file = for_file[written:]
                begin += written

    size = os.fstat(source).st_size
    os.ftruncate(target, size)
    _each_part(size, copy)


def _read(file: int, buffer: memoryview, begin: int) -> int:
    """Read from position ``begin``; return the number of bytes, at least 1."""
    count = os.preadv(file, [buffer], begin)
    if not count:
        raise OSError(f"the file ended at byte {begin} while it was read")
    return count


def _each_part(size: int, work: Callable[[int, int], _Result]) -> list[_Result]:
    """Call ``work`` with the begin and end of each part, several at once."""
    begins = range(0, size, PART_BYTES)
    ends = [min(begin + PART_BYTES, size) for begin in begins]
    threads = min(len(begins), len(os.sched_getaffinity(0)), _MOST_THREADS)
    if threads < 2:
        return list(map(work, begins, ends))
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, begins, ends))
