"""The adapter between the record and the package: the only file here that imports ``tvmopt``.

A restructure of the package edits this file and no other of this folder. What the functions return
is in the words of the record, which never change: configurations come out as today's names and
values (:func:`describe`), and Hopper configurations come in as the names of :func:`hopper_kernel`.
A module path or a class name of the package must not get into the record.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any

import onnx
import tvm
from tvm import relax, tirx

from tests.kernels.cpu.drawn import Drawn, Operand
from tests.kernels.cpu.kinds import KINDS, NARROW
from tests.kernels.cpu.test_contract import CASES
from tests.kernels.cuda.functions import int4_product, product, sums
from tests.kernels.cuda.products import Case, Conv
from tests.kernels.cuda.winograd import Problem as WinogradProblem
from tvmopt.device.cpu import CpuArch
from tvmopt.device.cuda import CudaArch
from tvmopt.device.features import vector_registers
from tvmopt.device.gpus import GPUS
from tvmopt.device.target import resolve_target
from tvmopt.frontend import import_onnx, parse_input_shapes, prepare
from tvmopt.kernels.cpu.hint import CpuHint
from tvmopt.kernels.cuda.block_reduction.config import BlockReductionConfig
from tvmopt.kernels.cuda.build import build_kernels
from tvmopt.kernels.cuda.column_reduction.config import (
    ColumnWalkConfig,
    CudaColumnReductionConfig,
)
from tvmopt.kernels.cuda.elementwise.config import (
    CopyConfig,
    CudaElementwiseConfig,
    TransposeConfig,
)
from tvmopt.kernels.cuda.gemv.config import GemvConfig
from tvmopt.kernels.cuda.hint import CudaHint
from tvmopt.kernels.cuda.hopper.config import CONV, GEMM, HopperConfig, HopperConvConfig
from tvmopt.kernels.cuda.int4.config import Int4Config
from tvmopt.kernels.cuda.mma.config import MmaConfig
from tvmopt.kernels.cuda.row_reduction.config import CudaRowReductionConfig
from tvmopt.kernels.cuda.simt.config import SimtConfig
from tvmopt.kernels.cuda.tensor_core_policy import TensorCorePolicy, get_tensorized_func_and_tags
from tvmopt.kernels.cuda.window.config import CudaFallbackConfig, CudaWindowConfig
from tvmopt.kernels.cuda.winograd.config import WinogradTransformConfig
from tvmopt.kernels.emit import NotApplicable, emit_kernel
from tvmopt.kernels.families import by_name, families_of
from tvmopt.kernels.first_choice import schedule_function
from tvmopt.kernels.graph_cost import modelled_cycles
from tvmopt.kernels.policies import DefaultPolicy, policy_of
from tvmopt.measure.split import split_packing
from tvmopt.transform.conversion import convert_module
from tvmopt.transform.lower import lower as lower_module
from tvmopt.tune.alternatives import find_alternatives
from tvmopt.tune.operator import operator_function
from tvmopt.tune.tasks import extract_tasks

__all__ = [
    "CASES", "KINDS", "NARROW", "Case", "Conv", "Drawn", "Operand", "WinogradProblem",
    "int4_product", "product", "sums",
]  # fmt: skip

_THREADS = 4
# Templates that need no tile sizes: their default configuration is a configuration.
_UNTILED = (
    "elementwise", "row_reduction", "column_reduction", "strided_window", "contraction",
    "contraction_in_place", "fallback",
)  # fmt: skip
# The record's words for fields and values of CPU configurations; the defaults are the record's.
_CPU_WORDS = {
    "register_tile": "block", "l2_block": "task", "k_block": "rstep",
    "loops_in_k_block": "accumulate", "loop_order": "order", "parallel_loops": "parallel",
    "producer_depth": "stage", "packing": "pack", "intrinsic": "intrin",
    "prefetch_bytes": "prefetch", "tasks_per_core": "tasks", "vector_registers": "vectors",
}  # fmt: skip
_PACKING_WORDS = {"runtime": "call", "prepacked": "constant"}


@dataclasses.dataclass(frozen=True)
class Device:
    """What kernels are made for. Nothing of it is read from the machine that records.

    Attributes:
        name: LLVM's or our name of a CPU, or our name of a GPU.
        arch: The package's descriptor.
        target: TVM's target.
    """

    name: str
    arch: Any
    target: Any

    @property
    def is_gpu(self) -> bool:
        return isinstance(self.arch, CudaArch)


def device(name: str) -> Device:
    """The device called ``name``; a CPU has four threads and the default caches and bandwidths."""
    if name in GPUS:
        return Device(name, GPUS[name], GPUS[name].to_tvm())
    spec = resolve_target(name, _THREADS)
    bits, registers = vector_registers(spec.isa, spec.cpu_flags)
    arch = CpuArch(
        spec.mcpu, spec.isa, _THREADS, bits, registers, mattr=spec.mattr, mtriple=spec.mtriple
    )
    return Device(name, arch, arch.to_tvm())


# -- functions -------------------------------------------------------------------------------------


def lower(mod: tvm.IRModule, to: Device) -> dict[str, tirx.PrimFunc]:
    """The fused TensorIR functions of a Relax module by name, in the module's order."""
    lowered = lower_module(mod, to.target)
    found = lowered.functions_items()
    return {var.name_hint: f for var, f in found if isinstance(f, tirx.PrimFunc)}


