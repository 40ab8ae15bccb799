"""Split a scheduled function into weight prepacking (build time) and compute (every call)."""

from __future__ import annotations

import dataclasses

from tvm import relax, tirx

from tvmopt.kernels.cpu.common.nest import packing_blocks


@dataclasses.dataclass(frozen=True)
class Split:
    """The two parts of a scheduled function.

    Attributes:
        compute: Function that runs at every call.
        packer: Function that packs the parameters ``packed`` into the layout that ``compute``
            reads. It takes these parameters, then its outputs. None when nothing is packed.
        packed: Indices of the packed parameters.
    """

    compute: tirx.PrimFunc
    packer: tirx.PrimFunc | None
    packed: tuple[int, ...]

    @property
    def outputs(self) -> list[tuple[list[int], str]]:
        """Shape and dtype of each output of ``packer``."""
        written = self.packer.params[len(self.packed) :] if self.packer is not None else ()
        return [([int(e) for e in buffer.shape], str(buffer.dtype)) for buffer in written]


def split_packing(func: tirx.PrimFunc) -> Split:
    """Split ``func`` as ``relax.transform.SplitLayoutRewritePreproc`` does in a network."""
    sources = [block.reads[0].source for block in packing_blocks(func)]
    if not sources:
        return Split(func, None, ())
    # In the order of the blocks, which is the packer's parameter order; a bias may be packed first.
    packed = [next(i for i, p in enumerate(func.params) if p.same_as(source)) for source in sources]
    builder = relax.BlockBuilder()
    kernel = builder.add_func(func.without_attr("global_symbol"), "kernel")
    types = [relax.TensorType(tuple(int(e) for e in p.shape), str(p.dtype)) for p in func.params]
    arguments = [relax.Var(f"p{i}", ty) for i, ty in enumerate(types[:-1])]
    with builder.function("main", arguments):
        builder.emit_func_output(builder.emit(relax.call_tir(kernel, arguments, types[-1])))
    parts = relax.transform.SplitLayoutRewritePreproc()(builder.get())
    by_name = {var.name_hint: f for var, f in parts.functions_items()}
    return Split(by_name["kernel_prepacked"], by_name["kernel_weight_prepack"], tuple(packed))
