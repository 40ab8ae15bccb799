"""Packing kernel: copy operands into a workspace that TMA and wgmma can read.

TMA needs rows that begin at multiples of 16 bytes, and wgmma needs K-major operands where they are
not 16 bits wide. Where an operand has another layout, a first kernel packs it, zero-padded, into a
workspace of the same PrimFunc. It also packs images of few channels and their weight
(:mod:`.few_channels_problem`). One launch packs all operands.

TVM takes the workspace from a pool that later calls reuse. A function that needs more may move the
pool: a CUDA graph of such a function must not outlive the first call of a larger one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

from tvm import tirx
from tvm.ir import Expr
from tvm.script import tirx as T  # noqa: N812
from tvm.tirx.script.builder import ir as build

from tvmopt.kernels.cuda.hopper.emit import const, quotient, remainder, when
from tvmopt.kernels.cuda.hopper.problem import BYTES, ceil_div
from tvmopt.kernels.cuda.hopper.split_float32 import (
    BLOCK,
    PARTS,
    PIECE,
    split_function,
    split_width,
)
from tvmopt.kernels.cuda.toolchain.dependent_launch import wait_for_kernel_before

# Threads of a block; bytes of one store of a thread; alignment of each packed operand in bytes.
_THREADS, _VECTOR, _ALIGN = 256, 16, 128
_WORDS = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "unsigned long long"}
_PIXELS = """
__forceinline__ __device__ void {0}(void* to, const void* from, int first, int last) {{
  const {1}* source = (const {1}*)from;
  alignas(16) {1} words[{2}];
  #pragma unroll
  for (int e = 0; e < {2}; ++e) {{
    const int p = e / {3}, c = e % {3};
    words[e] = c < {4} && p >= first && p < last ? source[p * {4} + c] : ({1})0;
  }}
  *(uint4*)to = *(const uint4*)words;
}}
"""
_TRANSPOSED = """
__forceinline__ __device__ void {0}(void* to, const void* from, long long pitch, int count) {{
  const {1}* source = (const {1}*)from;
  alignas(16) {1} words[{2}];
  #pragma unroll
  for (int e = 0; e < {2}; ++e) words[e] = e < count ? source[e * pitch] : ({1})0;
  #pragma unroll
  for (int e = 0; e < {2} * (int)sizeof({1}) / 16; ++e) ((uint4*)to)[e] = ((const uint4*)words)[e];
}}
"""
_ONE = """
__forceinline__ __device__ void {0}(void* to, const void* from, int there) {{
  *({1}*)to = there ? *(const {1}*)from : ({1})0;
}}
"""


def pitch_of(width: int, dtype: str) -> int:
    """Return the row pitch in elements: ``width`` rounded up to TMA's multiple of 16 bytes."""
    whole = 16 // BYTES[dtype]
    return ceil_div(width, whole) * whole


# Emits the packing of one item: (workspace, offset of the operand in it, item).
_Pack: TypeAlias = Callable[[tirx.Buffer, int, Expr], None]


