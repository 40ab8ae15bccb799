"""Copies of operands that the copy engine cannot address, made by a kernel of their own.

The copy engine wants rows that begin at multiples of 16 bytes, and the tensor cores want 8-bit
operands along the depth. Where an operand's rows are others, a first kernel writes them, zeros
behind each, into a workspace of the same function; so does it with images of few channels and their
weight (:mod:`.lines`). All parts are written by one launch.

TVM takes the workspace from a pool that every later call finds again. A function that asks for more
may move it: a CUDA graph of such a function must not outlive the first call of a larger one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx
from tvm.script import tirx as T  # noqa: N812
from tvm.tirx.script.builder import ir as build

from tvmopt.kernels.cuda.hopper.emit import const, quotient, remainder, when
from tvmopt.kernels.cuda.hopper.problem import BYTES, ceil_div
from tvmopt.kernels.cuda.toolchain.dependent_launch import wait_for_kernel_before

# Threads of a block; bytes that a thread writes at once; where parts begin, in bytes.
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
_TURNED = """
__forceinline__ __device__ void {0}(void* to, const void* from, long long pitch, int count) {{
  const {1}* source = (const {1}*)from;
  alignas(16) {1} words[{2}];
  #pragma unroll
  for (int e = 0; e < {2}; ++e) words[e] = e < count ? source[e * pitch] : ({1})0;
  *(uint4*)to = *(const uint4*)words;
}}
"""
_ONE = """
__forceinline__ __device__ void {0}(void* to, const void* from, int there) {{
  *({1}*)to = there ? *(const {1}*)from : ({1})0;
}}
"""


def pitch_of(width: int, dtype: str) -> int:
    """Elements between rows of ``width`` elements that the copy engine can address."""
    whole = 16 // BYTES[dtype]
    return ceil_div(width, whole) * whole


class Copies:
    """Operands to copy, and the kernel that does it."""

    def __init__(self, dtype: str) -> None:
        self._dtype = dtype
        self._size = BYTES[dtype]
        self._elements = 0
        self._parts: list[tuple[int, int, Callable[[Any, Any, Any], None]]] = []
        self._workspace: Any = None

    def _part(self, elements: int, items: int, body: Callable[[Any, Any, Any], None]) -> int:
        """Room for a part; ``body(workspace, offset, item)`` copies one of its items."""
        offset = self._elements
        each = _ALIGN // self._size
        self._elements += ceil_div(elements, each) * each
        self._parts.append((offset, items, body))
        return len(self._parts) - 1

    def rows(self, buffer: Any, rows: int, width: int) -> int:
        """Copy ``rows`` rows of ``width`` elements; they get a pitch of :func:`pitch_of`.

        Returns:
            The number of the part.
        """
        pitch = pitch_of(width, self._dtype)
        # In the widest words that rows are whole numbers of.
        word = math.gcd(width * self._size, 8)
        words, per = width * self._size // word, _VECTOR // word
        pieces = pitch * self._size // _VECTOR

        def body(workspace: Any, offset: int, item: Any) -> None:
            row, first = quotient(item, pieces), remainder(item, pieces)
            source = _flat(buffer, rows * width, self._dtype).ptr_to(
                [row * width + first * (_VECTOR // self._size)]
            )
            target = workspace.ptr_to([offset + item * (_VECTOR // self._size)])
            _pixels(word, 1, 1, target, source, const(0), words - first * per)

        return self._part(rows * pitch, rows * pieces, body)

    def turned(self, buffer: Any, batch: int, rows: int, width: int) -> int:
        """Copy ``batch`` matrices of ``rows`` x ``width`` as ``width`` rows of the other pitch.

        Returns:
            The number of the part.
        """
        pitch = pitch_of(rows, self._dtype)
        at_once = _VECTOR // self._size
        pieces = pitch // at_once

        def body(workspace: Any, offset: int, item: Any) -> None:
            # Neighbouring threads read neighbours.
            column, rest = remainder(item, width), quotient(item, width)
            first, matrix = remainder(rest, pieces) * at_once, quotient(rest, pieces)
            source = _flat(buffer, batch * rows * width, self._dtype).ptr_to(
                [(matrix * rows + first) * width + column]
            )
            target = workspace.ptr_to([offset + (matrix * width + column) * pitch + first])
            name = f"copy_turned_{self._size}"
            text = _TURNED.format(name, _WORDS[self._size], at_once)
            build.evaluate(
                T.cuda.func_call(
                    name, target, source, const(width, "int64"), rows - first, source_code=text
                )
            )

        return self._part(batch * width * pitch, batch * width * pieces, body)

    def image(
        self, buffer: Any, shape: Sequence[int], out: Sequence[int], filled: int,
        padding: tuple[int, int],
    ) -> int:  # fmt: skip
        """Copy an image, zeros around it, with more channels.

        Args:
            buffer: The image.
            shape: Its images, lines, pixels and channels.
            out: Images, lines, and elements of a line of the copy.
            filled: Channels of the copy: 1, 2, 4 or 8.
            padding: Zeros above and to the left, in lines and pixels.

        Returns:
            The number of the part.
        """
        _, height, width, channels = shape
        _, lines, elements = out
        top, left = padding
        at_once = _VECTOR // self._size
        pieces, pixels = elements // at_once, at_once // filled

        def body(workspace: Any, offset: int, item: Any) -> None:
            row, piece = quotient(item, pieces), remainder(item, pieces)
            n, y = quotient(row, lines), remainder(row, lines) - top
            pixel = piece * pixels - left
            source = _flat(buffer, math.prod(shape), self._dtype).ptr_to(
                [((n * height + y) * width + pixel) * channels]
            )
            target = workspace.ptr_to([offset + item * at_once])
            inside = tirx.all(y >= 0, y < height)
            _pixels(
                self._size, filled, channels, target, source, -pixel,
                tirx.Select(inside, width - pixel, -pixel),
            )  # fmt: skip

        return self._part(math.prod(out), math.prod(out) // at_once, body)

    def elements(
        self, buffer: Any, total: int, count: int, place: Callable[[Any], tuple[Any, Any]]
    ) -> int:
        """Copy element by element.

        Args:
            buffer: What to copy from, of ``total`` elements.
            total: Its elements.
            count: Elements of the copy.
            place: Takes the number of an element of the copy, and gives where it comes from, and
                whether it does: otherwise it is zero.

        Returns:
            The number of the part.
        """

        def body(workspace: Any, offset: int, item: Any) -> None:
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
        """Emit the workspace and the kernel; for the host's side, once, where there are parts."""
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

    def pointer(self, part: int) -> Any:
        """Where a part lies; for the host's side, after :meth:`emit`."""
        return T.address_of(self._workspace[self._parts[part][0]])


def _flat(buffer: Any, count: int, dtype: str) -> Any:
    return build.decl_buffer((count,), dtype, data=buffer.data)


def _pixels(
    word: int, filled: int, channels: int, target: Any, source: Any, first: Any, last: Any
) -> None:
    name = f"copy_pixels_{word}_{filled}_{channels}"
    text = _PIXELS.format(name, _WORDS[word], _VECTOR // word, filled, channels)
    build.evaluate(T.cuda.func_call(name, target, source, first, last, source_code=text))
