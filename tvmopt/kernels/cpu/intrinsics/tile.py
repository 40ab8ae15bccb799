"""What a tile instruction is to a schedule: three tensor intrinsics on a block of output tiles.

A schedule zeroes the sums, multiplies step by step over the reduction, and stores. Until it stores,
the sums are in tile registers: the buffer that stands for them ("local") is never touched, and
neither it nor the tiles live longer than from zero to store, so that no other block of tiles may
come between.
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
_BYTES = 4  # what one sum takes at once
# The fields in the names that TVM knows intrinsics by, in their order.
_SHAPE = (
    "rows", "row_blocks", "column_blocks", "kbytes", "step", "line_step", "pitch", "weight_axes",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class TileIntrinsic:
    """``sums[i, j] += sum over k of data[i, k] * weight[j, k]`` for blocks of tiles.

    A block has ``row_blocks`` x ``column_blocks`` tiles of ``rows`` x 16 sums. Rows of the data may
    be anywhere, the same distance apart; the ``kbytes`` of a row that a step takes are contiguous.
    The weight is packed as ``[column blocks][...][steps of 4 bytes][16][depth]``, so that what a
    step takes of a tile is contiguous. Its first axis may be longer, as all others that are not
    the last three.

    The axes of the sums are ``(row, column)``, or ``(line, row, column)`` with ``line_step``; those
    of the data ``(row, k)``, ``(line, row, k)`` or, with ``pitch``, without the row. Neither has a
    row in a block of a single one, whose loop a schedule leaves outside. There may be more axes of
    extent 1 in front.

    Attributes:
        name: What hints, logs and errors call it.
        isa: Instruction-set family it belongs to, ``"x86_64"``.
        instruction: Mnemonic of the multiplication in the disassembly.
        features: LLVM's names of the CPU features that it needs, all of them.
        data: Type of the data.
        weight: Type of the weight.
        sums: Type of the sums.
        depth: Products that a sum takes at once: elements in 4 bytes.
        rows: Rows of a tile, 1 to 16.
        row_blocks: Tiles below each other, 1 or 2.
        column_blocks: Tiles beside each other, 1 or 2.
        kbytes: Bytes of a row that a step takes: a multiple of 4, at most 64.
        step: Distance in rows of the data from a row of the sums to the next: the stride of a
            convolution along its width.
        line_step: 0 when the second block of rows follows the first one; else they are on lines of
            an image, so many lines of the data apart: the stride along the height.
        pitch: 0, or the distance in elements from a row to the next where rows overlap and so have
            no axis of their own: few channels times the stride along the width.
        weight_axes: Axes of the weight between the column blocks and the steps, of extent 1 in a
            block: the height and width of a convolution's kernel.
        data_as: Type of the data's buffer where it is not ``data``: its ``buffer_dtype`` in the
            dtype table, which buffers inside a function must have.
        weight_as: The same for the weight.
    """

    name: str
    isa: str
    instruction: str
    features: tuple[str, ...]
    data: str
    weight: str
    sums: str
    depth: int
    rows: int = MOST_ROWS
    row_blocks: int = 2
    column_blocks: int = 2
    kbytes: int = MOST_BYTES
    step: int = 1
    line_step: int = 0
    pitch: int = 0
    weight_axes: int = 0
    data_as: str = ""
    weight_as: str = ""

    def __post_init__(self) -> None:
        _check("rows", self.rows, range(1, MOST_ROWS + 1), "1 to 16")
        _check("row_blocks", self.row_blocks, (1, 2), "1 or 2")
        _check("column_blocks", self.column_blocks, (1, 2), "1 or 2")
        allowed = range(_BYTES, MOST_BYTES + 1, _BYTES)
        _check("kbytes", self.kbytes, allowed, "a multiple of 4 up to 64")
        if self.step < 1 or min(self.line_step, self.pitch, self.weight_axes) < 0:
            raise ValueError(
                f"step must be at least 1, and line_step, pitch and weight_axes 0, but got {self}"
            )
        if self.line_step and (self.row_blocks == 1 or self.rows == 1):
            raise ValueError(
                f"line_step must come with 2 row blocks of at least 2 rows, but got "
                f"{self.row_blocks=} and {self.rows=}"
            )
        if self.pitch and self.step != 1:
            raise ValueError(f"pitch must come without step, but got {self.step=}")
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
        """Rows of sums in a block."""
        return self.rows * self.row_blocks

    @property
    def block_columns(self) -> int:
        """Columns of sums in a block."""
        return COLUMNS * self.column_blocks

    @property
    def block_k(self) -> int:
        """Elements of the reduction that a step takes."""
        return int(self.kbytes // dtypes.itemsize(self.data))

    @property
    def function(self) -> str:
        """First part of the names of the functions that do the work; says how tiles are set up."""
        shape = f"{self.row_blocks}x{self.column_blocks}"
        return f"tvmopt_amx_r{self.rows}_k{self.kbytes}_{self.instruction}_{shape}"

    @property
    def zero(self) -> str:
        """Name of the intrinsic ``sums = 0``, known to TVM from now on."""
        return self._registered("zero")

    @property
    def multiply(self) -> str:
        """Name of the intrinsic ``sums += data * weight`` of one step, known from now on."""
        return self._registered("multiply")

    @property
    def store(self) -> str:
        """Name of the intrinsic that copies the sums into a buffer, known from now on."""
        return self._registered("store")

    def register_used(self, text: str) -> None:
        """Register this intrinsic in every shape whose name stands in ``text``."""
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
    """Most bytes, as ``kbytes``, in whole steps of which ``nbytes`` can be taken; None for none."""
    steps = (s for s in range(MOST_BYTES, 0, -_BYTES) if nbytes % s == 0)
    return next(steps, None)


def _check(name: str, value: int, allowed: range | tuple[int, ...], rule: str) -> None:
    if value not in allowed:
        raise ValueError(f"{name} of a tile intrinsic must be {rule}, but got {value}")


# (line, row, column, k) -> index, of variables for the definition, of numbers for an address.
_Index = Callable[[Any, Any, Any, Any], str]


@dataclasses.dataclass(frozen=True)
class _Operand:
    """A buffer of an intrinsic as TVMScript; its parameter has the same name and an underscore."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    index: _Index
    local: bool = False  # stands for tile registers

    @property
    def region(self) -> str:
        return f"{self.name}[{', '.join(f'0:{e}' for e in self.shape)}]"

    @property
    def element(self) -> str:
        return f"{self.name}[{self.index('vl', 'vi', 'vj', 'vk')}]"

    @property
    def strides(self) -> list[str]:
        """Names of the strides of all axes but the last."""
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
        """Where a tile of it begins."""
        line, row = (row_block, 0) if tile.line_step else (0, row_block * tile.rows)
        return f"T.address_of({self.name}[{self.index(line, row, column_block * COLUMNS, 0)}])"


