"""Set up AMX's tiles before they are used, and give them back afterwards.

Each thread has its own tiles, so this is done inside a parallel loop, in every pass of it (80 ns):
such a loop should have few passes. Giving tiles back lets the CPU save power, and spares the
operating system from saving 8 KB whenever it switches threads.
"""

from __future__ import annotations

import re

import tvm_ffi
from tvm import ir, s_tir, tirx

from tvmopt.device import dtypes
from tvmopt.kernels.cpu.intrinsics.amx import configuration, llvm_functions
from tvmopt.kernels.cpu.intrinsics.llvm_functions import import_llvm, map_stages

_CALL = re.compile(r"(tvmopt_amx_r(\d+)_k(\d+)_[a-z0-9]+_\dx\d)_(zero|multiply|store)")
_PACKS = "meta_schedule.layout_rewrite_preproc"


def with_tile_configuration(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Configure tiles around what uses them, and define the functions that use them.

    Before -> after, the last step of a schedule with a :class:`~tvmopt.intrin.TileIntrinsic`::

        for i in T.parallel(4):
            zero(); multiply(...); store(...)

        for i in T.parallel(4):
            configure(); zero(); multiply(...); store(...); release()

    Without a parallel loop it goes around the whole stage. A function that uses no tiles is
    returned as it is.

    Args:
        func: A scheduled function with a root block.

    Raises:
        ValueError: When intrinsics of several shapes are used, tiles are used in and beside a
            parallel loop of one stage, or a buffer inside the function whose dtype TVM widens.
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
    """Mnemonic that a function of :mod:`.amx` multiplies with; empty for any other function."""
    match = _CALL.fullmatch(function)
    return match[1].split("_")[-2] if match else ""


def _calls(stmt: tirx.Stmt) -> list[ir.Call]:
    """The calls of functions that use tiles."""
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

    def on_for(loop: tirx.For) -> tirx.For:
        nonlocal inside
        if loop.kind != tirx.ForKind.PARALLEL or not _calls(loop.body):
            return loop
        inside += len(_calls(loop.body))
        return tirx.For(
            loop.loop_var,
            loop.min,
            loop.extent,
            loop.kind,
            _around(loop.body, name),
            loop.thread_binding,
            loop.annotations,
            loop.step,
        )

    mapped = tvm_ffi.structural_map(stage, (tirx.For, on_for), order="post")
    if inside == 0:
        mapped = _around(stage, name)
    elif inside != uses:
        raise ValueError(
            "a stage must use tiles either in one parallel loop or in none, since each thread has "
            f"its own, but {inside} of {uses} uses are in parallel loops"
        )
    # The definitions also hold the calls around a stage together: it stays one statement.
    return import_llvm(mapped, sources)


def _around(body: tirx.Stmt, name: str) -> tirx.Stmt:
    return tirx.SeqStmt([_call(name), body, _call(f"{name}_release")])


def _call(name: str) -> tirx.Stmt:
    return tirx.Evaluate(tirx.call_extern("void", name))


def _configure(name: str, data: bytes) -> str:
    """LLVM source of a function that sets tiles up, and of one that gives them back."""
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
    """Refuse a buffer inside a function that TVM would widen, behind the back of a pointer.

    What packs weights is taken out of the function before that, and so may keep its type.
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
