"""TileIntrinsic: an AMX tile multiply as three tensor intrinsics (zero, multiply, store).

A schedule zeroes the accumulators, multiplies in K steps, and stores. The accumulators live in tile
registers from zero to store; their buffer (scope ``local``) is a placeholder that no code accesses.
No other block of tiles may run in between.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

from tvm import s_tir
from tvm.script import from_source

from tvmopt.device import dtypes

MOST_ROWS = 16
MOST_BYTES = 64
COLUMNS = 16
_BYTES = 4  # bytes of K per accumulator and multiply
# The fields in an intrinsic's registered name, in order.
_SHAPE = (
    "rows", "row_blocks", "column_blocks", "kbytes", "step", "line_step", "taps", "weight_axes",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class TileIntrinsic:
    """Tile multiply ``accumulator[i, j] += sum over k of data[i, k] * weight[j, k]``.

    A block has ``row_blocks`` x ``column_blocks`` tiles of ``rows`` x 16 accumulators. Rows of the
    data have a constant stride; the ``kbytes`` of K within a row are contiguous. The packed weight
    has the layout ``[column blocks][...][K in groups of 4 bytes][16][depth]``, so that a K step of
    a tile is contiguous. All axes but the last three may be longer in the whole weight. One tile::

        accumulators            data                weight, one row per 4 bytes of K
        row 0  |16 columns|     row 0  |kbytes|     k 0  |16 columns x depth|
        row 1  |16 columns|     row 1  |kbytes|     k 1  |16 columns x depth|
          ...                     ...                 ...

    The accumulators have axes ``(row, column)``, or ``(line, row, column)`` with ``line_step``. The
    data has axes ``(row, k)`` or ``(line, row, k)``; with ``taps``, K has two axes, ``(tap, k)``,
    and the tap moves along the data's rows. A block of one row has no row axis; its loop stays
    outside. Further axes of extent 1 may come first.

    Attributes:
        name: Name in hints, logs and errors.
        isa: Instruction-set architecture, ``"x86_64"``.
        instruction: Mnemonic of the tile multiply in the disassembly.
        features: Required CPU features, in LLVM's names.
        data: Dtype of the data.
        weight: Dtype of the weight.
        accumulator: Dtype of the accumulators.
        depth: K granularity: elements in 4 bytes.
        rows: Rows of a tile, 1 to 16.
        row_blocks: Tiles along the rows, 1 or 2.
        column_blocks: Tiles along the columns, 1 or 2.
        kbytes: K step: bytes of a row per multiply, a multiple of 4, at most 64.
        step: Stride from one accumulator row to the next, in rows of the data: the stride of a
            convolution along the width.
        line_step: 0 if the second row block continues the first. Otherwise the row blocks lie on
            two image lines, and this is their distance in lines of the data: the stride of a
            convolution along the height.
        taps: 0, or the number of neighbouring columns of a convolution kernel in a K step. Their
            data is contiguous where a K step has all channels: few channels fill a tile.
        weight_axes: Number of weight axes between the column blocks and K, of extent 1 in a block:
            height and width of a convolution kernel.
        data_as: Dtype of the data's buffer if it differs from ``data``: the ``buffer_dtype`` of the
            dtype table, which buffers inside a function must have.
        weight_as: Dtype of the weight's buffer if it differs from ``weight``, likewise.
    """

    name: str
    isa: str
    instruction: str
    features: tuple[str, ...]
    data: str
    weight: str
    accumulator: str
    depth: int
    rows: int = MOST_ROWS
    row_blocks: int = 2
    column_blocks: int = 2
    kbytes: int = MOST_BYTES
    step: int = 1
    line_step: int = 0
    taps: int = 0
    weight_axes: int = 0
    data_as: str = ""
    weight_as: str = ""

    def __post_init__(self) -> None:
        _check("rows", self.rows, range(1, MOST_ROWS + 1), "1 to 16")
        _check("row_blocks", self.row_blocks, (1, 2), "1 or 2")
        _check("column_blocks", self.column_blocks, (1, 2), "1 or 2")
        allowed = range(_BYTES, MOST_BYTES + 1, _BYTES)
        _check("kbytes", self.kbytes, allowed, "a multiple of 4 up to 64")
        if self.step < 1 or min(self.line_step, self.taps, self.weight_axes) < 0:
            raise ValueError(
                f"step must be at least 1, and line_step, taps and weight_axes 0, but got {self}"
            )
        if self.line_step and (self.row_blocks == 1 or self.rows == 1):
            raise ValueError(
                f"line_step must come with 2 row blocks of at least 2 rows, but got "
                f"{self.row_blocks=} and {self.rows=}"
            )
        if self.taps and self.kbytes % (_BYTES * self.taps):
            raise ValueError(
                f"kbytes must be whole groups of {_BYTES} for each tap, but got {self.kbytes=} for "
                f"{self.taps=}"
            )
        for stored, dtype in ((self.data_as, self.data), (self.weight_as, self.weight)):
            if stored and stored != dtypes.dtype(dtype).buffer_dtype:
                rule = " and ".join(
                    f"{row.name} can be kept as {row.buffer_dtype}"
                    for row in dtypes.DTYPES.values()
                    if row.buffer_dtype
                )
                raise ValueError(f"only {rule}, but got {dtype} {stored=}")

    @property
    def block_rows(self) -> int:
        """Accumulator rows of a block."""
        return self.rows * self.row_blocks

    @property
    def block_columns(self) -> int:
        """Accumulator columns of a block."""
        return COLUMNS * self.column_blocks

    @property
    def block_k(self) -> int:
        """Elements of K per step."""
        return int(self.kbytes // dtypes.itemsize(self.data))

    @property
    def tap_k(self) -> int:
        """Elements of K of a tap, or of a step without taps."""
        return self.block_k // max(1, self.taps)

    @property
    def function(self) -> str:
        """Name prefix of the LLVM functions; encodes the tile configuration."""
        shape = f"{self.row_blocks}x{self.column_blocks}"
        return f"tvmopt_amx_r{self.rows}_k{self.kbytes}_{self.instruction}_{shape}"

    @property
    def zero(self) -> str:
        """Name of the intrinsic ``accumulator = 0``; registers it with TVM."""
        return self._registered("zero")

    @property
    def multiply(self) -> str:
        """Name of the intrinsic ``accumulator += data * weight`` of a K step; registers it."""
        return self._registered("multiply")

    @property
    def store(self) -> str:
        """Name of the intrinsic that stores the accumulators; registers it with TVM."""
        return self._registered("store")

    def register_used(self, text: str) -> None:
        """Register this intrinsic in every shape that ``text`` (JSON) names."""
        shape = r"(\d+(?:_\d+){7})"
        pattern = rf'"{re.escape(self.name)}\.{shape}(d?)(w?)\.(zero|multiply|store)"'
        for sizes, data, weight, part in set(re.findall(pattern, text)):
            fields: dict[str, Any] = dict(zip(_SHAPE, map(int, sizes.split("_")), strict=True))
            fields["data_as"] = dtypes.dtype(self.data).bits_dtype if data else ""
            fields["weight_as"] = dtypes.dtype(self.weight).bits_dtype if weight else ""
            dataclasses.replace(self, **fields)._registered(part)

    def _registered(self, part: str) -> str:
        definition, implementation = _sources(self, part)
        shape = "_".join(str(getattr(self, name)) for name in _SHAPE)
        bits = ("d" if self.data_as else "") + ("w" if self.weight_as else "")
        name = f"{self.name}.{shape}{bits}.{part}"
        if s_tir.TensorIntrin.get(name, allow_missing=True) is None:
            s_tir.TensorIntrin.register(name, from_source(definition), from_source(implementation))
        return name


def largest_step(nbytes: int) -> int | None:
    """Return the largest valid ``kbytes`` that divides ``nbytes`` of K; None if there is none."""
    steps = (s for s in range(MOST_BYTES, 0, -_BYTES) if nbytes % s == 0)
    return next(steps, None)


def _check(name: str, value: int, allowed: range | tuple[int, ...], rule: str) -> None:
    if value not in allowed:
        raise ValueError(f"{name} of a tile intrinsic must be {rule}, but got {value}")


# (line, row, column, tap, k) -> index: variables in the description, numbers in an address.
_Index = Callable[[Any, Any, Any, Any, Any], str]


@dataclasses.dataclass(frozen=True)
class _Operand:
    """A buffer of an intrinsic in TVMScript; its parameter's name ends with an underscore."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    index: _Index
    local: bool = False  # placeholder for tile registers

    @property
    def region(self) -> str:
        return f"{self.name}[{', '.join(f'0:{e}' for e in self.shape)}]"

    @property
    def element(self) -> str:
        return f"{self.name}[{self.index('vl', 'vi', 'vj', 'vt', 'vk')}]"

    @property
    def strides(self) -> list[str]:
        """Names of the stride variables, for all axes but the last."""
        return [f"{self.name.lower()}{axis}" for axis in range(len(self.shape) - 1)]

    def matched(self, with_strides: bool) -> list[str]:
        options = ', scope="local"' if self.local else ""
        lines = []
        if with_strides and not self.local:
            lines = [f"{stride} = T.int32()" for stride in self.strides]
            options += f", strides=[{', '.join([*self.strides, '1'])}]"
        matched = f"T.match_buffer({self.name}_, {self.shape}, '{self.dtype}', offset_factor=1"
        return [*lines, f"{self.name} = {matched}{options})"]

    def address(self, tile: TileIntrinsic, row_block: int, column_block: int = 0) -> str:
        """Return the TVMScript address of a tile's first element."""
        line, row = (row_block, 0) if tile.line_step else (0, row_block * tile.rows)
        return f"T.address_of({self.name}[{self.index(line, row, column_block * COLUMNS, 0, 0)}])"