def imported(model: onnx.ModelProto, shapes: str) -> tvm.IRModule:
    """An ONNX model as a Relax module; ``shapes`` fixes its inputs, ``name:2x3,...``."""
    return import_onnx(prepare(model, parse_input_shapes(shapes)).model)


def converted(mod: tvm.IRModule, dtype: str, layout: str) -> tvm.IRModule:
    """An imported module in a dtype and a layout of the convolutions."""
    return convert_module(mod, dtype=dtype, layout=layout).mod


# -- configurations --------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Ranked:
    """A configuration with its predicted cycles and the parts of the prediction."""

    config: Any
    cycles: float
    facts: tuple[float, ...]


def search(func: tirx.PrimFunc, to: Device, count: int) -> tuple[list[Ranked], list[Any]]:
    """Every configuration of every template, best first; and what ``count`` trials measure."""
    policy = policy_of(func, to.arch)
    found = [Ranked(one.hint, one.cycles, one.facts) for one in policy.ranked]
    return found, policy.emit_config(count)


def tried_by_seed(func: tirx.PrimFunc, to: Device, count: int) -> dict[str, list[Any]]:
    """The same from the classes whose names are public: of plain threads and of tensor cores."""
    normal, tags = get_tensorized_func_and_tags(func, to.target)
    found = {"threads": DefaultPolicy(func, to.arch).emit_config(count)}
    if tags:
        found["tensor_cores"] = TensorCorePolicy(normal, to.arch, tags).emit_config(count)
    return found


def describe(config: Any) -> str:
    """The template and every value that is not the default, as JSON with sorted keys."""
    if isinstance(config, HopperConfig):
        return json.dumps(_hopper_values(config), sort_keys=True, separators=(",", ":"))
    if isinstance(config, CudaHint):
        values = {"template": config.template} | _recorded(config)
        return json.dumps(values, sort_keys=True, separators=(",", ":"))
    values = {
        field.name: getattr(config, field.name)
        for field in dataclasses.fields(config)
        if field.name != "arch" and getattr(config, field.name) != field.default
    }
    if isinstance(config, CpuHint):
        values = {_CPU_WORDS.get(name, name): value for name, value in values.items()}
        if "pack" in values:
            values["pack"] = _PACKING_WORDS[values["pack"]]
    return json.dumps(values, sort_keys=True, separators=(",", ":"))


# Defaults of the record's words for CUDA configurations.
_DEFAULTS: dict[str, Any] = {
    "block": (), "thread": (), "warp": (), "rstep": 0, "reduce_threads": 1, "vector": 1,
    "stages": 1, "async_copy": False, "split_k": 1, "raster": 0, "options": {},
}  # fmt: skip


def _recorded(config: CudaHint) -> dict[str, Any]:
    """A CUDA configuration in the record's words, without defaults."""
    words = _words(config)
    return {word: value for word, value in words.items() if value != _DEFAULTS[word]}