def _operands(tile: TileIntrinsic) -> tuple[_Operand, _Operand, _Operand, _Operand]:
    """Data, weight, sums, and the buffer they are stored to."""
    lines = (tile.row_blocks,) if tile.line_step else ()
    data_lines = ((tile.row_blocks - 1) * tile.line_step + 1,) if tile.line_step else ()
    rows = tile.rows if tile.line_step else tile.block_rows
    single = rows == 1  # TVM drops loops of extent 1
    row_shape: tuple[int, ...]
    if single:
        row_shape = (tile.block_k,)
    elif tile.pitch:
        row_shape = ((rows - 1) * tile.pitch + tile.block_k,)
    else:
        row_shape = ((rows - 1) * tile.step + 1, tile.block_k)

    def data_index(line: Any, row: Any, column: Any, k: Any) -> str:
        at_line = f"{line} * {tile.line_step}, " if tile.line_step else ""
        if single:
            return str(k)
        if tile.pitch:
            return f"{at_line}{row} * {tile.pitch} + {k}"
        return f"{at_line}{row} * {tile.step}, {k}"

    def weight_index(line: Any, row: Any, column: Any, k: Any) -> str:
        middle = "0, " * tile.weight_axes
        depth = tile.depth
        return f"{column} // {COLUMNS}, {middle}{k} // {depth}, {column} % {COLUMNS}, {k} % {depth}"

    def sums_index(line: Any, row: Any, column: Any, k: Any) -> str:
        axes = [*([line] if tile.line_step else []), *([] if single else [row]), column]
        return ", ".join(map(str, axes))

    ones = (1,) * tile.weight_axes
    weight_shape = (tile.column_blocks, *ones, tile.kbytes // _BYTES, COLUMNS, tile.depth)
    shape = (*lines, *(() if single else (rows,)), tile.block_columns)
    return (
        _Operand("A", (*data_lines, *row_shape), tile.data_as or tile.data, data_index),
        _Operand("B", weight_shape, tile.weight_as or tile.weight, weight_index),
        _Operand("C", shape, tile.sums, sums_index, local=True),
        _Operand("D", shape, tile.sums, sums_index),
    )


def _sources(tile: TileIntrinsic, part: str) -> tuple[str, str]:
    """Definition and implementation of ``part`` as TVMScript."""
    data, weight, sums, stored = _operands(tile)
    row_blocks = range(tile.row_blocks)
    loops = {"l": tile.row_blocks} if tile.line_step else {}
    loops |= {"i": sums.shape[-2]} if len(sums.shape) > 1 else {}
    loops["j"] = sums.shape[-1]
    if part == "zero":
        buffers, reads, writes = [sums], [], [sums]
        body, arguments = f"T.cast(0, '{tile.sums}')", []
    elif part == "multiply":
        buffers, reads, writes = [data, weight, sums], [sums, data, weight], [sums]
        loops["k"] = tile.block_k
        factors = _value(tile, data, tile.data), _value(tile, weight, tile.weight)
        body = f"{sums.element} + {factors[0]} * {factors[1]}"
        distance = str(tile.pitch) if tile.pitch else _distance(data, tile.step)
        arguments = [
            *(data.address(tile, block) for block in row_blocks),
            f"T.int64({int(dtypes.itemsize(tile.data))}) * T.cast({distance}, 'int64')",
            *(weight.address(tile, 0, block) for block in range(tile.column_blocks)),
        ]
    else:
        buffers, reads, writes = [sums, stored], [sums], [stored]
        body = sums.element
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
            f"        v{name} = T.axis.{'reduce' if name == 'k' else 'spatial'}({extent}, {name})"
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
    """Elements from a row to the next; a single row has none."""
    return f"{step} * {operand.strides[-1]}" if operand.strides else "0"


def _value(tile: TileIntrinsic, operand: _Operand, dtype: str) -> str:
    """An element of ``operand``, a number of ``dtype``, in the type of the sums."""
    value = operand.element
    if operand.dtype != dtype:
        value = f"T.reinterpret('{dtype}', {value})"
    return f"T.cast({value}, '{tile.sums}')"


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
