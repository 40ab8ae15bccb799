"""Rewrite TensorIR: a block with some of its fields changed, and other accesses of buffers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm_ffi
from tvm import ir, s_tir, tirx

#: Returns the buffer and the indices that replace an access; None where it stays.
ChangeAccess = Callable[
    [tirx.Buffer, Sequence[ir.Expr]], "tuple[tirx.Buffer, list[ir.Expr]] | None"
]

_FIELDS = (
    "iter_vars", "reads", "writes", "name_hint", "body", "init", "alloc_buffers", "match_buffers",
    "annotations",
)  # fmt: skip


def block_with(block: s_tir.SBlock, **changed: Any) -> s_tir.SBlock:
    """Return ``block`` with the fields in ``changed``, by their names in ``s_tir.SBlock``."""
    return s_tir.SBlock(**{field: getattr(block, field) for field in _FIELDS} | changed)


def with_root(func: tirx.PrimFunc, **changed: Any) -> tirx.PrimFunc:
    """Return ``func`` with fields of its root block changed, as by :func:`block_with`."""
    realize = func.body
    block = block_with(realize.block, **changed)
    return func.with_body(s_tir.SBlockRealize(realize.iter_values, realize.predicate, block))


def with_accesses(node: Any, change: ChangeAccess) -> Any:
    """Return ``node`` with the loads and stores that ``change`` returns; regions stay."""

    def on_load(load: ir.TensorLoad) -> ir.Expr:
        new = change(load.source, load.indices)
        return load if new is None else tirx.BufferLoad(*new)

    def on_store(store: tirx.BufferStore) -> tirx.BufferStore:
        new = change(store.buffer, store.indices)
        return store if new is None else tirx.BufferStore(new[0], store.value, new[1])

    callbacks = [(ir.TensorLoad, on_load), (tirx.BufferStore, on_store)]
    return tvm_ffi.structural_map(node, callbacks, order="post")
