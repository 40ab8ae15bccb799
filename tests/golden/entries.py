"""What is recorded: every entry, and the hashes and texts of its parts."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import tvm_ffi
from tvm import tirx

from . import access, functions, models
from .access import Device
from .hopper import KERNELS, Kernel

CPUS = ("haswell", "cascadelake", "sapphirerapids", "cortex-a76", "riscv64-rvv")
#: CPUs that are here for their int8 instructions alone.
BYTE_CPUS = ("graviton3", "hexagon-v68")
GPUS = ("nvidia-a100", "nvidia-h200")
#: Trials of the recorded searches.
TRIALS = 20

# Device, dtype, layout of convolutions; models, where it is not all of them.
_NETWORKS: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    ("haswell", "float32", "NHWC", ()),
    ("cascadelake", "float32", "NHWC", ()),
    ("cascadelake", "float32", "NCHW", ("resnet18", "light_squeezenet")),
    ("cascadelake", "float32", "NCHW16c", ("resnet18",)),
    ("sapphirerapids", "bfloat16", "NHWC", ()),
    ("cortex-a76", "float32", "NHWC", ()),
    ("riscv64-rvv", "float32", "NHWC", ()),
    ("nvidia-a100", "float16", "NHWC", ()),
    ("nvidia-h200", "float16", "NHWC", ()),
    ("nvidia-h200", "float32", "NHWC", ("resnet18", "bert_layer")),
)
# Of so many functions of a model one is taken: its layers differ in their channels alone. A search
# for a GPU takes ten times as long as one for a CPU.
_EVERY = {"light_densenet121": 8, "light_inception_v1": 4, "light_shufflenet": 2}
_EVERY_ON_GPU = {"mlp": 1, "bert_layer": 1, "light_densenet121": 24, "light_inception_v1": 12}
_MOSTLY_ON_GPU = 3
# CPUs that the small functions of the contract suite are not scheduled for: others are like them.
_UNSCHEDULED = ("haswell", "riscv64-rvv")

_QUICK_LAYERS = ("conv1x1_ragged", "matmul_ragged", "matmul_int8", "depthwise", "softmax_channels")
_QUICK_CONTRACT = ("conv_odd", "matmul_prime", "max_pool", "layer_norm", "gelu", "sum_columns")
_QUICK_SCHEDULES = ("cascadelake", "cortex-a76", "nvidia-h200")
_QUICK_ROWS = ("matmul_nt-1024-1024-1024-float16", "gemv_i4-4096-4096-float16")


@dataclasses.dataclass(frozen=True)
class Entry:
    """One computed thing.

    Attributes:
        group: Section, device and source, joined by slashes.
        name: Its name in the group.
        parts: By name a text, a function, or several (None: refused).
    """

    group: str
    name: str
    parts: dict[str, str | tirx.PrimFunc | Sequence[tirx.PrimFunc | None]]

    def hashes(self) -> dict[str, str]:
        """16 hexadecimal digits of each part."""
        return {part: _hash(value) for part, value in self.parts.items()}

    def texts(self) -> dict[str, str]:
        return {part: _text(value) for part, value in self.parts.items()}


def short_hash(text: str) -> str:
    """16 hexadecimal digits of the SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _hash(value: Any) -> str:
    if isinstance(value, str):
        return short_hash(value)
    if isinstance(value, tirx.PrimFunc):  # equal for equal code, whatever variables are called
        return f"{tvm_ffi.structural_hash(value) % 2**64:016x}"
    return short_hash(" ".join("refused" if one is None else _hash(one) for one in value))


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, tirx.PrimFunc):
        return str(value.script())
    return "\n".join("refused\n" if one is None else _text(one) for one in value)


def entries(quick: bool = False) -> Iterator[Entry]:
    """Every entry, in a fixed order; the quick ones are some of them."""
    if quick:
        yield from _quick()
        return
    yield from _kernels()
    for name in CPUS + BYTE_CPUS + GPUS:
        to = access.device(name)
        yield from _searches(to, "layers", functions.layers(to), applied=True)
        if name not in BYTE_CPUS:
            applied = name not in _UNSCHEDULED
            yield from _searches(to, "contract", functions.contract(to), applied=applied)
        if to.is_gpu:
            yield from _searches(to, "gpu", functions.gpu(), applied=True)
    yield from _drawn()
    yield from _models()
    yield from _tuning()


def _quick() -> Iterator[Entry]:
    """Small functions on every device; the readable kernels are compared as files."""
    for name in (*CPUS, *GPUS):
        to = access.device(name)
        yield from _searches(to, "layers", functions.layers(to, _QUICK_LAYERS))
        if name in _QUICK_SCHEDULES:
            yield from _schedules(to, "contract", functions.contract(to, _QUICK_CONTRACT))
        if to.is_gpu:
            yield from _searches(to, "gpu", functions.gpu(_QUICK_ROWS))


def _kernels() -> Iterator[Entry]:
    """Emitted CUDA of Hopper kernels."""
    for kernel in KERNELS:
        yield Entry("hopper", kernel.name, {"cuda": kernel_source(kernel)})


def kernel_source(kernel: Kernel) -> str:
    """CUDA source of a Hopper kernel of the record."""
    to = access.device("nvidia-h200")
    made = access.hopper_kernel(kernel.problem.func(), to, kernel.config)
    return access.cuda_source(made, to)


