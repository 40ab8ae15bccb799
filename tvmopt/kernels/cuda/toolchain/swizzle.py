"""Tiles of shared memory whose rows are whole lines, their pieces of 16 bytes in another order.

Eight rows of a tile that ldmatrix reads together must lie in different banks. Where rows are a
multiple of 128 bytes apart, piece ``p`` of row ``r`` is therefore kept where piece ``p ^ (r % 8)``
would be: no bytes are lost to padding, and what is copied at once fills whole lines.

before -> after::

    cp.async shared[row * 64 + piece * 8], A[...]
    a = ldmatrix(shared[row * 64 + piece * 8])

    cp.async shared[row * 64 + (piece ^ row % 8) * 8], A[...]
    a = ldmatrix(shared[row * 64 + (piece ^ row % 8) * 8])
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm_ffi
from tvm import ir, sym, tirx

_LOAD, _COPY, _POINTER = "ldmatrix", "cp_async_raw", "tvm_access_ptr"
_LINE, _PIECE, _ROWS = 128, 16, 8


def swizzle(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Put tiles for ldmatrix in the order above where their rows are whole lines apart.

    A tile that is written otherwise than by asynchronous copies stays as it is, as does one that is
    read otherwise than by ldmatrix.

    Args:
        func: A lowered device function.
    """
    facts = _Facts(func)
    if not facts.pitches:
        return func

    def on_call(call: ir.Call) -> ir.Expr:
        name = _name(call)
        if name == _LOAD:
            return facts.load(call)
        return facts.copy(call) if name == _COPY else call

    return func.with_body(tvm_ffi.structural_map(func.body, (ir.Call, on_call), order="post"))


class _Facts:
    """What a function says of its tiles.

    Attributes:
        pitches: Elements between rows, of tiles that can be put in order, by their buffer.
    """

    def __init__(self, func: tirx.PrimFunc) -> None:
        self._analyzer = sym.Analyzer()
        self._binds: dict[tirx.Var, ir.Expr] = {}
        self._lane: tirx.Var | None = None
        self.pitches: dict[tirx.Var, int] = {}
        loads: list[ir.Call] = []
        others: list[tirx.Var] = []

        def on_bind(bind: tirx.Bind) -> None:
            self._binds[bind.var] = bind.value

        def on_attr(attr: tirx.AttrStmt) -> None:
            if attr.attr_key == "thread_extent":
                self._analyzer.bind(attr.node.var, ir.Range(0, attr.value))
                if attr.node.thread_tag == "threadIdx.x":
                    self._lane = attr.node.var

        def on_call(call: ir.Call) -> None:
            if _name(call) == _LOAD:
                loads.append(call)

        def on_store(store: tirx.BufferStore) -> None:
            others.append(store.buffer)

        def on_load(load: ir.TensorLoad) -> None:
            others.append(load.source)

        entries = [
            (tirx.Bind, on_bind), (tirx.AttrStmt, on_attr), (ir.Call, on_call),
            (tirx.BufferStore, on_store), (ir.TensorLoad, on_load),
        ]  # fmt: skip
        for entry in entries:
            tvm_ffi.structural_walk(func.body, entry, order="pre")
        refused = set(others)
        for call in loads:
            buffer, pitch = _buffer(call.args[5].args[1]), self._pitch(call)
            if buffer is None:
                continue
            if pitch is None or self.pitches.get(buffer, pitch) != pitch:
                refused.add(buffer)
            else:
                self.pitches[buffer] = pitch
        for buffer in refused:
            self.pitches.pop(buffer, None)

    def load(self, call: ir.Call) -> ir.Expr:
        """``call``, an ldmatrix, of where its rows lie now."""
        *before, pointer, lane = call.args
        pitch = self.pitches.get(_buffer(pointer.args[1]))
        if pitch is None:
            return call
        piece = _pieces(pointer.args[1])
        places = self._plain(lane)
        # The tile starts at a multiple of eight rows; its lanes' pieces do not carry.
        first = self._simple(tirx.floormod(self._plain(pointer.args[2]), _ROWS * piece))
        row = self._simple(tirx.floormod(tirx.floordiv(places, pitch), _ROWS))
        at = self._simple(tirx.floormod(places, _ROWS * piece))
        start = self._simple(places - tirx.floormod(places, _ROWS * piece))
        moved = start + tirx.bitwise_xor(tirx.bitwise_xor(at, row * piece), first) - first
        return ir.Call(call.op, [*before, pointer, moved], call.attrs, call.ty_args, ret_ty=call.ty)

    def copy(self, call: ir.Call) -> ir.Expr:
        """``call``, an asynchronous copy, to where its piece lies now."""
        target, place, *rest = call.args
        pitch = self.pitches.get(_buffer(target))
        if pitch is None:
            return call
        piece = _pieces(target)
        plain = self._plain(place)
        row = self._simple(tirx.floormod(tirx.floordiv(plain, pitch), _ROWS))
        at = self._simple(tirx.floormod(plain, _ROWS * piece))
        moved = place - at + tirx.bitwise_xor(at, row * piece)
        return ir.Call(call.op, [target, moved, *rest], call.attrs, call.ty_args, ret_ty=call.ty)

    def _pitch(self, call: ir.Call) -> int | None:
        """Elements between rows that neighbouring lanes name to ldmatrix, if they can be moved."""
        pointer, lane = call.args[5], call.args[6]
        if self._lane is None or _name(pointer) != _POINTER:
            return None
        places = self._plain(lane)
        first, second = (
            self._simple(_substituted(places, {self._lane: tirx.IntImm("int32", n)}))
            for n in range(2)
        )
        if not isinstance(first, tirx.IntImm) or not isinstance(second, tirx.IntImm):
            return None
        pitch = int(second) - int(first)
        piece = _pieces(pointer.args[1])
        rows = self._simple(tirx.floormod(tirx.floordiv(self._plain(pointer.args[2]), pitch), 8))
        whole = pitch > 0 and pitch % (_ROWS * piece) == 0
        return pitch if whole and isinstance(rows, tirx.IntImm) and int(rows) == 0 else None

    def _plain(self, value: ir.Expr) -> ir.Expr:
        """``value`` with what names stand for."""
        while True:
            inside = _variables(value)
            known = {var: self._binds[var] for var in inside if var in self._binds}
            if not known:
                return value
            value = _substituted(value, known)

    def _simple(self, value: ir.Expr) -> ir.Expr:
        return self._analyzer.simplify(value)


def _name(call: Any) -> str:
    if not isinstance(call, ir.Call):
        return ""
    return str(getattr(call.op, "name", "")).rpartition(".")[2]


def _buffer(pointer: ir.Expr) -> Any:
    """The buffer whose data ``pointer`` is."""
    return pointer.args[0] if isinstance(pointer, ir.Call) and len(pointer.args) == 1 else None


def _pieces(pointer: ir.Expr) -> int:
    """Elements of a piece of what ``pointer`` points at."""
    return _PIECE // tvm_ffi.dtype(str(pointer.ty.element_type.dtype)).itemsize


def _variables(value: ir.Expr) -> set[tirx.Var]:
    found: set[tirx.Var] = set()
    tvm_ffi.structural_walk(value, (tirx.Var, found.add), order="pre")
    return found


def _substituted(value: ir.Expr, values: Mapping[tirx.Var, ir.Expr]) -> ir.Expr:
    return tvm_ffi.structural_map(value, (tirx.Var, lambda var: values.get(var, var)))