def _words(c: CudaHint) -> dict[str, Any]:
    match c:
        case MmaConfig():
            options = {"ahead": int(c.double_buffer_fragments), "pack": c.pack_a + 2 * c.pack_b}
            return {
                "block": c.tile, "warp": c.warp_tile, "rstep": c.k_block, "stages": c.stages,
                "async_copy": c.async_copy, "split_k": c.split_k, "raster": c.raster_group,
                "options": {word: value for word, value in options.items() if value},
            }  # fmt: skip
        case SimtConfig():
            return {
                "block": c.tile, "thread": c.threads, "rstep": c.k_block, "stages": c.stages,
                "async_copy": c.async_copy, "split_k": c.split_k, "raster": c.raster_group,
                "options": {} if c.warp_rows == 4 else {"lanes_m": c.warp_rows},
            }  # fmt: skip
        case GemvConfig():
            return {
                "block": (c.rows_per_thread,), "thread": (c.threads,),
                "reduce_threads": c.reduce_threads, "vector": c.vector_elements,
                "options": {"unroll": c.unroll},
            }  # fmt: skip
        case Int4Config():
            return {
                "block": (c.tile,), "warp": (c.warp_tile,), "stages": c.stages,
                "reduce_threads": c.reduce_warps, "options": {"unroll": 2},
            }  # fmt: skip
        case CudaRowReductionConfig():
            return {
                "thread": (c.threads,), "reduce_threads": c.reduce_threads,
                "vector": c.vector_elements,
                "options": {"stage": int(c.row_cache), "unroll": c.unroll},
            }  # fmt: skip
        case CudaColumnReductionConfig():
            return {
                "thread": (c.threads,), "reduce_threads": c.reduce_threads,
                "vector": c.vector_elements, "split_k": c.split_k,
                "options": {"tree": int(c.tree), "unroll": c.unroll},
            }  # fmt: skip
        case ColumnWalkConfig():
            return {"thread": (c.threads,), "options": {"unroll": c.unroll}}
        case BlockReductionConfig():
            return {
                "thread": (c.threads,), "reduce_threads": c.reduce_threads,
                "split_k": c.split_k, "options": {"unroll": c.unroll},
            }  # fmt: skip
        case CudaElementwiseConfig():
            return {
                "thread": (c.threads,), "vector": c.vector_elements,
                "options": {"direct": int(c.vectorize_compute), "unroll": c.vectors_per_thread},
            }  # fmt: skip
        case TransposeConfig():
            return {
                "block": c.tile, "thread": (c.threads,), "vector": c.vector_elements,
                "options": {"pad": c.row_padding},
            }  # fmt: skip
        case CopyConfig():
            return {"thread": (c.threads,), "options": {"unroll": c.vectors_per_thread}}
        case CudaWindowConfig():
            return {
                "thread": (c.threads,), "vector": c.vector_elements,
                "options": {
                    "direct": int(c.vectorize_compute), "tile": c.vectors_per_thread, "unroll": 64,
                },
            }  # fmt: skip
        case CudaFallbackConfig():
            return {"thread": (c.threads,), "options": {"direct": 1}}
        case WinogradTransformConfig():
            return {
                "thread": (c.threads,), "vector": c.vector_elements,
                "options": {"tiles": c.tiles_per_thread},
            }  # fmt: skip
    raise TypeError(f"the record has no words for a {type(c).__name__}")


def _hopper_values(c: HopperConfig) -> dict[str, Any]:
    """A Hopper configuration in the names and values of the record."""
    options = {
        "persistent": int(c.persistent),
        "staged": int(c.smem_store),
        "buffers": c.epilogue_buffers,
        "flight": c.wgmma_wait_depth,
    }
    if c.split_k_workspace:
        options["apart"] = 1
    if c.cluster_n > 1:
        options["beside"] = c.cluster_n
    if c.pingpong:
        options["pingpong"] = 1
    if isinstance(c, HopperConvConfig) and c.pixel_box is not None:
        names = ("box_images", "box_lines", "box_columns")
        options |= dict(zip(names, c.pixel_box, strict=True))
    values = {
        "template": c.template,
        "block": (c.tile_m, c.tile_n),
        "warp": (64 * c.m_atoms, c.tile_n),
        "rstep": c.tile_k,
        "async_copy": True,
        "raster": c.raster_group,
        "options": options,
    }
    for name, value in (("stages", c.stages), ("split_k", c.split_k), ("cluster", c.cluster_m)):
        values |= {name: value} if value > 1 else {}
    return values | ({"swap": True} if c.swap_ab else {})


def template_of(config: Any) -> str:
    return config.template


def templates(to: Device) -> list[str]:
    """Every template of the kind of device."""
    return [family.name for family in families_of(to.arch)]


def untiled(to: Device) -> list[Any]:
    """The default configuration of each template that needs no tile sizes."""
    return [] if to.is_gpu else [by_name()[name].config_type(name, to.arch) for name in _UNTILED]


# -- kernels ---------------------------------------------------------------------------------------


def apply(func: tirx.PrimFunc, config: Any) -> tirx.PrimFunc | None:
    """``func`` under a configuration, ready to be compiled; None where that is refused."""
    try:
        return emit_kernel(func, config)
    except NotApplicable:
        return None


def first_choice(func: tirx.PrimFunc, to: Device) -> tuple[tirx.PrimFunc, Any] | None:
    """The kernel that a build without tuning uses, and its configuration; None without any."""
    scheduled = schedule_function(func, to.arch)
    return None if scheduled.hint is None else (scheduled.func, scheduled.hint)