_Functions = Iterable[tuple[str, tirx.PrimFunc]]


def _searches(to: Device, source: str, found: _Functions, applied: bool = False) -> Iterator[Entry]:
    """Of each function the ranking of its configurations, and what the first choice emits.

    Args:
        to: The device.
        source: Where the functions are from.
        found: The functions, by name.
        applied: Whether other configurations are applied, too, see :func:`_applied`.
    """
    for name, func in found:
        ranked, tried = access.search(func, to, TRIALS)
        # Six digits: another order of additions is no other model.
        lines = [f"{one.cycles:.6g} {access.describe(one.config)}" for one in ranked]
        facts = [" ".join(f"{fact:.6g}" for fact in one.facts) for one in ranked]
        parts: dict[str, Any] = {
            "function": func,
            "ranked": "\n".join(lines),
            "cost_parts": "\n".join(facts),
            "tried": "\n".join(map(access.describe, tried)),
        }
        if to.is_gpu and source in ("layers", "gpu"):
            parts |= {
                f"tried_by_{kind}": "\n".join(map(access.describe, configs))
                for kind, configs in access.tried_by_seed(func, to, TRIALS).items()
            }
        chosen = access.first_choice(func, to)
        if chosen is not None:
            kernel, config = chosen
            parts |= {"chosen": access.describe(config), "kernel": kernel}
            if to.is_gpu:
                parts["cuda"] = access.cuda_source(kernel, to)
            else:
                compute, packer = access.parts(kernel)
                parts |= {"compute": compute} | ({} if packer is None else {"packer": packer})
        operator = access.anchor(func)
        if operator is not None:
            parts["operator"] = operator
        yield Entry(f"search/{to.name}/{source}", name, parts)
        if applied:
            yield Entry(f"schedule/{to.name}/{source}", name, _applied(func, to, ranked))


def _schedules(to: Device, source: str, found: _Functions) -> Iterator[Entry]:
    for name, func in found:
        ranked, _ = access.search(func, to, TRIALS)
        yield Entry(f"schedule/{to.name}/{source}", name, _applied(func, to, ranked))


def _applied(func: tirx.PrimFunc, to: Device, ranked: list[access.Ranked]) -> dict[str, Any]:
    """The first, middle and last configuration of each template, applied."""
    by_template: dict[str, list[Any]] = {}
    for one in ranked:
        by_template.setdefault(access.template_of(one.config), []).append(one.config)
    chosen = {
        template: list(dict.fromkeys(own[place] for place in (0, len(own) // 2, -1)))
        for template, own in by_template.items()
    }
    for config in access.untiled(to):
        own = chosen.setdefault(access.template_of(config), [])
        if config not in own:
            own.append(config)
    parts: dict[str, Any] = {"function": func}
    for template in sorted(chosen):
        made = [access.apply(func, config) for config in chosen[template]]
        if any(one is not None for one in made):
            parts[template] = made
    return parts


def _drawn() -> Iterator[Entry]:
    wide, gpu = access.device("cascadelake"), access.device("nvidia-h200")
    for kind in (*access.KINDS, *access.NARROW):
        yield from _schedules(wide, kind, functions.drawn(wide, kind, 6))
        yield from _schedules(gpu, kind, functions.drawn(gpu, kind, 3))
    for name in ("sapphirerapids", "cortex-a76", "riscv64-rvv", *BYTE_CPUS):
        to = access.device(name)
        for kind in access.NARROW:
            yield from _schedules(to, kind, functions.drawn(to, kind, 4))


def _models() -> Iterator[Entry]:
    """Searches of the distinct functions of models; what models share is recorded once."""
    seen: set[tuple[str, str]] = set()
    for model in models.MODELS:
        for device, dtype, layout, names in _NETWORKS:
            if names and model not in names:
                continue
            to = access.device(device)
            found = access.lower(models.module(model, dtype, layout), to)
            fresh: dict[str, tirx.PrimFunc] = {}
            for name, func in found.items():
                key = device, _hash(func.without_attr("global_symbol"))
                if key not in seen:
                    seen.add(key)
                    fresh[name] = func
            every = _EVERY.get(model, 1)
            if to.is_gpu:
                every = _EVERY_ON_GPU.get(model, _MOSTLY_ON_GPU)
            chosen = list(fresh.items())[::every]
            source = f"{model} {dtype} {layout}"
            yield from _searches(to, source, chosen)
            counts = "\n".join(f"{name} {_hash(func)}" for name, func in found.items())
            yield Entry(f"model/{device}", source, {"functions": counts})


def _tuning() -> Iterator[Entry]:
    """Tuning tasks, and the layouts and algorithms that layers are offered."""
    for model, device in (("light_squeezenet", "cascadelake"), ("resnet18", "haswell")):
        to = access.device(device)
        mod = models.module(model, "float32", "NHWC")
        parts = {
            "operators": "\n".join(access.tasks(mod, to, "operator")),
            "subgraphs": "\n".join(access.tasks(mod, to, "subgraph")),
            "alternatives": "\n".join(access.alternatives(mod, to)),
            "cycles": f"{access.network_cycles(mod, to):.6g}",
        }
        yield Entry(f"tuning/{device}", model, parts)
