"""Hash large files in parts, on several cores."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor

#: Bytes of a part; the last one of a file is shorter.
PART_BYTES = 8 << 20
_BUFFER_BYTES = 1 << 20
_MOST_THREADS = 8


def part_hashes(file: int) -> tuple[str, ...]:
    """Return the sha256 of each part of a file, hex.

    Args:
        file: Descriptor of the file.
    """
    size = os.fstat(file).st_size
    begins = range(0, size, PART_BYTES)

    def digest(begin: int) -> str:
        found, end = hashlib.sha256(), min(begin + PART_BYTES, size)
        buffer = memoryview(bytearray(min(_BUFFER_BYTES, end - begin)))
        while begin < end:
            count = os.preadv(file, [buffer[: end - begin]], begin)
            if not count:
                raise OSError(f"the file ended at byte {begin} while it was read")
            found.update(buffer[:count])
            begin += count
        return found.hexdigest()

    threads = min(len(begins), len(os.sched_getaffinity(0)), _MOST_THREADS)
    if threads < 2:
        return tuple(map(digest, begins))
    with ThreadPoolExecutor(threads) as pool:
        return tuple(pool.map(digest, begins))
