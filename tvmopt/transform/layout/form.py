"""Forms: physical layouts of a tensor, and conversions between them.

A form is an order of the logical axes, plus blocks split off them as innermost dimensions::

    NHWC of (N, C, H, W)     Form((0, 2, 3, 1))                         [n, h, w, c]
    NCHW16c                  Form((0, 1, 2, 3), ((1, 16),))             [n, c/16, h, w, 16]
    OIHW16i16o               Form((0, 1, 2, 3), ((1, 16), (0, 16)))     [o/16, i/16, h, w, 16, 16]

An axis of extent 1 has blocks of size 1, so that an operand of shape [1, 1, H, W] broadcasts in any
form. Two forms with the same order of the axes longer than 1 are identical in memory: the
conversion between them is a reshape, which moves no data.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence

import numpy as np

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class LayoutForm:
    """One physical layout of a tensor.

    Attributes:
        order: Logical axis of every dimension except the blocks, outermost first.
        blocks: ``(axis, size)`` of the innermost dimensions; at most one per axis.
    """

    order: tuple[int, ...]
    blocks: tuple[tuple[int, int], ...] = ()

    @staticmethod
    def identity(rank: int) -> LayoutForm:
        """Return the form of the original graph."""
        return LayoutForm(tuple(range(rank)))

    @property
    def is_identity(self) -> bool:
        """Whether this is the form of the original graph."""
        return not self.blocks and self.order == tuple(range(len(self.order)))

    def block(self, axis: int) -> int | None:
        """Return the block size of ``axis``, or None."""
        return dict(self.blocks).get(axis)

    def fits(self, shape: Shape) -> bool:
        """Return whether every blocked axis is a multiple of its block, or of extent 1."""
        return all(shape[axis] == 1 or shape[axis] % size == 0 for axis, size in self.blocks)

    def shape(self, shape: Shape) -> Shape:
        """Return the physical shape of a tensor of logical ``shape``."""
        sizes = dict(self.blocks)
        outer = [shape[a] if shape[a] == 1 else shape[a] // sizes.get(a, 1) for a in self.order]
        return (*outer, *(1 if shape[a] == 1 else size for a, size in self.blocks))

    def dim(self, axis: int) -> int:
        """Return the dimension of ``axis``, not counting its block."""
        return self.order.index(axis)

    def dims(self, axis: int) -> list[int]:
        """Return all dimensions of ``axis``, including its block."""
        rank = len(self.order)
        return [self.dim(axis)] + [rank + k for k, (a, _) in enumerate(self.blocks) if a == axis]

    def renamed(self, axes: dict[int, int]) -> LayoutForm:
        """Return the same memory layout with logical axis ``axes[a]`` for ``a``."""
        return LayoutForm(
            tuple(axes[a] for a in self.order), tuple((axes[a], size) for a, size in self.blocks)
        )

    def name(self, letters: str) -> str:
        """Return the layout name, ``"NCHW16c"``; ``letters`` name the logical axes in order."""
        blocks = "".join(f"{size}{letters[a].lower()}" for a, size in self.blocks)
        return "".join(letters[a] for a in self.order) + blocks


@dataclasses.dataclass(frozen=True)
class Change:
    """A layout conversion: reshape, then transpose, then reshape; None omits a step."""

    split: Shape | None
    axes: tuple[int, ...] | None
    merge: Shape | None

    @property
    def is_free(self) -> bool:
        """Whether the conversion moves no data."""
        return self.axes is None

    def __call__(self, data: np.ndarray) -> np.ndarray:
        """Apply the conversion to an array."""
        if self.split is not None:
            data = data.reshape(self.split)
        if self.axes is not None:
            data = data.transpose(self.axes)
        if self.merge is not None:
            data = data.reshape(self.merge)
        return np.ascontiguousarray(data)


_Atom = tuple[int, int, int]  # axis, piece (0: innermost), size


@functools.lru_cache(maxsize=4096)
def change(shape: Shape, source: LayoutForm, target: LayoutForm) -> Change | None:
    """Return the conversion of a tensor of logical ``shape`` from ``source`` to ``target``.

    Returns:
        None when a single transpose is not enough, because block sizes do not divide each other.
    """
    cuts: dict[int, list[int]] = {}
    for axis, size in {*source.blocks, *target.blocks}:
        if shape[axis] > 1:
            cuts.setdefault(axis, []).append(size)
    for axis, sizes in cuts.items():
        chain = [*sorted(set(sizes)), shape[axis]]
        if any(b % a for a, b in itertools.pairwise(chain)):
            return None
        cuts[axis] = chain[:-1]
    first, last = _atoms(shape, source, cuts), _atoms(shape, target, cuts)
    if sorted(first) != sorted(last) or _moving(first) == _moving(last):
        first, last = _moving(first), _moving(last)
    from_shape, to_shape = source.shape(shape), target.shape(shape)
    if first == last:
        return Change(None, None, None if from_shape == to_shape else to_shape)
    split = tuple(size for _, _, size in first)
    axes = tuple(first.index(atom) for atom in last)
    merge = tuple(size for _, _, size in last)
    return Change(
        None if split == from_shape else split, axes, None if merge == to_shape else to_shape
    )


def _atoms(shape: Shape, form: LayoutForm, cuts: dict[int, list[int]]) -> list[_Atom]:
    sizes = dict(form.blocks)

    def pieces(axis: int, low: int, high: int) -> list[_Atom]:
        bounds = [1, *cuts.get(axis, []), shape[axis]]
        inside = [
            (axis, k, b // a)
            for k, (a, b) in enumerate(itertools.pairwise(bounds))
            if low <= a < b <= high
        ]
        return inside[::-1] or [(axis, -1, 1)]

    atoms: list[_Atom] = []
    for axis in form.order:
        if shape[axis] == 1:
            atoms.append((axis, 0, 1))
        else:
            atoms += pieces(axis, sizes.get(axis, 1), shape[axis])
    for axis, size in form.blocks:
        atoms += [(axis, 1, 1)] if shape[axis] == 1 else pieces(axis, 1, size)
    return atoms


def _moving(atoms: Sequence[_Atom]) -> list[_Atom]:
    return [atom for atom in atoms if atom[2] > 1]


def transpose_form(form: LayoutForm, axes: Sequence[int]) -> LayoutForm:
    """Return the form of the same memory after ``permute_dims(axes)``."""
    return form.renamed({axis: position for position, axis in enumerate(axes)})


def reshape_form(form: LayoutForm, shape: Shape, to_shape: Shape) -> LayoutForm | None:
    """Return the form of the same memory after ``reshape(to_shape)``; None when data would move.

    Merged axes must be adjacent and in order. A blocked axis must be the last of those that merge,
    and the resulting axis a multiple of its block.
    """
    if math.prod(shape) == 0:
        return None
    groups = _groups(shape, to_shape)
    position = {axis: k for k, axis in enumerate(a for a in form.order if shape[a] > 1)}
    placed: list[tuple[int, list[int]]] = []
    last_out: dict[int, int] = {}
    for ins, outs in groups:
        places = [position[a] for a in ins]
        if places != list(range(places[0], places[0] + len(ins))):
            return None
        placed.append((places[0], outs))
        last_out[ins[-1]] = outs[-1]
    blocks = []
    for axis, size in form.blocks:
        if shape[axis] == 1:
            continue
        if axis not in last_out or to_shape[last_out[axis]] % size:
            return None
        blocks.append((last_out[axis], size))
    order = [axis for _, outs in sorted(placed) for axis in outs]
    for axis in (a for a, size in enumerate(to_shape) if size == 1):
        order.insert(order.index(axis - 1) + 1 if axis else 0, axis)
    return LayoutForm(tuple(order), tuple(blocks))


def _groups(shape: Shape, to_shape: Shape) -> list[tuple[list[int], list[int]]]:
    """Return the smallest groups of axes longer than 1 that the reshape maps to each other."""
    ins = [a for a, size in enumerate(shape) if size > 1]
    outs = [a for a, size in enumerate(to_shape) if size > 1]
    groups: list[tuple[list[int], list[int]]] = []
    while ins or outs:
        taken_in, taken_out = [ins.pop(0)], [outs.pop(0)]
        left, right = shape[taken_in[0]], to_shape[taken_out[0]]
        while left != right:
            if left < right:
                taken_in.append(ins.pop(0))
                left *= shape[taken_in[-1]]
            else:
                taken_out.append(outs.pop(0))
                right *= to_shape[taken_out[-1]]
        groups.append((taken_in, taken_out))
    return groups
