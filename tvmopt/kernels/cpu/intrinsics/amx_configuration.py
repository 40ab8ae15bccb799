"""Insert AMX tile configuration (``ldtilecfg``) and ``tilerelease`` around tile intrinsics.

Tile state is per thread, so each thread configures its tiles before its part of a parallel loop,
and releases them after it: 0.1 to 0.7 us. ``tilerelease`` lets the CPU save power and spares the
operating system 8 KB of state per context switch.
"""

from __future__ import annotations

import re

import tvm_ffi
from tvm import ir, s_tir, tirx

from tvmopt.device import dtypes
from tvmopt.kernels.cpu.intrinsics.amx import configuration, llvm_functions
from tvmopt.kernels.cpu.intrinsics.llvm_functions import import_llvm, map_stages

_CALL = re.compile(r"(tvmopt_amx_r(\d+)_k(\d+)_[a-z0-9]+_\dx\d)_(zero|multiply|store)")
# TVM launches its threads here; a parallel loop inside is divided among them.
_EACH_THREAD = "pragma_parallel_launch_point"
_PACKS = "meta_schedule.layout_rewrite_preproc"


def with_tile_configuration(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Insert tile configuration and release; define the LLVM functions of the tile intrinsics.

    Before -> after, the last pass after a schedule with a :class:`.tile.TileIntrinsic`::

        for i in T.parallel(4):
            zero(); multiply(...); store(...)

        on each thread:
            configure()
            for i in T.parallel(4):
                zero(); multiply(...); store(...)
            release()

    Without a parallel loop, configuration and release surround the whole stage. A function without
    tile intrinsics is returned unchanged.

    Args:
        func: A scheduled function with a root block.

    Returns:
        The new function.

    Raises:
        ValueError: When the intrinsics have several tile shapes. When one stage uses tiles both
            inside and outside a parallel loop. When TVM would widen the dtype of an internal buffer
            that a tile intrinsic reads.
    """
    found = [match for call in _calls(func.body) if (match := _match(call)) is not None]
    functions = sorted({match[1] for match in found})
    shapes = sorted({(int(match[2]), int(match[3])) for match in found})
    if not shapes:
        return func
    if len(shapes) > 1:
        got = ", ".join(f"{rows} rows and {kbytes} bytes" for rows, kbytes in shapes)
        raise ValueError(
            f"a function must use tiles of one shape, since they are set up once, but got {got}; "
            "choose rows and kbytes that all its intrinsics share"
        )
    _check_widened(func)
    name = "tvmopt_amx_configure_r{}_k{}".format(*shapes[0])
    sources = [llvm_functions(function) for function in functions]
    sources.append(_configure(name, configuration(*shapes[0])))
    return map_stages(func, lambda stage: _configured(stage, name, sources))


def tile_instruction(function: str) -> str:
    """Return the tile-multiply mnemonic of a function of :mod:`.amx`; empty for other functions."""
    match = _CALL.fullmatch(function)
    return match[1].split("_")[-2] if match else ""


def _calls(stmt: tirx.Stmt) -> list[ir.Call]:
    """Return the calls of tile functions."""
    calls: list[ir.Call] = []

    def on_call(call: ir.Call) -> None:
        if _match(call) is not None:
            calls.append(call)

    tvm_ffi.structural_walk(stmt, (ir.Call, on_call), order="post")
    return calls


def _match(call: ir.Call) -> re.Match[str] | None:
    first = call.args[0] if len(call.args) else None
    return _CALL.fullmatch(first.value) if isinstance(first, ir.StringImm) else None


def _configured(stage: tirx.Stmt, name: str, sources: list[str]) -> tirx.Stmt:
    uses = len(_calls(stage))
    if not uses:
        return stage
    inside = 0

    def on_for(loop: tirx.For) -> tirx.Stmt:
        nonlocal inside
        if loop.kind != tirx.ForKind.PARALLEL or not _calls(loop.body):
            return loop
        inside += len(_calls(loop.body))
        configured = _around(loop, name)
        if tvm_ffi.structural_equal(loop.extent, tirx.IntImm(str(loop.extent.ty.dtype), 1)):
            return configured  # TVM removes the loop, and launches no threads without one
        zero = tirx.IntImm("int32", 0)
        return tirx.AttrStmt(zero, _EACH_THREAD, zero, configured)

    mapped = tvm_ffi.structural_map(stage, (tirx.For, on_for), order="post")
    if inside == 0:
        mapped = _around(stage, name)
    elif inside != uses:
        raise ValueError(
            "a stage must use tiles either in one parallel loop or in none, since each thread has "
            f"its own, but {inside} of {uses} uses are in parallel loops"
        )
    # The pragma of the definitions also keeps the stage one statement.
    return import_llvm(mapped, sources)


def _around(body: tirx.Stmt, name: str) -> tirx.Stmt:
    return tirx.SeqStmt([_call(name), body, _call(f"{name}_release")])


def _call(name: str) -> tirx.Stmt:
    return tirx.Evaluate(tirx.call_extern("void", name))


def _configure(name: str, data: bytes) -> str:
    """Return the LLVM IR of the functions that configure and release the tiles."""
    text = "".join(f"\\{byte:02x}" for byte in data)
    return f"""
@{name}_bytes = linkonce_odr hidden constant [64 x i8] c"{text}", align 64
declare void @llvm.x86.ldtilecfg(ptr)
declare void @llvm.x86.tilerelease()

define linkonce_odr void @{name}() #0 {{
  call void @llvm.x86.ldtilecfg(ptr @{name}_bytes)
  ret void
}}

define linkonce_odr void @{name}_release() #0 {{
  call void @llvm.x86.tilerelease()
  ret void
}}

attributes #0 = {{ alwaysinline nounwind }}
"""


def _check_widened(func: tirx.PrimFunc) -> None:
    """Reject an internal buffer that TVM would widen, because the intrinsic uses its address.

    Buffers of weight-prepacking blocks leave the function before TVM widens dtypes, so they may
    keep theirs.

    Raises:
        ValueError: When there is such a buffer.
    """
    outside = list(func.params)
    viewed: list[s_tir.MatchBufferRegion] = []

    def on_block(block: s_tir.SBlock) -> None:
        viewed.extend(block.match_buffers)
        if _PACKS in block.annotations:
            outside.extend(region.source for region in block.writes)

    tvm_ffi.structural_walk(func.body, (s_tir.SBlock, on_block), order="post")
    loads: list[ir.TensorLoad] = []
    for call in _calls(func.body):
        tvm_ffi.structural_walk(call, (ir.TensorLoad, loads.append), order="post")
    for load in loads:
        sources = [view.source.source for view in viewed if view.buffer.same_as(load.source)]
        buffer = sources[0] if sources else load.source
        row = dtypes.dtype(str(buffer.dtype))
        if row.buffer_dtype and not any(buffer.same_as(b) for b in outside):
            raise ValueError(
                f"{row.name} in a buffer inside the function must be kept as {row.buffer_dtype}, "
                f"since TVM widens it to float32, but {buffer.name} is not; "
                f"give data_as='{row.buffer_dtype}'"
            )
