"""Tensors of a graph under layout conversion, and the forms in which each one exists.

A tensor is computed in one form. Other forms are emitted on request, once. Reshapes and transposes
of the graph are views: they rename the same memory and emit nothing by themselves, so that a
transpose next to a layout conversion merges with it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import GenericConst

from tvmopt.transform.layout.form import LayoutForm, Shape, change, reshape_form
from tvmopt.transform.layout.report import LayoutChange

_LETTERS = {3: "NCW", 4: "NCHW", 5: "NCDHW"}


Sight = Callable[[LayoutForm], LayoutForm | None]


class Tensor:
    """A tensor of the original graph.

    Attributes:
        name: Name of its variable.
        shape: Logical shape in the original graph.
        dtype: Its dtype.
        forms: Expression that holds the tensor, by form.
        data: Value of a constant.
        make: Computes the tensor in a form, or returns None. Set when the tensor depends only on
            constants, so that all forms cost the same.
        base: Tensor of which this one is a view.
        seen: Maps a form of ``base`` to a form of this tensor; None when data would move.
        unseen: Inverse of ``seen``.
        transposes: Number (0 or 1) of transposes of the original graph at this tensor that a
            layout conversion may still replace.
    """

    def __init__(self, name: str, shape: Shape, dtype: str) -> None:
        self.name = name
        self.shape = shape
        self.dtype = dtype
        self.forms: dict[LayoutForm, relax.Expr] = {}
        self.data: np.ndarray | None = None
        self.make: Callable[[LayoutForm], relax.Expr | None] | None = None
        self.base: Tensor | None = None
        self.seen: Sight = lambda form: form
        self.unseen: Sight = lambda form: form
        self.transposes = 0
        self._lifted: dict[int, Tensor] = {}

    @property
    def bytes(self) -> int:
        """Size of the tensor in bytes."""
        bits = re.search(r"\d+", self.dtype)
        return math.ceil(math.prod(self.shape) * (int(bits.group()) if bits else 8) / 8)

    @property
    def is_constant(self) -> bool:
        """Whether every form is free, because the tensor is constant."""
        return self.data is not None or self.make is not None

    def available(self) -> list[LayoutForm]:
        """Return the forms that exist or that a reshape provides, oldest first."""
        found = dict.fromkeys(self.forms)
        if self.base is not None:
            seen = (self.seen(form) for form in self.base.available())
            found.update(dict.fromkeys(form for form in seen if form is not None))
        return list(found)

    def is_native(self) -> bool:
        """Return whether the original form needs no more operators than the original graph."""
        if LayoutForm.identity(len(self.shape)) in self.forms:
            return True
        return self.base is not None and self.base.is_native()

    def view(self, name: str, shape: Shape, seen: Sight, unseen: Sight) -> Tensor:
        """Return a view of the same elements with another shape or order of axes."""
        out = Tensor(name, shape, self.dtype)
        out.base, out.seen, out.unseen = self, seen, unseen
        return out

    def reshaped(self, name: str, shape: Shape) -> Tensor:
        """Return a reshaped view."""
        return self.view(
            name,
            shape,
            lambda form: reshape_form(form, self.shape, shape),
            lambda form: reshape_form(form, shape, self.shape),
        )

    def lifted(self, rank: int) -> Tensor:
        """Return the tensor with leading axes of extent 1, as broadcasting sees it."""
        if rank == len(self.shape):
            return self
        if rank not in self._lifted:
            shape = (1,) * (rank - len(self.shape)) + self.shape
            if self.data is not None:
                out = Tensor(self.name, shape, self.dtype)
                out.data = self.data.reshape(shape)
            else:
                out = self.reshaped(self.name, shape)
            self._lifted[rank] = out
        return self._lifted[rank]

    def settle(self, expr: relax.Expr) -> None:
        """Keep only ``expr``, the tensor in its original form."""
        self.forms = {LayoutForm.identity(len(self.shape)): expr}
        self.base = self.make = None
        self._lifted = {}


class Forms:
    """Emit forms of tensors, and record the layout conversions.

    Args:
        builder: Block builder to emit into.
        letters: Layout letters of the original axes by rank, for the report.
    """

    def __init__(self, builder: relax.BlockBuilder, letters: dict[int, str]) -> None:
        self.builder = builder
        self.changes: list[LayoutChange] = []
        self._letters = {**_LETTERS, **letters}
        self._constants: dict[int, tuple[GenericConst, Tensor]] = {}

    def constant(self, const: GenericConst) -> Tensor | None:
        """Return the tensor of a constant; one per constant of the module."""
        key = const.__hash__()
        if key not in self._constants:
            data = array_of(const)
            if data is None:
                return None
            tensor = Tensor("constant", data.shape, str(const.ty.dtype))
            tensor.data = data
            tensor.forms[LayoutForm.identity(data.ndim)] = const
            self._constants[key] = (const, tensor)
        return self._constants[key][1]

    def cost(self, tensor: Tensor, form: LayoutForm) -> tuple[int, int]:
        """Return bytes to move and operators to emit for ``tensor`` in ``form``."""
        if tensor.is_constant:
            return 0, 0
        available = tensor.available()
        if form in available or (form.is_identity and tensor.is_native()):
            return 0, 0
        steps = [change(tensor.shape, source, form) for source in available]
        if any(step is not None and step.is_free for step in steps):
            return 0, 1
        return tensor.bytes, 1

    def get(self, tensor: Tensor, form: LayoutForm) -> relax.Expr:
        """Return ``tensor`` in ``form``, which must fit its shape."""
        if form not in tensor.forms:
            tensor.forms[form] = self._new_form(tensor, form)
        return tensor.forms[form]

    def original(self, tensor: Tensor) -> relax.Expr:
        """Return ``tensor`` in its original form."""
        return self.get(tensor, LayoutForm.identity(len(tensor.shape)))

    def _new_form(self, tensor: Tensor, form: LayoutForm) -> relax.Expr:
        identity = LayoutForm.identity(len(tensor.shape))
        if tensor.data is not None:
            step = change(tensor.shape, identity, form)
            assert step is not None  # a form splits an axis once
            return relax.const(step(tensor.data), tensor.dtype)
        if tensor.make is not None:
            made = tensor.make(form)
            if made is not None:
                return made
            return self._change(tensor, self.get(tensor, identity), identity, form)
        for source in sorted(tensor.available(), key=lambda source: source != form):
            step = change(tensor.shape, source, form)
            if step is not None and step.is_free:
                return self._change(tensor, self._seen(tensor, source), source, form)
        if form == identity and tensor.base is not None and tensor.is_native():
            return self._native(tensor, tensor.base)
        for source in tensor.available():
            if change(tensor.shape, source, form) is not None:
                return self._change(tensor, self._seen(tensor, source), source, form)
        return self._from_base(tensor, form)

    def _native(self, tensor: Tensor, base: Tensor) -> relax.Expr:
        """Return the original form, made as in the original graph."""
        source = tensor.seen(LayoutForm.identity(len(base.shape)))
        identity = LayoutForm.identity(len(tensor.shape))
        assert source is not None
        step = change(tensor.shape, source, identity)
        assert step is not None
        held = self.original(base)
        if base.shape != source.shape(tensor.shape):
            held = self._reshape(held, source.shape(tensor.shape))
        return self._change(tensor, held, source, identity)

    def _from_base(self, tensor: Tensor, form: LayoutForm) -> relax.Expr:
        """Return a form that requires a layout conversion of the view's base."""
        identity = LayoutForm.identity(len(tensor.shape))
        source = tensor.unseen(form) if tensor.base is not None else None
        if tensor.base is None or (form == identity and source is None):
            raise AssertionError(f"{tensor.name} exists in no form")
        if source is None or tensor.seen(source) is None:
            return self._change(tensor, self.get(tensor, identity), identity, form)
        self.get(tensor.base, source)
        return self._new_form(tensor, form)

    def _seen(self, tensor: Tensor, form: LayoutForm) -> relax.Expr:
        """Return an existing form of the tensor or of its base."""
        if form in tensor.forms:
            return tensor.forms[form]
        assert tensor.base is not None
        base = tensor.base
        source = next(f for f in base.available() if tensor.seen(f) == form)
        held = self._seen(base, source)
        if source.shape(base.shape) != form.shape(tensor.shape):
            held = self._reshape(held, form.shape(tensor.shape))
        tensor.forms[form] = held
        return held

    def _change(
        self, tensor: Tensor, held: relax.Expr, source: LayoutForm, target: LayoutForm
    ) -> relax.Expr:
        step = change(tensor.shape, source, target)
        assert step is not None
        if step.split is not None:
            held = self._reshape(held, step.split)
        if step.axes is not None:
            held = self.builder.emit(relax.op.permute_dims(held, list(step.axes)))
            if tensor.transposes:
                tensor.transposes = 0
            elif not tensor.is_constant:
                self._count(tensor, source, target)
        if step.merge is not None:
            held = self._reshape(held, step.merge)
        return held

    def _reshape(self, held: relax.Expr, shape: Shape) -> relax.Expr:
        return self.builder.emit(relax.op.reshape(held, shape))

    def _count(self, tensor: Tensor, source: LayoutForm, target: LayoutForm) -> None:
        rank = len(tensor.shape)
        letters = self._letters.get(rank, "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[:rank])
        names = (source.name(letters), target.name(letters))
        self.changes.append(
            LayoutChange(tensor.name, tensor.shape, tensor.dtype, *names, tensor.bytes)
        )


def static_shape(ty: Any) -> Shape | None:
    """Return the shape of a tensor type, or None when it is not static."""
    dims = getattr(ty, "shape", None)
    if dims is None or not all(isinstance(d, tvm.tirx.IntImm) for d in dims):
        return None
    return tuple(int(d) for d in dims)


def array_of(const: GenericConst) -> np.ndarray | None:
    """Return the value of a constant, or None when NumPy cannot hold it (int4 is packed)."""
    if not isinstance(const.value, tvm.runtime.Tensor) or "4" in str(const.ty.dtype)[-1:]:
        return None
    return const.value.numpy()
