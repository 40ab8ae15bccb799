"""C source of the functions that call a library's networks: its tensors, sizes and segments."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from tvm import relax

from tvmopt.codegen.network import SegmentCall, StaticNetwork
from tvmopt.codegen.weights import WEIGHTS_SYMBOL
from tvmopt.runtime.executor import MAIN
from tvmopt.runtime.fallback import FALLBACK
from tvmopt.runtime.sizes import of_size

#: Prefix of the functions, compiled by TVM, that call the kernels; a pointer for each tensor.
NETWORK = "tvmopt_network_"
#: Prefix of the functions that call them with threads and workspace.
CALL = "tvmopt_call_"
#: Prefix of the functions that run a segment in ONNX Runtime; offset of its model, extents follow.
SEGMENT = "tvmopt_segment_"
_RUN_NAME = "tvmopt_run"
_ENTRY = """\
int {network}({parameters});

HIDDEN int {call}({declared}) {{
  if (tvmopt_enter()) return -1;
  int code = {network}({names});
  tvmopt_leave();
  return code;
}}

EXPORTED int tvmopt_{name}(void *const *tensors) {{
  for (int i = 0; i < {count}; ++i)
    if ((uintptr_t)tensors[i] % 64) return tvmopt_misaligned();
  return {call}({arguments});
}}
"""
_RUN = """\
EXPORTED int {run}(void *const *tensors) {{
  (void)holds_nan16, (void)holds_nan32, (void)holds_nan64;
  int code = tvmopt_{main}(tensors);
  return code || !({any_nan}) ? code : {direct};
}}
"""
_SEGMENT = """\
HIDDEN int {function}({declared}) {{
  void *tensors[] = {{{names}}};
  return tvmopt_run_segment({number}, tensors);
}}
"""
_FILE = """\
#include <stdint.h>
#ifdef __cplusplus
extern "C" {{
#endif
#define HIDDEN __attribute__((visibility("hidden")))
#define EXPORTED __attribute__((visibility("default")))
HIDDEN int tvmopt_enter(void);
HIDDEN void tvmopt_leave(void);
HIDDEN int tvmopt_misaligned(void);
HIDDEN int tvmopt_default_threads = {threads};
EXPORTED extern const char tvmopt_tensors[];
const char tvmopt_tensors[] =
{tensors};
/* Tensors of each further size, and the function of each size. */
HIDDEN extern const char tvmopt_more_tensors[];
const char tvmopt_more_tensors[] =
{more_tensors};
{declared_runs}
HIDDEN extern int (*const tvmopt_runs[])(void *const *);
int (*const tvmopt_runs[])(void *const *) = {{{runs_of_sizes}}};

/* Segments that ONNX Runtime runs, and where their models are. */
HIDDEN extern const char {weights}[];
HIDDEN int tvmopt_run_segment(int number, void *const *tensors);
EXPORTED extern const char tvmopt_segments[];
const char tvmopt_segments[] =
{segments};
EXPORTED const void *tvmopt_segment_model(int number) {{
  static const uint64_t offsets[] = {{{offsets}}};
  return {weights} + offsets[number];
}}
{stubs}
{entries}
/* Whether a float of a tensor is NaN: all bits of its exponent are set, and one of its mantissa. */
#define HOLDS_NAN(bits, exponent) \\
  static int holds_nan##bits(const void *data, long count) {{ \\
    const uint##bits##_t *values = (const uint##bits##_t *)data; \\
    int found = 0; \\
    for (long i = 0; i < count; ++i) found |= (uint##bits##_t)(values[i] << 1) > exponent; \\
    return found; \\
  }}
HOLDS_NAN(16, 0xf800u)
HOLDS_NAN(32, 0xff000000u)
HOLDS_NAN(64, 0xffe0000000000000u)

/* Run the model; where its Winograd convolutions give NaN, with direct convolutions. */
{runs}
#ifdef __cplusplus
}}
#endif
"""
_FLOAT_BITS = {"float16": 16, "float32": 32, "float64": 64}


def write_entry(entries: Mapping[str, StaticNetwork], threads: int, folder: Path) -> Path:
    """Write the C source of a library's own functions into ``folder``; return its path.

    Args:
        entries: Network of each function of the library by name.
        threads: Threads of a call.
        folder: Folder to write into.
    """
    path = folder / "entry.c"
    networks = list(entries.values())
    count = len(networks[0].inputs) + len(networks[0].outputs)
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
        for name in entries
    ]
    sizes = [size for size in range(len(entries)) if of_size(MAIN, size) in entries]
    runs = [of_size(_RUN_NAME, size) for size in sizes]
    # Two functions share a segment's model, if its inputs and outputs are equal, too.
    calls = {segment_name(call): call for network in networks for call in network.segments()}
    text = _FILE.format(
        threads=threads,
        tensors=_tensors(entries[MAIN]),
        more_tensors="\n".join(_tensors(entries[of_size(MAIN, n)]) for n in sizes[1:]) or '    ""',
        declared_runs="\n".join(f"EXPORTED int {run}(void *const *tensors);" for run in runs),
        runs_of_sizes=", ".join(runs),
        weights=WEIGHTS_SYMBOL,
        segments="\n".join(map(_segment, calls.values())) or '    ""',
        offsets=", ".join(str(call.model.offset) for call in calls.values()) or "0",
        stubs="\n".join(_stub(n, call) for n, call in enumerate(calls.values())),
        entries="\n".join(parts),
        runs="\n".join(_run(entries, size) for size in sizes),
    )
    path.write_text(text)
    return path


def segment_name(call: SegmentCall) -> str:
    """Return the name of the function that runs a segment in ONNX Runtime."""
    extents = "_".join(_extents(ty).replace(" ", "x") for ty in call.types)
    return f"{SEGMENT}{call.model.offset}_{extents}"


def _run(entries: Mapping[str, StaticNetwork], size: int) -> str:
    """Return C code of the function that runs a size."""
    main, direct = of_size(MAIN, size), of_size(FALLBACK, size)
    has_direct = direct in entries
    return _RUN.format(
        run=of_size(_RUN_NAME, size),
        main=main,
        any_nan=_any_nan(entries[main]) if has_direct else "0",
        direct=f"tvmopt_{direct}(tensors)" if has_direct else "0",
    )


def _any_nan(network: StaticNetwork) -> str:
    """Return C code that finds out whether an output holds NaN."""
    first = len(network.inputs)
    tests = [
        f"holds_nan{_FLOAT_BITS[str(ty.dtype)]}(tensors[{first + i}], {_elements(ty)})"
        for i, ty in enumerate(network.outputs)
        if str(ty.dtype) in _FLOAT_BITS
    ]
    return " || ".join(tests) or "0"


def _elements(ty: relax.TensorType) -> int:
    return math.prod(int(extent) for extent in ty.shape.values)


def _stub(number: int, call: SegmentCall) -> str:
    """Return C code of the function that runs a segment."""
    count = len(call.arguments)
    return _SEGMENT.format(
        function=segment_name(call),
        declared=", ".join(f"void *p{i}" for i in range(count)),
        names=", ".join(f"p{i}" for i in range(count)),
        number=number,
    )


def _segment(call: SegmentCall) -> str:
    """Return C string literals with the bytes of a segment's model, and a line for each tensor."""
    lines = [f'    "segment {call.model_bytes}\\n"', *(_line("tensor", ty) for ty in call.types)]
    return "\n".join(lines)


def _tensors(network: StaticNetwork) -> str:
    """Return C string literals with a line for each input and output."""
    sides = [("input", network.inputs), ("output", network.outputs)]
    return "\n".join(_line(side, ty) for side, types in sides for ty in types)


def _line(kind: str, ty: relax.TensorType) -> str:
    """Return a C string literal of a tensor: its kind, dtype, rank, extents."""
    return f'    "{kind} {ty.dtype} {len(ty.shape.values)}{_extents(ty)}\\n"'


def _extents(ty: relax.TensorType) -> str:
    return "".join(f" {int(extent)}" for extent in ty.shape.values)