class PackingKernel:
    """Kernel that packs operands into a workspace."""

    def __init__(self, dtype: str) -> None:
        self._dtype = dtype
        self._size = BYTES[dtype]
        self._elements = 0
        self._parts: list[tuple[int, int, _Pack]] = []
        self._workspace: tirx.Buffer = None

    def _part(self, elements: int, items: int, body: _Pack) -> int:
        """Reserve workspace for an operand; ``body(workspace, offset, item)`` packs one item."""
        offset = self._elements
        each = _ALIGN // self._size
        self._elements += ceil_div(elements, each) * each
        self._parts.append((offset, items, body))
        return len(self._parts) - 1

    def rows(self, buffer: tirx.Buffer, rows: int, width: int) -> int:
        """Pack ``rows`` rows of ``width`` elements with a pitch of :func:`pitch_of`.

        Returns:
            The index of the packed operand, for :meth:`pointer`.
        """
        pitch = pitch_of(width, self._dtype)
        # In the widest words of which a row has a whole number.
        word = math.gcd(width * self._size, 8)
        words, per = width * self._size // word, _VECTOR // word
        pieces = pitch * self._size // _VECTOR

        def body(workspace: tirx.Buffer, offset: int, item: Expr) -> None:
            row, first = quotient(item, pieces), remainder(item, pieces)
            source = _flat(buffer, rows * width, self._dtype).ptr_to(
                [row * width + first * (_VECTOR // self._size)]
            )
            target = workspace.ptr_to([offset + item * (_VECTOR // self._size)])
            _pixels(word, 1, 1, target, source, const(0), words - first * per)

        return self._part(rows * pitch, rows * pieces, body)

    def transpose(self, buffer: tirx.Buffer, batch: int, rows: int, width: int) -> int:
        """Transpose ``batch`` matrices of ``rows`` x ``width``; pad the pitch of the result.

        Returns:
            The index of the packed operand.
        """
        pitch = pitch_of(rows, self._dtype)
        # Whole sectors of memory (32 bytes) where a row has a whole number of them.
        vector = math.gcd(pitch, 2 * _VECTOR // self._size)
        pieces = pitch // vector

        def body(workspace: tirx.Buffer, offset: int, item: Expr) -> None:
            # Neighbouring threads read neighbours (coalesced loads).
            column, rest = remainder(item, width), quotient(item, width)
            first, matrix = remainder(rest, pieces) * vector, quotient(rest, pieces)
            source = _flat(buffer, batch * rows * width, self._dtype).ptr_to(
                [(matrix * rows + first) * width + column]
            )
            target = workspace.ptr_to([offset + (matrix * width + column) * pitch + first])
            name = f"copy_turned_{self._size}_{vector}"
            text = _TRANSPOSED.format(name, _WORDS[self._size], vector)
            build.evaluate(
                T.cuda.func_call(
                    name, target, source, const(width, "int64"), rows - first, source_code=text
                )
            )

        return self._part(batch * width * pitch, batch * width * pieces, body)

    def split(
        self, buffer: tirx.Buffer, batch: int, rows: int, width: int, transposed: bool
    ) -> int:
        """Split float32 matrices into TF32 parts (:mod:`.split_float32`), K-major.

        Args:
            buffer: ``batch`` matrices of ``rows`` x ``width``.
            batch: Number of matrices.
            rows: Rows of each.
            width: Elements of a row.
            transposed: Whether a column holds the elements of one K, not a row.

        Returns:
            The index of the packed operand.
        """
        lines, k = (width, rows) if transposed else (rows, width)
        size = split_width(k)
        pieces = size // PARTS // PIECE
        name, text = split_function(aligned=not transposed and k % BLOCK == 0)

        def body(workspace: tirx.Buffer, offset: int, item: Expr) -> None:
            if transposed:  # neighbouring threads read neighbours (coalesced loads)
                line, rest = remainder(item, lines), quotient(item, lines)
                piece, matrix = remainder(rest, pieces), quotient(rest, pieces)
            else:
                piece, rest = remainder(item, pieces), quotient(item, pieces)
                line, matrix = remainder(rest, lines), quotient(rest, lines)
            first = piece * PIECE
            place = first * width + line if transposed else line * width + first
            source = _flat(buffer, batch * rows * width, self._dtype).ptr_to(
                [matrix * (rows * width) + place]
            )
            block, inner = quotient(first, BLOCK), remainder(first, BLOCK)
            target = workspace.ptr_to(
                [offset + (matrix * lines + line) * size + block * (PARTS * BLOCK) + inner]
            )
            pitch = const(width if transposed else 1, "int64")
            build.evaluate(
                T.cuda.func_call(name, target, source, pitch, k - first, source_code=text)
            )

        return self._part(batch * lines * size, batch * lines * pieces, body)

    def image(
        self, buffer: tirx.Buffer, shape: Sequence[int], out: Sequence[int], filled: int,
        padding: tuple[int, int],
    ) -> int:  # fmt: skip
        """Pack an NHWC image: zero-pad its border and its channels.

        Args:
            buffer: The image.
            shape: Images, height, width and channels.
            out: Images, height, and elements of a row of the packed image.
            filled: Channels of the packed image: 1, 2, 4 or 8.
            padding: Padding at the top and at the left, in pixels.

        Returns:
            The index of the packed operand.
        """
        _, height, width, channels = shape
        _, lines, elements = out
        top, left = padding
        vector = _VECTOR // self._size
        pieces, pixels = elements // vector, vector // filled

        def body(workspace: tirx.Buffer, offset: int, item: Expr) -> None:
            row, piece = quotient(item, pieces), remainder(item, pieces)
            n, y = quotient(row, lines), remainder(row, lines) - top
            pixel = piece * pixels - left
            source = _flat(buffer, math.prod(shape), self._dtype).ptr_to(
                [((n * height + y) * width + pixel) * channels]
            )
            target = workspace.ptr_to([offset + item * vector])
            inside = tirx.all(y >= 0, y < height)
            _pixels(
                self._size, filled, channels, target, source, -pixel,
                tirx.Select(inside, width - pixel, -pixel),
            )  # fmt: skip

        return self._part(math.prod(out), math.prod(out) // vector, body)

    def elements(
        self,
        buffer: tirx.Buffer,
        total: int,
        count: int,
        place: Callable[[Expr], tuple[Expr, Expr]],
    ) -> int:
        """Pack element by element (gather).

        Args:
            buffer: The source.
            total: Elements of the source.
            count: Elements of the result.
            place: Maps the index of a packed element to its source index and a condition; where
                the condition is false, the element is zero.

        Returns:
            The index of the packed operand.
        """

        def body(workspace: tirx.Buffer, offset: int, item: Expr) -> None:
            where, there = place(item)
            source = _flat(buffer, total, self._dtype).ptr_to([where])
            name = f"copy_one_{self._size}"
            build.evaluate(
                T.cuda.func_call(
                    name, workspace.ptr_to([offset + item]), source, T.cast(there, "int32"),
                    source_code=_ONE.format(name, _WORDS[self._size]),
                )
            )  # fmt: skip

        return self._part(count, count, body)

    def emit(self) -> None:
        """Emit the workspace and the kernel, once, in host code; nothing without operands."""
        if not self._parts:
            return
        self._workspace = build.alloc_buffer((self._elements,), self._dtype, scope="global")
        blocks = [ceil_div(items, _THREADS) for _, items, _ in self._parts]
        with build.attr({"tirx.device_entry": True}):
            block = T.cta_id([sum(blocks)])
            thread = T.thread_id([_THREADS])
            build.evaluate(wait_for_kernel_before())
            first = 0
            for (offset, items, body), count in zip(self._parts, blocks, strict=True):
                item = (block - first) * _THREADS + thread
                inside = tirx.all(block >= first, item < items)
                with when(inside):
                    body(self._workspace, offset, build.Bind(item))
                first += count

    def pointer(self, part: int) -> Expr:
        """Return the address of a packed operand, for host code after :meth:`emit`."""
        return T.address_of(self._workspace[self._parts[part][0]])


def _flat(buffer: tirx.Buffer, count: int, dtype: str) -> tirx.Buffer:
    return build.decl_buffer((count,), dtype, data=buffer.data)


def _pixels(
    word: int, filled: int, channels: int, target: Expr, source: Expr, first: Expr, last: Expr
) -> None:
    name = f"copy_pixels_{word}_{filled}_{channels}"
    text = _PIXELS.format(name, _WORDS[word], _VECTOR // word, filled, channels)
    build.evaluate(T.cuda.func_call(name, target, source, first, last, source_code=text))
