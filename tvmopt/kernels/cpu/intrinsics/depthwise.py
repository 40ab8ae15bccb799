"""Tensor intrinsic of a tile of a depthwise convolution, with dot products over its taps."""

from __future__ import annotations

import re
from typing import TypeVar

from tvm import s_tir
from tvm.script import from_source

from tvmopt.kernels.cpu.intrinsics.depthwise_llvm import llvm_source
from tvmopt.kernels.cpu.intrinsics.depthwise_tile import DepthwiseTile
from tvmopt.kernels.cpu.intrinsics.tap_dots import tap_dot_named

_T = TypeVar("_T")
_NAME = re.compile(
    r"tvmopt_depthwise_([a-z0-9]+)_([us])8_k(\d+)x(\d+)_s(\d+)x(\d+)_r(\d+)_x(\d+)(_t)?"
)


def register_depthwise(tile: DepthwiseTile) -> tuple[str, str]:
    """Register the intrinsics of ``tile`` with TVM once.

    Returns:
        Names for ``tensorize``: of the convolution, and of the initialisation of its accumulators.
        The latter is empty code, because the convolution overwrites the accumulators.
    """
    names = tile.function, f"{tile.function}_init"
    if s_tir.TensorIntrin.get(names[0], allow_missing=True) is None:
        for name, sources in zip(names, (_convolution(tile), _init(tile)), strict=True):
            s_tir.TensorIntrin.register(name, *(from_source(source) for source in sources))
    return names


def register_used_depthwise(text: str) -> None:
    """Register the intrinsics of depthwise convolutions that ``text`` (JSON) names."""
    for match in _NAME.finditer(text):
        register_depthwise(_tile(match))


def depthwise_sources(functions: set[str]) -> list[str]:
    """Return the LLVM IR of the depthwise convolutions among ``functions``, sorted."""
    matches = (_NAME.fullmatch(function) for function in sorted(functions))
    return [llvm_source(_tile(match)) for match in matches if match is not None]


def depthwise_instruction(function: str) -> str:
    """Return the mnemonic of a depthwise function's dot product; empty for other functions."""
    match = _NAME.fullmatch(function)
    return _tile(match).dot.instruction if match is not None else ""


def _tile(match: re.Match[str]) -> DepthwiseTile:
    kh, kw, sy, sx, rows, columns = map(int, match.groups()[2:8])
    dot, signed, transposed = tap_dot_named(match[1]), match[2] == "s", match[9] is not None
    return DepthwiseTile(dot, signed, (kh, kw), (sy, sx), rows, columns, transposed)


def _buffers(tile: DepthwiseTile) -> dict[str, tuple[tuple[int, ...], str, str]]:
    """Return shape, dtype and further options of data, packed weight and accumulators."""
    lanes, taps = tile.dot.lanes, tile.dot.taps
    last = tile.kernel[1] if tile.words == 1 else taps
    data = _in_order(tile, tile.input_rows, tile.input_columns)
    return {
        "A": ((*data, lanes), "int8" if tile.signed else "uint8", ""),
        "B": ((1, tile.kernel[0], tile.words, lanes, last), "int8", ""),
        "C": ((*_in_order(tile, tile.rows, tile.columns), lanes), "int32", ', scope="local"'),
    }


def _in_order(tile: DepthwiseTile, row: _T, column: _T) -> tuple[_T, _T]:
    """Return what belongs to rows and columns of the tile in the order of the image's axes."""
    return (column, row) if tile.transposed else (row, column)


