"""Object files of a network's kernels, one each, which are compiled on all cores at once.

An object file depends on its kernel and the target alone, and its symbol on the kernel: neither the
number of cores nor the network changes it. So a later build of the same command takes it over
(:mod:`tvmopt.kernels.kept_results`). Symbols are visible to the objects of their library only.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

import tvm
from tvm import tirx
from tvm.target import Target

from tvmopt.forked import run_all
from tvmopt.kernels.kept_results import KeptResults
from tvmopt.kernels.passes.raw_pointers import EXPORTED, INTERNAL
from tvmopt.kernels.structure import Structure

_SYMBOL = "tvmopt_kernel_"
# A network of fewer kernels stays one object file.
_FEWEST = 24
# A kernel takes 70 ms to compile, and a fork 100 ms to begin and end.
_KERNELS_A_FORK = 12


@dataclasses.dataclass(frozen=True)
class KernelFunction:
    """A kernel that is compiled to a separate object file.

    Attributes:
        symbol: Name of its function in the library.
        func: The function, which has this name.
    """

    symbol: str
    func: tirx.PrimFunc


def separate_kernels(kernels: Mapping[str, tirx.PrimFunc]) -> dict[str, KernelFunction]:
    """Return the kernels that are compiled separately by name; none where there are few.

    Kernels of equal structure have one function.

    Args:
        kernels: Functions by name.
    """
    if len(kernels) < _FEWEST:
        return {}
    separate: dict[str, KernelFunction] = {}
    known: dict[Structure[None], KernelFunction] = {}
    symbols: set[str] = set()
    for name, func in sorted(kernels.items()):
        structure = Structure(func.with_attrs({"global_symbol": _SYMBOL, INTERNAL: EXPORTED}), None)
        if structure not in known:
            symbol = _SYMBOL + structure.name
            while symbol in symbols:  # of another structure with the same hash
                symbol += "_"
            symbols.add(symbol)
            own = structure.func.with_attr("global_symbol", symbol)
            known[structure] = KernelFunction(symbol, own)
        separate[name] = known[structure]
    return separate


def declarations(pointers: Mapping[str, int]) -> str:
    """Return LLVM code that declares kernels as hidden.

    Args:
        pointers: Number of pointers that each kernel takes, by symbol.
    """
    lines = [
        f"declare hidden i32 @{symbol}({', '.join(['ptr'] * count)})"
        for symbol, count in sorted(pointers.items())
    ]
    return "".join(f"{line}\n" for line in lines)


def write_kernels(
    kernels: Sequence[KernelFunction], target: Target, pipeline: str, folder: Path
) -> list[Path]:
    """Write the object file of each kernel into ``folder``; return their paths.

    Args:
        kernels: Distinct kernels.
        target: Target to compile for.
        pipeline: Name of the pipeline of TensorIR passes.
        folder: Folder to write into.
    """
    write = functools.partial(_write_all, target=target, pipeline=pipeline, folder=folder)
    forks = -(-len(kernels) // _KERNELS_A_FORK)
    run_all([functools.partial(write, kernels[fork::forks]) for fork in range(forks)])
    return [folder / f"{kernel.symbol}.o" for kernel in kernels]


def _write_all(
    kernels: Sequence[KernelFunction], target: Target, pipeline: str, folder: Path
) -> None:
    known = KeptResults("objects", str(target), pipeline)
    for kernel in kernels:
        path, structure = folder / f"{kernel.symbol}.o", Structure(kernel.func, None)
        if (content := known.find(structure)) is not None:
            path.write_bytes(base64.b64decode(content))
            continue
        _write(kernel, target, pipeline, path)
        known.keep(structure, base64.b64encode(path.read_bytes()).decode())


def _write(kernel: KernelFunction, target: Target, pipeline: str, path: Path) -> None:
    mod = tvm.IRModule({kernel.symbol: kernel.func})
    tvm.tirx.build(mod, target, pipeline=pipeline).write_to_file(str(path))