def _operands(tile: TileIntrinsic) -> tuple[_Operand, _Operand, _Operand, _Operand]:
    """Return data, weight, accumulators, and the destination of the store."""
    lines = (tile.row_blocks,) if tile.line_step else ()
    data_lines = ((tile.row_blocks - 1) * tile.line_step + 1,) if tile.line_step else ()
    rows = tile.rows if tile.line_step else tile.block_rows
    single = rows == 1  # TVM drops loops of extent 1
    # Rows of the data that a block reads; TVM drops an axis of extent 1.
    reach = (rows - 1) * tile.step + max(1, tile.taps)
    row_shape = (tile.tap_k,) if reach == 1 else (reach, tile.tap_k)

    def data_index(line: Any, row: Any, column: Any, tap: Any, k: Any) -> str:
        at_line = f"{line} * {tile.line_step}, " if tile.line_step else ""
        if reach == 1:
            return str(k)
        at_row = [*([] if single else [f"{row} * {tile.step}"]), *([tap] if tile.taps else [])]
        return f"{at_line}{' + '.join(map(str, at_row))}, {k}"

    def weight_index(line: Any, row: Any, column: Any, tap: Any, k: Any) -> str:
        middle = "0, " * (tile.weight_axes - bool(tile.taps)) + f"{tap}, " * bool(tile.taps)
        depth = tile.depth
        return f"{column} // {COLUMNS}, {middle}{k} // {depth}, {column} % {COLUMNS}, {k} % {depth}"

    def sums_index(line: Any, row: Any, column: Any, tap: Any, k: Any) -> str:
        axes = [*([line] if tile.line_step else []), *([] if single else [row]), column]
        return ", ".join(map(str, axes))

    kernel = (1,) * tile.weight_axes
    if tile.taps:
        kernel = (*kernel[:-1], tile.taps)
    weight_shape = (tile.column_blocks, *kernel, tile.tap_k // tile.depth, COLUMNS, tile.depth)
    shape = (*lines, *(() if single else (rows,)), tile.block_columns)
    return (
        _Operand("A", (*data_lines, *row_shape), tile.data_as or tile.data, data_index),
        _Operand("B", weight_shape, tile.weight_as or tile.weight, weight_index),
        _Operand("C", shape, tile.accumulator, sums_index, local=True),
        _Operand("D", shape, tile.accumulator, sums_index),
    )


def _sources(tile: TileIntrinsic, part: str) -> tuple[str, str]:
    """Return description and implementation of ``part`` as TVMScript."""
    data, weight, accumulator, stored = _operands(tile)
    row_blocks = range(tile.row_blocks)
    loops = {"l": tile.row_blocks} if tile.line_step else {}
    loops |= {"i": accumulator.shape[-2]} if len(accumulator.shape) > 1 else {}
    loops["j"] = accumulator.shape[-1]
    if part == "zero":
        buffers, reads, writes = [accumulator], [], [accumulator]
        body, arguments = f"T.cast(0, '{tile.accumulator}')", []
    elif part == "multiply":
        buffers, reads, writes = (
            [data, weight, accumulator],
            [accumulator, data, weight],
            [accumulator],
        )
        loops |= {"t": tile.taps} if tile.taps else {}
        loops["k"] = tile.tap_k
        factors = _value(tile, data, tile.data), _value(tile, weight, tile.weight)
        body = f"{accumulator.element} + {factors[0]} * {factors[1]}"
        distance = _distance(data, tile.step)
        arguments = [
            *(data.address(tile, block) for block in row_blocks),
            f"T.int64({int(dtypes.itemsize(tile.data))}) * T.cast({distance}, 'int64')",
            *(weight.address(tile, 0, block) for block in range(tile.column_blocks)),
        ]
    else:
        buffers, reads, writes = [accumulator, stored], [accumulator], [stored]
        body = accumulator.element
        arguments = [
            *(stored.address(tile, block) for block in row_blocks),
            f"T.int64({_BYTES}) * T.cast({_distance(stored, 1)}, 'int64')",
        ]
    regions = [
        f"T.reads({', '.join(b.region for b in reads)})",
        f"T.writes({', '.join(b.region for b in writes)})",
    ]
    nest = [
        f"for {', '.join(loops)} in T.grid({', '.join(map(str, loops.values()))}):",
        "    with T.sblock('tile'):",
        *(
            f"        v{name} = T.axis.{'reduce' if name in 'tk' else 'spatial'}({extent}, {name})"
            for name, extent in loops.items()
        ),
        f"        {writes[0].element} = {body}",
    ]
    call = ", ".join(["'void'", f"'{tile.function}_{part}'", *arguments])
    return (
        _function(buffers, False, [*regions, *nest]),
        _function(buffers, True, [*regions, f"T.evaluate(T.call_extern({call}))"]),
    )


def _distance(operand: _Operand, step: int) -> str:
    """Return the row stride in elements, as an expression; ``"0"`` for a single row."""
    return f"{step} * {operand.strides[-1]}" if operand.strides else "0"


def _value(tile: TileIntrinsic, operand: _Operand, dtype: str) -> str:
    """Return an element of ``operand``, of dtype ``dtype``, cast to the accumulator dtype."""
    value = operand.element
    if operand.dtype != dtype:
        value = f"T.reinterpret('{dtype}', {value})"
    return f"T.cast({value}, '{tile.accumulator}')"


def _function(buffers: list[_Operand], with_strides: bool, body: list[str]) -> str:
    lines = [
        "# from tvm.script import tirx as T",
        "@T.prim_func(s_tir=True)",
        f"def tile({', '.join(f'{b.name}_: T.handle' for b in buffers)}):",
        *(f"    {line}" for b in buffers for line in b.matched(with_strides)),
        "    with T.sblock('root'):",
        *(f"        {line}" for line in body),
    ]
    return "\n".join(lines) + "\n"
