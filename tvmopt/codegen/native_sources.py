"""C sources that are linked with a library: its runtime, and functions for callers in C."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

#: Prefix of the functions, compiled by TVM, that call the kernels; a pointer for each tensor.
NETWORK = "tvmopt_network_"
#: Prefix of the functions that call them with threads and workspace.
CALL = "tvmopt_call_"
_RUNTIME = Path(__file__).parent / "native" / "runtime.c"

_ENTRY = """\
int {network}({parameters});

HIDDEN int {call}({declared}) {{
  if (tvmopt_enter()) return -1;
  int code = {network}({names});
  tvmopt_leave();
  return code;
}}

__attribute__((visibility("default"))) int tvmopt_{name}(void *const *tensors) {{
  for (int i = 0; i < {count}; ++i)
    if ((uintptr_t)tensors[i] % 64) return tvmopt_misaligned();
  return {call}({arguments});
}}
"""
_FILE = """\
#include <stdint.h>
#ifdef __cplusplus
extern "C" {{
#endif
#define HIDDEN __attribute__((visibility("hidden")))
HIDDEN int tvmopt_enter(void);
HIDDEN void tvmopt_leave(void);
HIDDEN int tvmopt_misaligned(void);
HIDDEN int tvmopt_default_threads = {threads};

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
            call=CALL + name,
            count=count,
            parameters=", ".join(["void *"] * count),
            declared=", ".join(f"void *p{i}" for i in range(count)),
            names=", ".join(f"p{i}" for i in range(count)),
            arguments=", ".join(f"tensors[{i}]" for i in range(count)),
        )
        for name, count in entries.items()
    ]
    path.write_text(_FILE.format(threads=threads, entries="\n".join(parts)))
    return [_RUNTIME, path]
