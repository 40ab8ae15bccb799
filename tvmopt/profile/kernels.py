"""Facts of every kernel of a network, by name: layer, operators, shape, work, instruction set."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.s_tir.analysis import estimate_tir_flops

from tvmopt.device.cpu import CpuArch
from tvmopt.device.dtypes import dtype as row_of
from tvmopt.device.target import TargetSpec
from tvmopt.frontend.layers import Layer
from tvmopt.kernels.call_tir import is_call_tir
from tvmopt.kernels.cpu.intrinsics import instructions_used
from tvmopt.kernels.policies import policy_of
from tvmopt.transform.layer_functions import lower_by_layer
from tvmopt.transform.multi_output_fusion import ALSO
from tvmopt.transform.plan import Plan

SCALAR = "scalar"
_PREPACKED = "_prepacked"
# A word of a kernel's name: an operator, such as conv2d, with a number that makes the name unique.
_NUMBERED = re.compile(r"(.*?(?:[123]d)?)\d*")
# Prefix of operators that TVM computes by an intrinsic of TensorIR: tir_round.
_TENSOR_IR = "tir"
_WIDTHS = {512: "AVX-512", 256: "AVX2", 128: "SSE"}
_OTHERS = {"aarch64": "NEON", "riscv64": "RVV", "hexagon": "HVX"}


@dataclasses.dataclass(frozen=True)
class KernelFacts:
    """Facts of one kernel call.

    Attributes:
        name: Name of the kernel.
        layer: The layer that it computes; None for a kernel without an anchor operator.
        operators: Its operators, as TVM calls them.
        shape: Shape of its result as text.
        dtype: Compute dtype of a layer, otherwise the dtype of the result.
        instructions: Instruction set: mnemonics of dot-product and matrix instructions, the vector
            extension, or ``"scalar"``.
        flops: FLOPs of the layer, otherwise arithmetic operations as TVM counts them.
        bytes: Bytes of all its tensors.
        predicted_cycles: Cycles that the cost model predicts for its top-1 schedule; None without.
    """

    name: str
    layer: Layer | None = None
    operators: str = ""
    shape: str = ""
    dtype: str = ""
    instructions: str = ""
    flops: float = 0.0
    bytes: float = 0.0
    predicted_cycles: float | None = None


class KernelTable:
    """Looks up the facts of kernel calls.

    Args:
        mod: The converted module.
        lowered: The same, lowered for the build.
        scheduled: The same, scheduled.
        layers: Layer table of the conversion.
        target: Target of the build.
        plan: Plan of the build.
    """

    def __init__(
        self,
        mod: tvm.IRModule,
        lowered: tvm.IRModule,
        scheduled: tvm.IRModule,
        layers: Sequence[Layer],
        target: TargetSpec,
        plan: Plan,
    ) -> None:
        arch = target.arch()
        assert isinstance(arch, CpuArch)
        self._arch, self._target = arch, target
        self._lowered = {v.name_hint: f for v, f in lowered.functions_items()}
        self._scheduled = {v.name_hint: f for v, f in scheduled.functions_items()}
        self._calls = called_kernels(lowered)
        self._layers = _layers_of_calls(mod, self._calls, layers, target, plan)
        self._known: dict[str, KernelFacts] = {}

    def facts(self, names: Sequence[str]) -> list[KernelFacts]:
        """Return the facts of kernel calls, by the names that a build gives, in call order.

        A build may leave out calls, such as reshapes, but keeps their order.
        """
        found, place = [], 0
        for name in names:
            plain = name.removesuffix(_PREPACKED).partition(ALSO)[0]
            if plain not in self._calls[place:]:
                found.append(self._of(plain, None))
                continue
            place = self._calls.index(plain, place)
            found.append(self._of(plain, self._layers.get(place)))
            place += 1
        return found

    def _of(self, name: str, layer: Layer | None) -> KernelFacts:
        func = self._lowered.get(name)
        if not isinstance(func, tirx.PrimFunc):
            return KernelFacts(name, operators=name)  # a copy, or a segment in ONNX Runtime
        if name not in self._known:
            self._known[name] = self._analysed(name, func)
        facts = self._known[name]
        if layer is None:
            return facts
        return dataclasses.replace(
            facts, layer=layer, dtype=layer.dtype or facts.dtype, flops=layer.flops or facts.flops,
            instructions=self._instructions(name, layer.dtype),
        )  # fmt: skip

    def _analysed(self, name: str, func: tirx.PrimFunc) -> KernelFacts:
        result = func.params[-1]
        shape = [_extent(extent) for extent in getattr(result, "shape", ())]
        sizes = [_bytes(param) for param in func.params]
        return KernelFacts(
            name,
            operators=operators_of(name),
            shape="x".join(shape),
            dtype=str(getattr(result, "dtype", "")),
            instructions=self._instructions(name),
            flops=_flops(func),
            bytes=float(sum(sizes)),
            predicted_cycles=_predicted(func, self._arch),
        )

    def _instructions(self, name: str, layer_dtype: str = "") -> str:
        """Return the instruction set of a kernel; of a layer, given its compute dtype."""
        func = self._scheduled.get(name)
        if not isinstance(func, tirx.PrimFunc):
            return ""
        used = instructions_used(func)
        if used:
            return " ".join(used)
        if not is_vectorised(func):
            return SCALAR
        extension = vector_extension(self._target, self._arch)
        multiplies_floats = bool(layer_dtype) and row_of(layer_dtype).is_float
        has_fma = self._target.isa == "x86_64" and "fma" in self._target.cpu_flags
        return f"{extension} FMA" if multiplies_floats and has_fma else extension


def operators_of(name: str) -> str:
    """Return the operators in a kernel's name: ``fused_conv2d1_add2`` -> ``conv2d add``."""
    words = name.removeprefix("fused_").split("_")
    plain = [match[1] for word in words if (match := _NUMBERED.fullmatch(word))]
    return " ".join(word for word in plain if word and word != _TENSOR_IR)


