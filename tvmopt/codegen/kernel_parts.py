"""Kernels of a network in parts, each an object file, which are compiled on all cores at once.

The parts do not depend on the number of cores, so neither does the library. Kernels are visible to
the objects of their library only, and have a prefix, since an operator may have the name of a C
function.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

import tvm
from tvm import tirx
from tvm.target import Target

from tvmopt.forked import run_all
from tvmopt.kernels.passes.raw_pointers import EXPORTED, INTERNAL

#: Prefix of kernels that other object files of the library call.
KERNEL = "tvmopt_kernel_"
# Below two parts of this size, a network stays one object file. A part takes about a second.
_KERNELS_IN_A_PART = 12


def kernel_parts(kernels: Mapping[str, tirx.PrimFunc]) -> tuple[tvm.IRModule, ...]:
    """Return the kernels in parts of one size; none where there are too few to divide.

    Args:
        kernels: Functions by name.
    """
    names = sorted(kernels)
    count = len(names) // _KERNELS_IN_A_PART
    if count < 2:
        return ()
    return tuple(
        tvm.IRModule(
            {
                KERNEL + name: kernels[name].with_attrs(
                    {"global_symbol": KERNEL + name, INTERNAL: EXPORTED}
                )
                for name in names[part::count]
            }
        )
        for part in range(count)
    )


def declarations(kernels: Mapping[str, int]) -> str:
    """Return LLVM code that declares kernels as hidden; a number of pointers for each name."""
    lines = [
        f"declare hidden i32 @{KERNEL}{name}({', '.join(['ptr'] * pointers)})"
        for name, pointers in sorted(kernels.items())
    ]
    return "".join(f"{line}\n" for line in lines)


def write_parts(
    parts: Sequence[tvm.IRModule], target: Target, pipeline: str, folder: Path
) -> list[Path]:
    """Compile each part to an object file in ``folder``; return their paths.

    Args:
        parts: Modules of :func:`kernel_parts`.
        target: Target to compile for.
        pipeline: Name of the pipeline of TensorIR passes.
        folder: Folder to write into.
    """
    paths = [folder / f"part{number}.o" for number in range(len(parts))]
    run_all(
        [
            functools.partial(_write, part, target, pipeline, path)
            for part, path in zip(parts, paths, strict=True)
        ]
    )
    return paths


def _write(part: tvm.IRModule, target: Target, pipeline: str, path: Path) -> None:
    tvm.tirx.build(part, target, pipeline=pipeline).write_to_file(str(path))
