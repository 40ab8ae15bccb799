"""The tensors of a graph under conversion, and the forms that each of them exists in.

A tensor is computed in one form. Other forms are made when something asks for them, once. Reshapes
and transposes of the graph are views: they name the same memory anew and emit nothing by
themselves, so that a transpose before or after a layout change merges with it.
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

from tvmopt.transform.layout.form import Form, Shape, change, reshape_form
from tvmopt.transform.layout.report import LayoutChange

_LETTERS = {3: "NCW", 4: "NCHW", 5: "NCDHW"}


Sight = Callable[[Form], Form | None]


class Tensor:
    """A tensor of the original graph.

    Attributes:
        name: Name of its variable.
        shape: Logical shape, that of the original graph.
        dtype: Element type.
        forms: What holds it, by form.
        data: Its value when it is a constant.
        make: Computes it in a form (None: not possible) when all it depends on is constant, so
            that any form is as cheap as any other.
        base: The tensor it is a view of.
        seen: Form of this tensor that a form of ``base`` is, or None where memory would move.
        unseen: The inverse of ``seen``.
        transposes: Transposes of memory that the original graph had here, and that a layout
            change may still take the place of: 1 or 0.
    """

    def __init__(self, name: str, shape: Shape, dtype: str) -> None:
        self.name = name
        self.shape = shape
        self.dtype = dtype
        self.forms: dict[Form, relax.Expr] = {}
        self.data: np.ndarray | None = None
        self.make: Callable[[Form], relax.Expr | None] | None = None
        self.base: Tensor | None = None
        self.seen: Sight = lambda form: form
        self.unseen: Sight = lambda form: form
        self.transposes = 0
        self._lifted: dict[int, Tensor] = {}

    @property
    def bytes(self) -> int:
        """Size of the tensor."""
        bits = re.search(r"\d+", self.dtype)
        return math.ceil(math.prod(self.shape) * (int(bits.group()) if bits else 8) / 8)

    @property
    def is_constant(self) -> bool:
        """Whether every form of it is free."""
        return self.data is not None or self.make is not None

    def available(self) -> list[Form]:
        """Forms that it exists in, or that a reshape gives, the oldest first."""
        found = dict.fromkeys(self.forms)
        if self.base is not None:
            seen = (self.seen(form) for form in self.base.available())
            found.update(dict.fromkeys(form for form in seen if form is not None))
        return list(found)

    def is_native(self) -> bool:
        """Whether the original form takes no more than what the original graph did for it."""
        if Form.identity(len(self.shape)) in self.forms:
            return True
        return self.base is not None and self.base.is_native()

    def view(self, name: str, shape: Shape, seen: Sight, unseen: Sight) -> Tensor:
        """A tensor that is the same elements in the same order, or another order of axes."""
        out = Tensor(name, shape, self.dtype)
        out.base, out.seen, out.unseen = self, seen, unseen
        return out

    def reshaped(self, name: str, shape: Shape) -> Tensor:
        """The view of another shape."""
        return self.view(
            name,
            shape,
            lambda form: reshape_form(form, self.shape, shape),
            lambda form: reshape_form(form, shape, self.shape),
        )

    def lifted(self, rank: int) -> Tensor:
        """The tensor with axes of size 1 in front, as broadcasting sees it."""
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
        """Forget everything but ``expr``, the tensor in its original form."""
        self.forms = {Form.identity(len(self.shape)): expr}
        self.base = self.make = None
        self._lifted = {}


class Forms:
    """Emits the forms of tensors, and counts what has to move.

    Args:
        builder: Where to emit.
        letters: Layout letters of the original axes, by rank, for the report.
    """

    def __init__(self, builder: relax.BlockBuilder, letters: dict[int, str]) -> None:
        self.builder = builder
        self.changes: list[LayoutChange] = []
        self._letters = {**_LETTERS, **letters}
        self._constants: dict[int, tuple[GenericConst, Tensor]] = {}

    def constant(self, const: GenericConst) -> Tensor | None:
        """The tensor of a constant, one for each constant of the module."""
        key = const.__hash__()
        if key not in self._constants:
            data = array_of(const)
            if data is None:
                return None
            tensor = Tensor("constant", data.shape, str(const.ty.dtype))
            tensor.data = data
            tensor.forms[Form.identity(data.ndim)] = const
            self._constants[key] = (const, tensor)
        return self._constants[key][1]

    def cost(self, tensor: Tensor, form: Form) -> tuple[int, int]:
        """Bytes to move, and steps to emit, until ``tensor`` is there in ``form``."""
        if tensor.is_constant:
            return 0, 0
        available = tensor.available()
        if form in available or (form.is_identity and tensor.is_native()):
            return 0, 0
        steps = [change(tensor.shape, source, form) for source in available]
        if any(step is not None and step.is_free for step in steps):
            return 0, 1
        return tensor.bytes, 1

    def get(self, tensor: Tensor, form: Form) -> relax.Expr:
        """``tensor`` in ``form``, which must fit its shape."""
        if form not in tensor.forms:
            tensor.forms[form] = self._new_form(tensor, form)
        return tensor.forms[form]

    def original(self, tensor: Tensor) -> relax.Expr:
        """``tensor`` as the original graph has it."""
        return self.get(tensor, Form.identity(len(tensor.shape)))

    def _new_form(self, tensor: Tensor, form: Form) -> relax.Expr:
        identity = Form.identity(len(tensor.shape))
        if tensor.data is not None:
            step = change(tensor.shape, identity, form)
            assert step is not None  # a form cuts an axis once
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
        """The original form, the way the original graph made it."""
        source = tensor.seen(Form.identity(len(base.shape)))
        identity = Form.identity(len(tensor.shape))
        assert source is not None
        step = change(tensor.shape, source, identity)
        assert step is not None
        held = self.original(base)
        if base.shape != source.shape(tensor.shape):
            held = self._reshape(held, source.shape(tensor.shape))
        return self._change(tensor, held, source, identity)

    def _from_base(self, tensor: Tensor, form: Form) -> relax.Expr:
        """A form that only a change of what the tensor is a view of can give."""
        identity = Form.identity(len(tensor.shape))
        source = tensor.unseen(form) if tensor.base is not None else None
        if tensor.base is None or (form == identity and source is None):
            raise AssertionError(f"{tensor.name} exists in no form")
        if source is None or tensor.seen(source) is None:
            return self._change(tensor, self.get(tensor, identity), identity, form)
        self.get(tensor.base, source)
        return self._new_form(tensor, form)

    def _seen(self, tensor: Tensor, form: Form) -> relax.Expr:
        """A form that the tensor, or what it is a view of, exists in."""
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

    def _change(self, tensor: Tensor, held: relax.Expr, source: Form, target: Form) -> relax.Expr:
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

    def _count(self, tensor: Tensor, source: Form, target: Form) -> None:
        rank = len(tensor.shape)
        letters = self._letters.get(rank, "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[:rank])
        names = (source.name(letters), target.name(letters))
        self.changes.append(
            LayoutChange(tensor.name, tensor.shape, tensor.dtype, *names, tensor.bytes)
        )


def static_shape(ty: Any) -> Shape | None:
    """Shape of a tensor type, or None when it is not all known."""
    dims = getattr(ty, "shape", None)
    if dims is None or not all(isinstance(d, tvm.tirx.IntImm) for d in dims):
        return None
    return tuple(int(d) for d in dims)


def array_of(const: GenericConst) -> np.ndarray | None:
    """Value of a constant, or None for what NumPy cannot hold (int4 is packed)."""
    if not isinstance(const.value, tvm.runtime.Tensor) or "4" in str(const.ty.dtype)[-1:]:
        return None
    return const.value.numpy()
