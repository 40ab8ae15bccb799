"""C sources that are linked with a library: its runtime, and functions for callers in C."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

#: Prefix of the functions that take one pointer for each tensor.
NETWORK = "tvmopt_network_"
_RUNTIME = Path(__file__).parent / "native" / "runtime.c"

_ENTRY = """\
int {network}({parameters});

__attribute__((visibility("default"))) int tvmopt_{name}(void *const *tensors) {{
  for (int i = 0; i < {count}; ++i)
    if ((uintptr_t)tensors[i] % 64) return tvmopt_misaligned();
  return {network}({arguments});
}}
"""
_FILE = """\
#include <stdint.h>
#ifdef __cplusplus
extern "C" {{
#endif
__attribute__((visibility("hidden"))) int tvmopt_default_threads = {threads};
__attribute__((visibility("hidden"))) int tvmopt_misaligned(void);
{entries}
#ifdef __cplusplus
}}
#endif
"""


def write_sources(entries: Mapping[str, int], threads: int, folder: Path) -> list[Path]:
    """Write the sources into ``folder``; return their paths.

    Args:
        entries: Number of tensors, inputs and outputs, of each function of the library by name.
        threads: Threads of a call.
        folder: Folder to write into.
    """
    path = folder / "entry.c"
    parts = [
        _ENTRY.format(
            name=name,
            network=NETWORK + name,
            count=count,
            parameters=", ".join(["void *"] * count),
            arguments=", ".join(f"tensors[{i}]" for i in range(count)),
        )
        for name, count in entries.items()
    ]
    path.write_text(_FILE.format(threads=threads, entries="\n".join(parts)))
    return [_RUNTIME, path]