def _convolution(tile: DepthwiseTile) -> tuple[str, str]:
    """Return description and implementation as TVMScript: loops, and a call of the function."""
    (kh, kw), (sy, sx) = tile.kernel, tile.stride
    reduction = _in_order(tile, ("p", kh), ("q", kw))
    loops, at = _loops(tile, dict(reduction))
    if tile.words == 1:
        tap = f"0, {at['l']}, {at['q']}"
    else:
        taps = tile.dot.taps
        shifted = f"({at['q']} + {tile.first_tap})" if tile.first_tap else at["q"]
        tap = f"{shifted} // {taps}, {at['l']}, {shifted} % {taps}"
    pixel = _in_order(tile, f"{at['r']} * {sy} + {at['p']}", f"{at['x']} * {sx} + {at['q']}")
    total = f"C[{', '.join(_in_order(tile, at['r'], at['x']))}, {at['l']}]"
    data = f"T.cast(A[{', '.join(pixel)}, {at['l']}], 'int32')"
    product = f"{data} * T.cast(B[0, {at['p']}, {tap}], 'int32')"
    arguments = [
        "T.address_of(A[0, 0, 0])",
        *(f"T.cast({stride}, 'int64')" for stride in _in_order(tile, "a0", "a1")),
        "T.address_of(B[0, 0, 0, 0, 0])",
        "T.address_of(C[0, 0, 0])",
        *(f"T.int64(4) * T.cast({stride}, 'int64')" for stride in _in_order(tile, "c0", "c1")),
    ]
    call = f"T.call_extern('void', '{tile.function}', {', '.join(arguments)})"
    return (
        _function(tile, "CAB", [*loops, f"        {total} = {total} + {product}"]),
        _function(tile, "CAB", [f"T.evaluate({call})"], strides=True),
    )


def _init(tile: DepthwiseTile) -> tuple[str, str]:
    """Return description and implementation as TVMScript: loops, and nothing."""
    loops, at = _loops(tile, {})
    store = f"        C[{', '.join(_in_order(tile, at['r'], at['x']))}, {at['l']}] = 0"
    return _function(tile, "C", [*loops, store]), _function(tile, "C", ["T.evaluate(0)"])


def _loops(tile: DepthwiseTile, reduction: dict[str, int]) -> tuple[list[str], dict[str, str]]:
    """Return loops and block axes as TVMScript, and the index of each; TVM drops extents of 1."""
    spatial = _in_order(tile, ("r", tile.rows), ("x", tile.columns))
    extents = {**dict(spatial), "l": tile.dot.lanes, **reduction}
    loops = {name: extent for name, extent in extents.items() if extent > 1}
    lines = [
        f"for {', '.join(loops)} in T.grid({', '.join(map(str, loops.values()))}):",
        "    with T.sblock('tile'):",
    ]
    for name, extent in loops.items():
        kind = "reduce" if name in reduction else "spatial"
        lines.append(f"        v{name} = T.axis.{kind}({extent}, {name})")
    return lines, {name: f"v{name}" if name in loops else "0" for name in extents}


def _function(tile: DepthwiseTile, used: str, body: list[str], *, strides: bool = False) -> str:
    """Return a function of the buffers ``used``; the first is written, and read if not alone."""
    buffers = {name: _buffers(tile)[name] for name in sorted(used)}
    lines = []
    for name, (shape, dtype, options) in buffers.items():
        if strides:
            steps = [f"{name.lower()}{axis}" for axis in range(len(shape) - 1)]
            lines += [f"{step} = T.int32()" for step in steps]
            options += f", strides=[{', '.join([*steps, '1'])}]"
        matched = f"T.match_buffer({name}_, {shape}, '{dtype}', offset_factor=1{options})"
        lines.append(f"{name} = {matched}")
    regions = [f"{n}[{', '.join(f'0:{e}' for e in buffers[n][0])}]" for n in used]
    lines += [
        "with T.sblock('root'):",
        f"    T.reads({', '.join(regions) if len(used) > 1 else ''})",
        f"    T.writes({regions[0]})",
        *(f"    {line}" for line in body),
    ]
    return "\n".join(
        [
            "# from tvm.script import tirx as T",
            "@T.prim_func(s_tir=True)",
            f"def tile({', '.join(f'{name}_: T.handle' for name in buffers)}):",
            *(f"    {line}" for line in lines),
            "",
        ]
    )
