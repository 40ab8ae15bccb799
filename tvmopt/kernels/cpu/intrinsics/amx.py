"""Intel AMX: eight tile registers of up to 16 rows of 64 bytes, and tile multiply instructions.

A block of 2 x 2 accumulator tiles, two data tiles and two weight tiles fill the registers; each
loaded tile is used twice. Integer accumulators wrap around. bfloat16 accumulators round to nearest
even and flush denormals; the even and the odd products of a step are summed separately.

The instructions are inline assembly in LLVM IR functions. LLVM's intrinsics are not usable: for
some CPUs the post-RA scheduler renames tile registers as if all had one shape. The CPU then faults
on the tile multiply (seen with LLVM 22 and ``znver4``).
"""

from __future__ import annotations

from tvmopt.device import dtypes
from tvmopt.kernels.cpu.intrinsics.tile import TileIntrinsic

_SUMS = (0, 1, 2, 3)
_DATA = (4, 5)
_WEIGHT = (6, 7)


def _amx(name: str, instruction: str, data: str, weight: str) -> TileIntrinsic:
    row = dtypes.dtype(data)
    return TileIntrinsic(
        name=f"tvmopt.amx_{name}",
        isa="x86_64",
        instruction=instruction,
        features=("amx-bf16",) if row.is_float else ("amx-int8",),
        data=data,
        weight=weight,
        accumulator=row.accumulator,
        depth=row.dot_k,
    )


AMX = (
    _amx("u8s8", "tdpbusd", "uint8", "int8"),
    _amx("s8s8", "tdpbssd", "int8", "int8"),
    _amx("u8u8", "tdpbuud", "uint8", "uint8"),
    _amx("s8u8", "tdpbsud", "int8", "uint8"),
    _amx("bf16", "tdpbf16ps", "bfloat16", "bfloat16"),
)


def llvm_functions(function: str) -> str:
    """Return the LLVM IR of the functions of a tile intrinsic.

    Args:
        function: ``TileIntrinsic.function``, the prefix of the function names; the suffixes are
            ``_zero``, ``_multiply`` and ``_store``.
    """
    instruction, shape = function.split("_")[-2:]
    row_blocks, column_blocks = (int(part) for part in shape.split("x"))
    tiles = [(r, c) for r in range(row_blocks) for c in range(column_blocks)]
    sums = dict(zip(tiles, _SUMS, strict=False))
    zero = [f'call void asm sideeffect "tilezero %tmm{sums[tile]}", ""()' for tile in tiles]
    store = []
    # Load tiles in the order of first use, so that the multiplies start early.
    multiply = []
    for r, c in tiles:
        store += [
            f"%d{r}{c} = getelementptr i8, ptr %d{r}, i64 {64 * c}",
            _move(f"tilestored %tmm{sums[r, c]}, ($0,$1)", f"%d{r}{c}", "%stride"),
        ]
        if r == 0:
            multiply.append(_move(f"tileloadd ($0,$1), %tmm{_WEIGHT[c]}", f"%b{c}", "64"))
        if c == 0:
            multiply.append(_move(f"tileloadd ($0,$1), %tmm{_DATA[r]}", f"%a{r}", "%stride"))
        operands = f"%tmm{_WEIGHT[c]}, %tmm{_DATA[r]}, %tmm{sums[r, c]}"
        multiply.append(f'call void asm sideeffect "{instruction} {operands}", ""()')
    data = [f"ptr %a{r}" for r in range(row_blocks)]
    weight = [f"ptr %b{c}" for c in range(column_blocks)]
    stored = [f"ptr %d{r}" for r in range(row_blocks)]
    return "\n".join(
        [
            _define(f"{function}_zero", [], zero),
            _define(f"{function}_multiply", [*data, "i64 %stride", *weight], multiply),
            _define(f"{function}_store", [*stored, "i64 %stride"], store),
            "attributes #0 = { alwaysinline nounwind }",
        ]
    )


def _move(instruction: str, pointer: str, stride: str) -> str:
    operands = f"ptr {pointer}, i64 {stride}"
    return f'call void asm sideeffect "{instruction}", "r,r,~{{memory}}"({operands})'


def _define(name: str, parameters: list[str], body: list[str]) -> str:
    lines = "".join(f"  {line}\n" for line in body)
    return (
        f"define linkonce_odr void @{name}({', '.join(parameters)}) #0 {{\n{lines}  ret void\n}}\n"
    )


def configuration(rows: int, kbytes: int) -> bytes:
    """Return the 64-byte ``ldtilecfg`` operand for tiles of ``rows`` rows and ``kbytes`` of K."""
    columns = dict.fromkeys((*_SUMS, *_WEIGHT), 64) | dict.fromkeys(_DATA, kbytes)
    lines = dict.fromkeys((*_SUMS, *_DATA), rows) | dict.fromkeys(_WEIGHT, kbytes // 4)
    data = bytearray(64)
    data[0] = 1  # palette 1
    for tile in range(8):
        data[16 + 2 * tile] = columns[tile]
        data[48 + tile] = lines[tile]
    return bytes(data)
