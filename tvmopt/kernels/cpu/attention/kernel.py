"""One TensorIR function for attention; queries are the lanes of vectors.

::

    parallel for batch, head, block of queries:
        QT[k, q] = Q[q, k]
        for block of keys:
            S[t, q] = scale * sum_k K[t, k] * QT[k, q] + mask    # tiles of keys x queries
            m' = max(m, max_t S[t, q]);  P[t, q] = exp(S[t, q] - m');  c = exp(m - m')
            l = c * l + sum_t P[t, q]
            OT[d, q] = c * OT[d, q] + sum_t V[t, d] * P[t, q]    # tiles of values x queries
        O[q, d] = OT[d, q] / l

K and V are read in place, as scalars that are broadcast; maximum and sum of a query need no
operation across lanes. Only Q and the output of a block are transposed. The scores of a block stay
in L1 and are never written to memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import tirx
from tvm.ir import Expr
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as build

from tvmopt.kernels.attention import AttentionProblem, MaskedBy
from tvmopt.kernels.attention.problem import ATTENTION_ATTR, AXES
from tvmopt.kernels.cpu.attention.exponential import Exponential
from tvmopt.kernels.cpu.attention.score_mask import masked_scores
from tvmopt.kernels.cpu.attention.tiling import AttentionTiling, balanced
from tvmopt.kernels.cpu.attention.transposed import store_output, transpose_queries
from tvmopt.kernels.scheduled import OPAQUE

_LOWEST = -3.4028234663852886e38  # lowest float32; exp(s - _LOWEST) is defined for s = -inf


def attention_kernel(problem: AttentionProblem, tiling: AttentionTiling) -> tirx.PrimFunc:
    """Return the function that computes ``problem``: parameters Q, K, V, [mask], output.

    Args:
        problem: A problem of float32.
        tiling: Its blocking.
    """
    names = ["q", "k", "v", *(["mask"] if problem.mask_shape is not None else []), "out"]
    with IRBuilder() as builder, build.prim_func(is_private=True, s_tir=True):
        build.func_name("main")
        build.func_attr({"tirx.noalias": True, "op_pattern": OPAQUE})
        of = {
            name: build.arg(name, build.buffer(shape, dtype))
            for name, (shape, dtype) in zip(names, problem.shapes(), strict=True)
        }
        _BlockedAttention(problem, tiling, of).emit()
    return builder.get().with_attr(ATTENTION_ATTR, problem.to_json())


class _BlockedAttention:
    def __init__(
        self, problem: AttentionProblem, tiling: AttentionTiling, of: dict[str, tirx.Buffer]
    ) -> None:
        self._p, self._t, self._of = problem, tiling, of
        self._blocks = balanced(problem.keys, tiling.key_block)
        self._single = sum(count for count, _ in self._blocks) == 1

    def emit(self) -> None:
        p, t = self._p, self._t
        blocks = -(-p.queries // t.query_block)
        with build.parallel(p.batch * p.heads * blocks) as task:
            head = task // blocks
            # The last block begins earlier, so that it is whole; some queries are computed twice.
            first = tirx.min(task % blocks * t.query_block, p.queries - t.query_block)
            self._task(head // p.heads, head % p.heads, first)

    def _task(self, b: Expr, h: Expr, first: Expr) -> None:
        """Emit one block of queries of one head."""
        p, t = self._p, self._t
        queries = t.query_block
        of = self._of
        of["qt"] = build.alloc_buffer((p.head_size, queries), "float32", scope="local")
        of["s"] = build.alloc_buffer((self._blocks[0][1], queries), "float32", scope="local")
        of["ot"] = build.alloc_buffer((p.value_size, queries), "float32", scope="local")
        for name in ("top", "max", "sum", "factor"):
            of[name] = build.alloc_buffer((queries,), "float32", scope="local")
        self._exp = Exponential(t)
        transpose_queries(p, t, of, b, h, first)
        self._fill("max", _LOWEST)
        self._fill("sum", 0.0)
        if not self._single:
            with build.serial(p.value_size) as row:
                self._each(lambda at: build.buffer_store(of["ot"], _float(0.0), [row, at]))
        begun = 0
        for count, size in self._blocks:
            with build.serial(self._visible(first, begun, count, size)) as block:
                self._key_block(b, h, first, begun + block * size, size)
            begun += count * size
        store_output(p, t, of, b, h, first)

    def _visible(self, first: Expr, begun: int, count: int, size: int) -> Expr | int:
        """Return how many of ``count`` blocks of keys a block of queries sees."""
        p = self._p
        if p.causal is MaskedBy.NOTHING:
            return count
        behind = 0 if p.causal is MaskedBy.FIRST_KEY else p.keys - p.queries
        keys = first + self._t.query_block + behind - begun
        return tirx.max(0, tirx.min(count, (keys + size - 1) // size))

    def _key_block(self, b: Expr, h: Expr, first: Expr, key: Expr, keys: int) -> None:
        of, begun = self._of, 0
        self._each(lambda at: build.buffer_store(of["top"], of["max"][at], [at]))
        for count, rows in balanced(keys, self._t.rows):
            with build.serial(count) as tile:
                self._scores(b, h, first, key, begun + tile * rows, rows)
            begun += count * rows
        self._soften(keys)
        begun = 0
        for count, rows in balanced(self._p.value_size, self._t.rows):
            with build.serial(count) as tile:
                self._values(b, h, key, keys, begun + tile * rows, rows)
            begun += count * rows

    def _scores(self, b: Expr, h: Expr, first: Expr, key: Expr, row: Expr, rows: int) -> None:
        """Emit S of one tile of keys, and the maximum."""
        p, of = self._p, self._of
        acc = self._accumulators(rows)
        with build.serial(p.head_size) as k:
            left = [self._scalar("k", p.k_axes, b, h, key + row + r, k) for r in range(rows)]
            self._multiply(acc, left, lambda at: of["qt"][k, at])
        for r in range(rows):
            for v in range(self._t.vectors):
                with build.vectorized(self._t.lanes) as lane:
                    at = v * self._t.lanes + lane
                    score = acc[r, v, lane] * _float(p.scale)
                    score = masked_scores(
                        p, of.get("mask"), score, (b, h, first + at, key + row + r)
                    )
                    build.buffer_store(acc, score, [r, v, lane])
                with build.vectorized(self._t.lanes) as lane:
                    at = v * self._t.lanes + lane
                    build.buffer_store(of["s"], acc[r, v, lane], [row + r, at])
        for r in range(rows):
            for v in range(self._t.vectors):
                with build.vectorized(self._t.lanes) as lane:
                    at = v * self._t.lanes + lane
                    top, score = of["top"][at], acc[r, v, lane]
                    build.buffer_store(of["top"], tirx.Select(top > score, top, score), [at])

    def _soften(self, keys: int) -> None:
        """Emit P in place of S, and update maximum and sum."""
        of = self._of
        if not self._single:
            self._exp.emit(
                lambda at: of["max"][at] - of["top"][at],
                lambda at, value: build.buffer_store(of["factor"], value, [at]),
            )
            self._each(
                lambda at: build.buffer_store(of["sum"], of["sum"][at] * of["factor"][at], [at])
            )
            self._each(lambda at: build.buffer_store(of["max"], of["top"][at], [at]))
        with build.serial(keys) as row:
            self._exp.emit(
                lambda at: of["s"][row, at] - of["top"][at],
                lambda at, value: build.buffer_store(of["s"], value, [row, at]),
            )
            self._each(
                lambda at: build.buffer_store(of["sum"], of["sum"][at] + of["s"][row, at], [at])
            )

    def _values(self, b: Expr, h: Expr, key: Expr, keys: int, row: Expr, rows: int) -> None:
        """Emit one tile of the output: values x queries."""
        p, of = self._p, self._of
        acc = self._accumulators(
            rows, None if self._single else lambda r, at: of["ot"][row + r, at] * of["factor"][at]
        )
        with build.serial(keys) as t:
            left = [self._scalar("v", p.v_axes, b, h, key + t, row + r) for r in range(rows)]
            self._multiply(acc, left, lambda at: of["s"][t, at])
        for r in range(rows):
            for v in range(self._t.vectors):
                with build.vectorized(self._t.lanes) as lane:
                    at = v * self._t.lanes + lane
                    build.buffer_store(of["ot"], acc[r, v, lane], [row + r, at])

    def _accumulators(
        self, rows: int, begin: Callable[[int, Expr], Expr] | None = None
    ) -> tirx.Buffer:
        vectors, lanes = self._t.vectors, self._t.lanes
        acc = build.alloc_buffer((rows, vectors, lanes), "float32", scope="local")
        for r in range(rows):
            for v in range(vectors):
                with build.vectorized(lanes) as lane:
                    value = _float(0.0) if begin is None else begin(r, v * lanes + lane)
                    build.buffer_store(acc, value, [r, v, lane])
        return acc

    def _multiply(
        self, acc: tirx.Buffer, left: Sequence[Expr], right: Callable[[Expr], Expr]
    ) -> None:
        for r, scalar in enumerate(left):
            for v in range(self._t.vectors):
                with build.vectorized(self._t.lanes) as lane:
                    product = scalar * right(v * self._t.lanes + lane)
                    build.buffer_store(acc, acc[r, v, lane] + product, [r, v, lane])

    def _scalar(self, name: str, axes: str, b: Expr, h: Expr, s: Expr, d: Expr) -> Expr:
        index = (b, h // (self._p.heads // self._p.kv_heads), s, d)
        return self._of[name][tuple(index[AXES.index(axis)] for axis in axes)].astype("float32")

    def _fill(self, name: str, value: float) -> None:
        self._each(lambda at: build.buffer_store(self._of[name], _float(value), [at]))

    def _each(self, emit: Callable[[Expr], None]) -> None:
        """Emit a statement for each vector of queries."""
        for v in range(self._t.vectors):
            with build.vectorized(self._t.lanes) as lane:
                emit(v * self._t.lanes + lane)


def _float(value: float) -> Expr:
    return tirx.const(value, "float32")
