"""Timestamps of a profiling build: the time before and after each step of ``main``.

before -> after::

    matmul(&x, &w, &y)        take_time(0); matmul(&x, &w, &y); take_time(1)
    relu(&y, &z)              take_time(2); relu(&y, &z);       take_time(3)

The kernels, their order and the memory plan are the same as without, so that caches are in the
state of a whole call. A timestamp costs about 25 ns, which lies between the kernels, not in them.
"""

from __future__ import annotations

from pathlib import Path

from tvmopt.codegen.network import (
    Branch,
    KernelCall,
    SegmentCall,
    StaticNetwork,
    Step,
    flat,
)

#: C function that stores the time at a place of the buffer.
TAKE_TIME = "tvmopt_take_time"
#: Name of a step that is no kernel.
SEGMENT_STEP, COPY_STEP = "onnxruntime", "copy"
_SOURCE = """\
#include <stdint.h>
#include <time.h>
#ifdef __cplusplus
extern "C" {{
#endif
#define HIDDEN __attribute__((visibility("hidden")))
#define EXPORTED __attribute__((visibility("default")))
/* A line for each step, in order. */
EXPORTED extern const char tvmopt_steps[];
const char tvmopt_steps[] =
{names};
/* Nanoseconds before and after each step; 0 for a step of a branch that was not taken. */
EXPORTED extern int64_t tvmopt_timestamps[];
int64_t tvmopt_timestamps[{count}];
HIDDEN int {take_time}(int place) {{
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  tvmopt_timestamps[place] = time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
  return 0;
}}
#ifdef __cplusplus
}}
#endif
"""


def timed_steps(network: StaticNetwork) -> list[Step]:
    """Return the steps that get timestamps, in order: all but the branches themselves."""
    return [step for step in flat(network.steps) if not isinstance(step, Branch)]


def write_timestamps(network: StaticNetwork, folder: Path) -> Path:
    """Write the C source of the buffer and of ``TAKE_TIME`` into ``folder``; return its path."""
    names = [_name(step) for step in timed_steps(network)]
    text = _SOURCE.format(
        names="\n".join(f'    "{name}\\n"' for name in names) or '    ""',
        count=max(1, 2 * len(names)),
        take_time=TAKE_TIME,
    )
    path = folder / "timestamps.c"
    path.write_text(text)
    return path


def _name(step: Step) -> str:
    if isinstance(step, KernelCall):
        return step.kernel
    return SEGMENT_STEP if isinstance(step, SegmentCall) else COPY_STEP
