"""Let the sizes of a network pack their weights alike, so that a library stores each once.

A kernel reads its weight packed for its register tile. The best tile depends on the size.
Among candidates that are predicted to be about as fast, all sizes take one that packs alike.
"""

from __future__ import annotations

import collections
import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence

import tvm
from tvm import relax, tirx
from tvm.ir import GenericConst

from tvmopt.device.arch import Arch
from tvmopt.kernels.call_tir import is_call_tir
from tvmopt.kernels.cpu.common.nest import packing_blocks
from tvmopt.kernels.policies import policy_of
from tvmopt.kernels.shared_packing import PACKED_TILE, tile_costs

# Share of the network's predicted cycles that one kernel may lose, so that its weight is shared.
_SPARE_SHARE = 0.005

Tiles = dict[str, str]
"""Tile that each weight is packed for, by the digest of the weight."""


def packed_tiles(scheduled: tvm.IRModule) -> dict[str, set[str]]:
    """Return the possible tiles of each packed weight in a scheduled module, by its digest."""
    found: dict[str, set[str]] = {}
    for call in _kernel_calls(scheduled):
        func = scheduled[call.function]
        for block in packing_blocks(func):
            read = block.reads[0].source
            place = [i for i, param in enumerate(func.params) if param.same_as(read)]
            if len(place) == 1 and place[0] in call.weights:
                *_, group, last = (1, *map(int, block.writes[0].source.shape))
                found.setdefault(call.weights[place[0]], {f"{last}", f"{group}x{last}"})
    return found


def choose_tiles(
    sizes: Sequence[tvm.IRModule], arch: Arch, fixed: Mapping[str, Collection[str]]
) -> list[Tiles]:
    """Return the tile of each weight, for every size; as few different ones as possible.

    Args:
        sizes: Lowered modules.
        arch: The device.
        fixed: Tiles that a weight has elsewhere, by its digest; they come first.
    """
    options: dict[str, dict[int, dict[str, float]]] = {}
    for size, mod in enumerate(sizes):
        calls = list(_kernel_calls(mod))
        policies = {name: policy_of(mod[name], arch) for name in {call.function for call in calls}}
        spare = _SPARE_SHARE * sum(policies[call.function].cycles for call in calls)
        costs = {name: tile_costs(one.ranking, spare) for name, one in policies.items()}
        for call in calls:
            for digest in call.weights.values():
                options.setdefault(digest, {})[size] = costs[call.function]
    chosen: list[Tiles] = [{} for _ in sizes]
    for digest, by_size in options.items():
        first = fixed.get(digest, ())
        left = {size: costs for size, costs in by_size.items() if costs}
        while left:
            tile = _most_useful(left, first)
            first = ()
            covered = [size for size, costs in left.items() if tile in costs]
            for size in covered:
                chosen[size][digest] = tile
                del left[size]
    return chosen


def _most_useful(sizes: Mapping[int, Mapping[str, float]], first: Collection[str]) -> str:
    """Return the tile that most sizes can take, or one of ``first``; the cheapest of equals."""
    known = {tile for costs in sizes.values() for tile in costs}

    def usefulness(tile: str) -> tuple[bool, int, float, str]:
        costs = [one[tile] for one in sizes.values() if tile in one]
        return tile in first, len(costs), -sum(costs), tile

    return max(known, key=usefulness)


def with_tiles(mod: tvm.IRModule, tiles: Tiles) -> tvm.IRModule:
    """Note at each function of a lowered module the tile that its weight is packed for."""
    wanted: dict[str, collections.Counter[str]] = {}
    for call in _kernel_calls(mod):
        known = [tiles[digest] for digest in call.weights.values() if digest in tiles]
        wanted.setdefault(call.function, collections.Counter()).update(known[:1])
    updates = {
        mod.get_global_var(name): mod[name].with_attr(PACKED_TILE, counts.most_common(1)[0][0])
        for name, counts in wanted.items()
        if counts
    }
    out = mod.clone()
    out.update(tvm.IRModule(updates))
    return out


def without_tiles(mod: tvm.IRModule) -> tvm.IRModule:
    """Remove the notes of :func:`with_tiles`."""
    updates = {
        var: func.without_attr(PACKED_TILE)
        for var, func in mod.functions_items()
        if isinstance(func, tirx.PrimFunc) and PACKED_TILE in (func.attrs or {})
    }
    out = mod.clone()
    out.update(tvm.IRModule(updates))
    return out


class _KernelCall:
    """A call of a kernel: its name, and the digests of its constant arguments by position."""

    def __init__(self, call: relax.Call, digests: dict[GenericConst, str]) -> None:
        self.function = call.args[0].name_hint
        self.weights: dict[int, str] = {}
        for position, argument in enumerate(call.args[1].fields):
            if isinstance(argument, GenericConst):
                if argument not in digests:
                    digests[argument] = _digest(argument.value)
                self.weights[position] = digests[argument]


def _kernel_calls(mod: tvm.IRModule) -> Iterator[_KernelCall]:
    found: list[relax.Call] = []

    def visit(expr: relax.Expr) -> None:
        if is_call_tir(expr) and isinstance(expr.args[1], relax.Tuple):
            found.append(expr)

    for _, func in mod.functions_items():
        if isinstance(func, relax.Function):
            relax.analysis.post_order_visit(func, visit)
    digests: dict[GenericConst, str] = {}
    for call in found:
        yield _KernelCall(call, digests)


def _digest(tensor: tvm.runtime.Tensor) -> str:
    array = tensor.numpy()
    content = hashlib.sha256(array.tobytes())
    content.update(f"{array.dtype} {array.shape}".encode())
    return content.hexdigest()