def parts(kernel: tirx.PrimFunc) -> tuple[tirx.PrimFunc, tirx.PrimFunc | None]:
    """What runs at every call of a CPU kernel, and what packs its weights once."""
    split = split_packing(kernel)
    return split.compute, split.packer


def cuda_source(kernel: tirx.PrimFunc, to: Device) -> str:
    """The CUDA source of a kernel; neither a GPU nor CUDA's compiler is needed."""

    def sources(module: Any) -> Iterator[str]:
        for inner in module.imports:
            yield str(inner.inspect_source())
            yield from sources(inner)

    return "\n".join(sources(build_kernels({"main": kernel}, to.arch)))


def hopper_kernel(func: tirx.PrimFunc, to: Device, values: Mapping[str, Any]) -> tirx.PrimFunc:
    """The warp-specialised kernel of a GEMM or a convolution.

    Args:
        func: The function.
        to: A Hopper GPU.
        values: ``consumers``, ``wgmma_m`` (64-row blocks of a consumer), ``tile_n``, ``stages``,
            ``cluster_m``, ``cluster_n``, ``split_k``, ``workspace`` (split-K through memory and not
            in a cluster), ``swap_ab``, ``raster``, ``persistent``, ``tma_store``,
            ``epilogue_stages``, ``in_flight`` (wgmma groups), ``box`` (images, lines and columns of
            a consumer's tile; the function is a convolution).
    """
    of = dict(values)
    dtype = func.params[0].dtype
    fields = {
        "tile_k": 128 // dtype.itemsize,
        "m_atoms": of.pop("wgmma_m", 1),
        "consumer_warpgroups": of.pop("consumers", 2),
        "tile_n": of.pop("tile_n"),
        "stages": of.pop("stages", 4),
        "cluster_m": of.pop("cluster_m", 1),
        "cluster_n": of.pop("cluster_n", 1),
        "split_k": of.pop("split_k", 1),
        "split_k_workspace": of.pop("workspace", False),
        "swap_ab": of.pop("swap_ab", False),
        "raster_group": of.pop("raster", 8),
        "persistent": of.pop("persistent", True),
        "smem_store": not of.pop("tma_store", True),
        "epilogue_buffers": of.pop("epilogue_stages", 1),
        "wgmma_wait_depth": of.pop("in_flight", 1),
    }
    if "box" in of:
        config = HopperConvConfig(CONV, to.arch, pixel_box=of.pop("box"), **fields)
    else:
        config = HopperConfig(GEMM, to.arch, **fields)
    assert not of, of
    return emit_kernel(func, config)


# -- tuning ----------------------------------------------------------------------------------------


def tasks(mod: tvm.IRModule, to: Device, granularity: str) -> list[str]:
    """The tuning tasks of a converted module: name, calls, shapes and why it is left out."""
    found = extract_tasks(lower_module(mod, to.target), to.target, granularity)
    return [f"{t.name} {t.weight} {t.flops:.6g} {t.shape} {t.left_out}" for t in found]


def alternatives(mod: tvm.IRModule, to: Device) -> list[str]:
    """How each layer of a converted module can be computed, with predicted cycles."""
    found = find_alternatives(mod, to.target, to.arch)
    listed = () if found is None else found.implementations
    return [f"{w.layer} {w.implementation} {w.cycles:.6g} {w.hopeless}" for w in listed]


def network_cycles(mod: tvm.IRModule, to: Device) -> float:
    """Predicted cycles of a converted module."""
    return modelled_cycles(lower_module(mod, to.target), to.arch)


def anchor(func: tirx.PrimFunc) -> tirx.PrimFunc | None:
    """The operator of a fused function, alone; tuning by operator keys records by it."""
    return operator_function(func)


def relax_function(drawn: Drawn) -> tvm.IRModule:
    """``drawn`` as a Relax module: constant operands come last and are no inputs."""
    order = sorted(range(len(drawn.operands)), key=lambda n: drawn.operands[n].constant)
    params = {
        n: relax.Var(f"x{n}", relax.TensorType(drawn.operands[n].shape, drawn.operands[n].dtype))
        for n in order
    }
    builder = relax.BlockBuilder()
    inputs = sum(not operand.constant for operand in drawn.operands)
    with builder.function("main", list(params.values()), {"num_input": inputs}):
        with builder.dataflow():
            result = drawn.build(*(params[n] for n in range(len(params))))
            out = builder.emit_output(builder.normalize(result))
        builder.emit_func_output(out)
    return builder.get()
