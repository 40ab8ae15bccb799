"""A whole Winograd convolution as one function of four kernels, for a weight that is no constant.

before -> after::

    y = conv2d(x, w)

    u = winograd_weight(w)              (points, channels, outputs)
    v = winograd_data(x)                (points, tiles, channels)
    p = winograd_product(v, u)          (points, tiles, outputs): a batched GEMM
    y = winograd_out(p)

Each stage is scheduled on its own; the kernels follow each other in one PrimFunc, whose workspace
holds ``u``, ``v`` and ``p``. In a network, constant weights are transformed when it is lowered
(``transform/winograd_gpu.py``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import tvm_ffi
from tvm import ir, s_tir, te, tirx

from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.cuda.finish import finish
from tvmopt.kernels.cuda.hopper.conv_problem import ConvProblem
from tvmopt.kernels.cuda.hopper.match import match
from tvmopt.kernels.cuda.simt.schedule import emit as emit_simt
from tvmopt.kernels.cuda.winograd.config import WinogradConvConfig
from tvmopt.kernels.cuda.winograd.schedule import emit_data, emit_out, emit_weight
from tvmopt.kernels.cuda.winograd.sizes import grid_of, sizes_of, why_not_tiles
from tvmopt.kernels.cuda.winograd.space import Transform, transform_of
from tvmopt.kernels.cuda.winograd.stages import (
    winograd_data,
    winograd_out,
    winograd_product,
    winograd_weight,
)
from tvmopt.kernels.tf32 import allow_tf32, allows_tf32
from tvmopt.kernels.workload import Refusal

CONV_NAME = "gpu_winograd_conv"
# Attribute of a function: indices of its constant weights.
_CONSTANTS = "layout_free_buffers"
# Fewest input and output channels: with fewer, the transforms outweigh the GEMM.
_LEAST_CHANNELS = 16


@dataclasses.dataclass(frozen=True)
class WinogradConv:
    """A float32 convolution with a 3 x 3 kernel of stride 1, NHWC, and a weight in HWIO.

    Attributes:
        data: Parameter with the image: (n, h, w, channels).
        weight: Parameter with the weight: (3, 3, channels, outputs).
        out: Parameter with the output.
        padding: Zero padding: top, left, bottom, right.
    """

    data: tirx.Buffer
    weight: tirx.Buffer
    out: tirx.Buffer
    padding: tuple[int, int, int, int]

    @property
    def positions(self) -> tuple[int, int, int]:
        """Images, height and width of the output."""
        images, height, width, _ = _shape(self.out)
        return images, height, width

    @property
    def channels(self) -> tuple[int, int]:
        """Input and output channels."""
        return _shape(self.data)[3], _shape(self.out)[3]

    def why_not(self, m: int, arch: CudaArch) -> str:
        """Return why tiles of ``m`` are impossible; empty where they are possible."""
        image = 1
        for extent in _shape(self.data):
            image *= extent
        return why_not_tiles(m, self.positions, *self.channels, image, arch)

    def weight_elements(self, m: int) -> int:
        """Return the elements of the transformed weight."""
        return sizes_of(m, self.positions, *self.channels)[2]

    def stages(self, m: int) -> Stages:
        """Return the functions of the stages in tiles of ``m``."""
        channels, outputs = self.channels
        _, tiles_y, tiles_x = grid_of(self.positions, m)
        points, tiles = (m + 2) ** 2, self.positions[0] * tiles_y * tiles_x
        return Stages(
            _function(winograd_weight, m, shapes=[_shape(self.weight)]),
            _function(winograd_data, m, self.padding, shapes=[_shape(self.data)]),
            _function(
                winograd_product, shapes=[(points, tiles, channels), (points, channels, outputs)]
            ),
            _function(winograd_out, m, self.positions, shapes=[(points, tiles, outputs)]),
        )


@dataclasses.dataclass(frozen=True)
class Stages:
    """Functions of a Winograd convolution before scheduling.

    Attributes:
        weight: Weight transform.
        data: Input transform.
        product: Batched GEMM.
        out: Output transform.
    """

    weight: tirx.PrimFunc
    data: tirx.PrimFunc
    product: tirx.PrimFunc
    out: tirx.PrimFunc

    @property
    def transforms(self) -> tuple[Transform, Transform] | Refusal:
        """Input and output transform, analysed."""
        data, out = transform_of(self.data), transform_of(self.out)
        if isinstance(data, Refusal):
            return data
        return out if isinstance(out, Refusal) else (data, out)


def winograd_conv(func: tirx.PrimFunc) -> WinogradConv | Refusal:
    """Return the convolution that ``func`` is, without an epilogue."""
    if allows_tf32(func):
        return Refusal("tensor cores compute it faster by TF32")
    found = match(allow_tf32(func))  # the matcher of tensor-core kernels takes float32 only so
    if isinstance(found, Refusal):
        return found
    problem, signature = found.problem, found.signature
    if not isinstance(problem, ConvProblem) or (problem.dtype, problem.out) != ("float32",) * 2:
        return Refusal("not a float32 convolution")
    if (problem.kernel, problem.stride, problem.dilation) != ((3, 3), (1, 1), (1, 1)):
        return Refusal("not a 3 x 3 convolution of stride 1")
    epilogue = problem.epilogue
    if problem.weight != "HWIO" or (epilogue and not epilogue.expr.same_as(epilogue.acc)):
        return Refusal("its weight is not HWIO, or it has an epilogue")
    if min(problem.padding) < 0 or min(problem.channels, problem.filters) < _LEAST_CHANNELS:
        return Refusal(f"it crops, or has fewer than {_LEAST_CHANNELS} channels")
    if signature.b in [int(i) for i in (func.attrs or {}).get(_CONSTANTS, [])]:
        return Refusal("its weight is constant, and transformed when the network is lowered")
    data, weight, out = (signature.buffers[i] for i in (signature.a, signature.b, signature.out))
    return WinogradConv(data, weight, out, problem.padding)


def emit_conv(func: tirx.PrimFunc, config: WinogradConvConfig) -> tirx.PrimFunc | Refusal:
    """Emit the convolution ``func`` as four kernels."""
    conv = winograd_conv(func)
    if isinstance(conv, Refusal):
        return conv
    if config.m not in (2, 4) or (why := conv.why_not(config.m, config.arch)):
        return Refusal(f"no tiles of {config.m}" + (f": {why}" if config.m in (2, 4) else ""))
    stages = conv.stages(config.m)
    transforms = stages.transforms
    if isinstance(transforms, Refusal):
        return transforms
    data, out = (transform.configs(config.arch)[0].hint for transform in transforms)
    u, v, p = (
        tirx.decl_buffer(_shape(stage.params[-1]), "float32", name)
        for stage, name in ((stages.weight, "u"), (stages.data, "v"), (stages.product, "p"))
    )
    made = (
        (emit_weight(stages.weight, config.arch), (conv.weight, u)),
        (emit_data(stages.data, data), (conv.data, v)),
        (emit_simt(stages.product, config.gemm), (v, u, p)),
        (emit_out(stages.out, out), (p, conv.out)),
    )
    bodies = []
    for schedule, buffers in made:
        if isinstance(schedule, Refusal):
            return schedule
        bodies.append(_with_buffers(schedule.mod["main"], buffers))
    return finish(in_sequence(func, bodies, [u, v, p]), func)


def in_sequence(
    func: tirx.PrimFunc, bodies: Sequence[s_tir.SBlockRealize], workspace: Sequence[tirx.Buffer]
) -> tirx.PrimFunc:
    """Return a function with the parameters of ``func`` that runs root blocks one after another.

    Args:
        func: The function that the result replaces.
        bodies: Root blocks with kernels.
        workspace: Buffers in global memory that the blocks share.
    """
    roots = [body.block for body in bodies]
    allocated = [buffer for root in roots for buffer in root.alloc_buffers]
    block = s_tir.SBlock(
        [], [], [], "root", tirx.SeqStmt([root.body for root in roots]), None,
        [*workspace, *allocated],
    )  # fmt: skip
    return func.with_body(s_tir.SBlockRealize([], tirx.IntImm("bool", True), block))


def _with_buffers(func: tirx.PrimFunc, buffers: Sequence[tirx.Buffer]) -> s_tir.SBlockRealize:
    """Return the body of ``func`` on other buffers than its parameters."""
    pairs = list(zip(func.params, buffers, strict=True))

    def on_var(var: ir.Var) -> ir.Var:
        return next((new for old, new in pairs if old.same_as(var)), var)

    return tvm_ffi.structural_map(func.body, (ir.Var, on_var), order="post")


def _function(
    compute: Callable[..., te.Tensor], *further: object, shapes: Sequence[tuple[int, ...]]
) -> tirx.PrimFunc:
    """Return the function of a stage, with float32 inputs of the given shapes."""
    inputs = [te.placeholder(shape, "float32", f"x{n}") for n, shape in enumerate(shapes)]
    return te.create_prim_func([*inputs, compute(*inputs, *further)])


def _shape(buffer: tirx.Buffer) -> tuple[int, ...]:
    return tuple(int(extent) for extent in buffer.shape)