def vector_extension(target: TargetSpec, arch: CpuArch) -> str:
    """Return the name of the vector instructions that a target's kernels use."""
    if target.isa == "x86_64":
        return _WIDTHS.get(arch.simd_bits, "SSE")
    return _OTHERS.get(target.isa, target.isa)


def is_vectorised(func: tirx.PrimFunc) -> bool:
    """Return whether a scheduled kernel has vectorised loops, or vector values."""
    found: list[object] = []

    def visit(loop: tirx.For) -> None:
        if loop.kind == tirx.ForKind.VECTORIZED:
            found.append(loop)

    tvm_ffi.structural_walk(func.body, [(tirx.For, visit), (tirx.Ramp, found.append)])
    return bool(found)


def called_kernels(lowered: tvm.IRModule) -> list[str]:
    """Return the names of the kernels that ``main`` calls, in order."""
    found: list[str] = []

    def look(expr: relax.Expr) -> None:
        if is_call_tir(expr):
            found.append(expr.args[0].name_hint)

    relax.analysis.post_order_visit(lowered["main"], look)
    return found


def _layers_of_calls(
    mod: tvm.IRModule,
    calls: Sequence[str],
    layers: Sequence[Layer],
    target: TargetSpec,
    plan: Plan,
) -> Mapping[int, Layer]:
    """Return the layer of kernel calls by their place; empty when the lowerings differ.

    Lowering by layer has the same calls in the same order, but merges no equal kernels.
    """
    by_index = {layer.index: layer for layer in layers}
    by_layer = lower_by_layer(mod, target.to_tvm(), plan)
    names = called_kernels(by_layer.mod)
    if [operators_of(name) for name in names] != [operators_of(name) for name in calls]:
        return {}
    indices = {place: by_layer.layer_of.get(name) for place, name in enumerate(names)}
    return {
        place: by_index[index]
        for place, index in indices.items()
        if index is not None and index in by_index
    }


def _extent(extent: tirx.PrimExpr) -> str:
    """Return a constant extent, or ``"?"`` for one that is known at run time only."""
    return str(int(extent)) if isinstance(extent, tirx.IntImm) else "?"


def _bytes(param: tirx.Var) -> float:
    shape = getattr(param, "shape", None)
    if shape is None or not all(isinstance(extent, tirx.IntImm) for extent in shape):
        return 0.0
    return math.prod(int(extent) for extent in shape) * float(param.dtype.itemsize)


def _flops(func: tirx.PrimFunc) -> float:
    try:
        return float(estimate_tir_flops(tvm.IRModule({"main": func})))
    except (tvm.error.TVMError, ValueError, TypeError):
        return 0.0  # loops of extents that are known at run time only


def _predicted(func: tirx.PrimFunc, arch: CpuArch) -> float | None:
    cycles = policy_of(func, arch).cycles
    return float(cycles) if math.isfinite(cycles) and cycles > 0 else None
