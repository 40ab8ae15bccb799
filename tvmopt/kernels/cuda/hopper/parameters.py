"""Parameters of a Hopper kernel: buffers declared as in the PrimFunc that it replaces."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TypeAlias

from tvm import tirx
from tvm.ir import Expr
from tvm.tirx.script.builder import ir as build

from tvmopt.kernels.cuda.hopper.epilogue import Epilogue
from tvmopt.kernels.cuda.hopper.problem import KernelSignature

_Shape: TypeAlias = Sequence[Expr | int]

#: Attribute of a generated kernel: the name of its template.
KERNEL_ATTR = "tvmopt.kernel"


@dataclasses.dataclass(frozen=True)
class Parameters:
    """Buffers of a kernel under construction.

    Attributes:
        a: A, or the image; a pointer to the packed operand where it is packed.
        b: B, or the weight; likewise.
        out: The output.
        inputs: Inputs of the epilogue.
    """

    a: tirx.Buffer
    b: tirx.Buffer
    out: tirx.Buffer
    inputs: list[tirx.Buffer]


def mark(name: str | None, kernel: str) -> None:
    """Emit the attributes of the PrimFunc.

    Args:
        name: Global symbol; None for a private PrimFunc.
        kernel: Name of the kernel's template.
    """
    opaque = 8  # relax.op.OpPatternKind.kOpaque: FuseOps fuses nothing with it
    symbol = {} if name is None else {"global_symbol": name}
    build.func_attr(
        symbol
        | {
            "tirx.is_scheduled": True,
            "op_pattern": opaque,
            KERNEL_ATTR: kernel,
        }
    )


def plain_signature(
    a: tuple[_Shape, str], b: tuple[_Shape, str], out: tuple[_Shape, str],
    epilogue: Epilogue, rows: Expr | None = None,
) -> KernelSignature:  # fmt: skip
    """Return the signature A, B, the epilogue's inputs, output, from shapes and dtypes."""
    buffers = [
        tirx.decl_buffer(tuple(shape), dtype, name=name)
        for name, (shape, dtype) in (("a", a), ("b", b))
    ]
    buffers += epilogue.inputs
    buffers.append(tirx.decl_buffer(tuple(out[0]), out[1], name="out"))
    last = len(buffers) - 1
    return KernelSignature(tuple(buffers), 0, 1, last, tuple(range(2, last)), rows)


def declare(signature: KernelSignature) -> Parameters:
    """Emit the parameters into the PrimFunc being built."""
    handles = [
        build.arg(f"p_{i}_{buffer.name}", build.handle())
        for i, buffer in enumerate(signature.buffers)
    ]
    found = [
        build.match_buffer(handle, tuple(buffer.shape), dtype=str(buffer.dtype), align=16)
        for handle, buffer in zip(handles, signature.buffers, strict=True)
    ]
    return Parameters(
        found[signature.a],
        found[signature.b],
        found[signature.out],
        [found[i] for i in signature.inputs],
    )
