"""Forms: how the logical axes of a tensor lie in memory, and how to get from one to another.

A form is an order of the logical axes, and blocks cut off them that lie innermost::

    NHWC of (N, C, H, W)     Form((0, 2, 3, 1))                         [n, h, w, c]
    NCHW16c                  Form((0, 1, 2, 3), ((1, 16),))             [n, c/16, h, w, 16]
    OIHW16i16o               Form((0, 1, 2, 3), ((1, 16), (0, 16)))     [o/16, i/16, h, w, 16, 16]

An axis of size 1 has blocks of size 1, so that an operand of shape [1, 1, H, W] broadcasts in any
form. Two forms whose axes longer than 1 lie in the same order are the same bytes: the change is a
reshape, which moves nothing.
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
class Form:
    """One way a tensor lies in memory.

    Attributes:
        order: Logical axis of every dimension, outermost first, blocks aside.
        blocks: ``(axis, size)`` of the innermost dimensions; at most one an axis.
    """

    order: tuple[int, ...]
    blocks: tuple[tuple[int, int], ...] = ()

    @staticmethod
    def identity(rank: int) -> Form:
        """The form of the original graph."""
        return Form(tuple(range(rank)))

    @property
    def is_identity(self) -> bool:
        """Whether this is the form of the original graph."""
        return not self.blocks and self.order == tuple(range(len(self.order)))

    def block(self, axis: int) -> int | None:
        """Size of the block of ``axis``, or None."""
        return dict(self.blocks).get(axis)

    def fits(self, shape: Shape) -> bool:
        """Whether every blocked axis is a multiple of its block, or of size 1."""
        return all(shape[axis] == 1 or shape[axis] % size == 0 for axis, size in self.blocks)

    def shape(self, shape: Shape) -> Shape:
        """Dimensions in memory of a tensor of logical ``shape``."""
        sizes = dict(self.blocks)
        outer = [shape[a] if shape[a] == 1 else shape[a] // sizes.get(a, 1) for a in self.order]
        return (*outer, *(1 if shape[a] == 1 else size for a, size in self.blocks))

    def dim(self, axis: int) -> int:
        """Where ``axis`` lies, its block aside."""
        return self.order.index(axis)

    def dims(self, axis: int) -> list[int]:
        """Every dimension that ``axis`` takes part in."""
        rank = len(self.order)
        return [self.dim(axis)] + [rank + k for k, (a, _) in enumerate(self.blocks) if a == axis]

    def renamed(self, axes: dict[int, int]) -> Form:
        """The same memory with logical axis ``axes[a]`` for ``a``."""
        return Form(
            tuple(axes[a] for a in self.order), tuple((axes[a], size) for a, size in self.blocks)
        )

    def name(self, letters: str) -> str:
        """``"NCHW16c"``, for the letters of the logical axes in order."""
        blocks = "".join(f"{size}{letters[a].lower()}" for a, size in self.blocks)
        return "".join(letters[a] for a in self.order) + blocks


@dataclasses.dataclass(frozen=True)
class Change:
    """How to get from one form to another: reshape, then transpose, then reshape; None: nothing."""

    split: Shape | None
    axes: tuple[int, ...] | None
    merge: Shape | None

    @property
    def is_free(self) -> bool:
        """Whether no element moves."""
        return self.axes is None

    def __call__(self, data: np.ndarray) -> np.ndarray:
        """Apply the change to an array."""
        if self.split is not None:
            data = data.reshape(self.split)
        if self.axes is not None:
            data = data.transpose(self.axes)
        if self.merge is not None:
            data = data.reshape(self.merge)
        return np.ascontiguousarray(data)


_Atom = tuple[int, int, int]  # axis, piece (0: innermost), size


@functools.lru_cache(maxsize=4096)
def change(shape: Shape, source: Form, target: Form) -> Change | None:
    """How a tensor of logical ``shape`` gets from ``source`` to ``target``.

    Returns:
        None when there is no single transpose, which takes blocks that do not divide each other.
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


def _atoms(shape: Shape, form: Form, cuts: dict[int, list[int]]) -> list[_Atom]:
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


def transpose_form(form: Form, axes: Sequence[int]) -> Form:
    """The same memory seen through ``permute_dims(axes)``."""
    return form.renamed({axis: position for position, axis in enumerate(axes)})


def reshape_form(form: Form, shape: Shape, to_shape: Shape) -> Form | None:
    """The same memory seen through ``reshape(to_shape)``, or None where it would have to move.

    Axes that merge must lie side by side and in order; a blocked one must be the last of those
    that merge, and what it becomes a multiple of its block.
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
    return Form(tuple(order), tuple(blocks))


def _groups(shape: Shape, to_shape: Shape) -> list[tuple[list[int], list[int]]]:
    """Axes longer than 1 that become one another: the smallest groups of equal product."""
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
