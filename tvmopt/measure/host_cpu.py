"""HostCpu: build candidates for this machine's CPU, check them, and time them with cold weights."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import s_tir, te, tirx
from tvm.target import Target

from tvmopt import host
from tvmopt.device import dtypes
from tvmopt.device.cpu import CpuArch
from tvmopt.device.llvm import pass_config
from tvmopt.errors import ConfigError
from tvmopt.kernels.cpu.reference import reference
from tvmopt.link import isa_of, link_options
from tvmopt.measure.check import check_places, compare, pack, result_of, run_reference
from tvmopt.measure.device import Bench, Device, Inputs
from tvmopt.measure.interleave import PLACES, Timing
from tvmopt.measure.planted import planted_cases, replaced
from tvmopt.transform.cpu_pipeline import CPU_PIPELINE

# In a network, the weights of the other layers evict a layer's weights from the caches between two
# calls. Each timed call therefore reads weights from the next slice of a pool as large as the
# network's weights. Weights below this size in bytes stay cached.
_SMALL = 4096
_MOST_POOL, _MOST_COPIED, _MOST_COPIES = 2**27, 2**25, 256


class HostCpu(Device):
    """This machine's CPU."""

    most_builders = 4
    drifts = True

    arch: CpuArch

    @property
    def threads(self) -> int:
        """Threads of a kernel."""
        return self.arch.cores

    def check_target(self, target: Target, strategy: str) -> None:
        """Raise unless ``target`` is a CPU with ``num-cores`` that this machine can link for."""
        check_cpu_target(target, strategy)

    def shared_functions(self, func: tirx.PrimFunc) -> dict[str, tirx.PrimFunc]:
        """Return ``reference``, and ``produce<i>``, which rewrites argument ``i`` before a call."""
        return {"reference": reference(func, self.arch)} | {
            f"produce{place}": producer(param, self.arch.cores)
            for place, param in enumerate(func.params[:-1])
        }

    def build(self, functions: Mapping[str, tirx.PrimFunc], path: str | None) -> None:
        """Compile functions with LLVM; link a library when there is a ``path``."""
        build_for_cpu(functions, self.arch, path)

    @contextlib.contextmanager
    def bench(self, libraries: Sequence[str], inputs: Inputs, candidates: int) -> Iterator[Bench]:
        """Load the libraries in this process."""
        modules = [tvm.runtime.load_module(library) for library in libraries]
        checker = CpuChecker(modules, inputs)
        timer = ColdTimer(modules[0], checker.arrays, inputs.constants, inputs.weight_bytes)

        def check(*candidate: Any) -> Timing:
            module, name, tensors = checker.check(*candidate)
            return timer.timing(module[name], tensors)

        yield check


def check_cpu_target(target: Target, strategy: str) -> None:
    """Raise unless ``target`` is a CPU with ``num-cores`` that this machine can link for."""
    if target.kind.name != CpuArch.kind:
        raise ConfigError(
            f"strategy {strategy!r} measures on this machine's CPU, so the target's kind must be "
            f"'llvm', but got {target.kind.name!r}; choose another strategy"
        )
    if "num-cores" not in target.attrs:
        raise ConfigError(
            f"target of strategy {strategy!r} must have num-cores, but got "
            f"{target}; add it, e.g. 'num-cores': {host.usable_cores()}"
        )
    link_options(isa_of(str(target)))  # raises when no linker exists for the candidates


def build_for_cpu(functions: Mapping[str, tirx.PrimFunc], arch: CpuArch, path: str | None) -> None:
    """Compile functions for a CPU; link a library when there is a ``path``."""
    module = tvm.IRModule(
        {name: func.with_attr("global_symbol", name) for name, func in functions.items()}
    )
    with tvm.transform.PassContext(config=pass_config(arch.isa)):
        built = tvm.tirx.build(module, target=arch.to_tvm(), pipeline=CPU_PIPELINE)
    if path is not None:
        built.export_library(path, **link_options(arch.isa))


def producer(param: tirx.Buffer, cores: int) -> tirx.PrimFunc:
    """Return a kernel that rewrites an argument in parallel, one share of the rows per core.

    In a network, another kernel has just written the activations. Part of them lies in the caches
    of other cores, and reading it costs cache-coherence traffic.
    """
    source = te.placeholder(param.shape, str(param.dtype), "source")
    copy = te.compute(param.shape, lambda *at: source[at], name="copy")
    sch = s_tir.Schedule(te.create_prim_func([source, copy]))
    loops = sch.get_loops(sch.get_sblock("copy"))
    if loops:
        share, _ = sch.split(sch.fuse(*loops), [min(cores, math.prod(map(int, param.shape))), None])
        sch.parallel(share)
    return sch.mod["main"]


class CpuChecker:
    """Checks candidates of one function against its reference, on a local or a remote CPU.

    Args:
        modules: Loaded libraries; the first has the reference.
        inputs: Arguments of the function.
        device: TVM's device; None for the local CPU.

    Attributes:
        arrays: Value of each argument.
    """

    def __init__(self, modules: Sequence[Any], inputs: Inputs, device: Any = None) -> None:
        self._modules, self._device = modules, device
        kernel = modules[0]["reference"]
        self.arrays, (*_, self._expected) = run_reference(
            kernel, inputs.shapes, inputs.seed, device, inputs.small
        )
        # More inputs with the reference's outputs: NaN must be at the same positions.
        self._cases = planted_cases(
            self.arrays,
            inputs.planted,
            inputs.seed,
            functools.partial(result_of, kernel, device=device),
        )
        # Candidates share the inputs, since uploading them to a board takes long.
        self._tensors = [tvm.runtime.tensor(array, device) for array in self.arrays[:-1]]

    def check(
        self, library: int, index: int, packed: list[int], outputs: list[tuple[list[int], str]]
    ) -> tuple[Any, str, list[Any]]:
        """Run a candidate on all inputs and compare its outputs with the reference's.

        Returns:
            Module, name and arguments of the candidate.

        Raises:
            WrongResultError: When an output differs.
        """
        module, name = self._modules[library], f"candidate{index}"
        tensors = [*self._tensors, tvm.runtime.tensor(self.arrays[-1], self._device)]
        if packed:
            pack(module[f"pack{index}"], tensors, packed, outputs, self._device)
        module[name](*tensors)
        compare(len(tensors) - 1, tensors[-1].numpy(), self._expected)
        for arrays, wanted in self._cases:
            others = replaced(tensors, self.arrays, arrays, self._device)
            module[name](*others)
            check_places(others[-1].numpy(), wanted)
        return module, name, tensors


class ColdTimer:
    """Times candidates of one function with rewritten activations and cold weights.

    Args:
        module: Library with ``produce<i>`` for each activation.
        arrays: Value of each argument.
        constants: Indices of the arguments that are weights.
        weight_bytes: Size in bytes of the network's weights.
    """

    def __init__(
        self, module: Any, arrays: Sequence[np.ndarray], constants: list[int], weight_bytes: int
    ) -> None:
        self._constants = constants
        self._weight_bytes = min(_MOST_POOL, weight_bytes)
        self._views: dict[tuple[int, ...], list[Any]] = {}
        # All candidates share the rotation, so that none reads data that another has just loaded.
        self._calls = itertools.count()
        sources = [tvm.runtime.tensor(array) for array in arrays]
        self._places = [[tvm.runtime.tensor(a) for a in arrays] for _ in range(PLACES)]
        activations = [i for i in range(len(arrays) - 1) if i not in constants]
        self._producers = [
            [(module[f"produce{i}"], sources[i], tensors[i]) for i in activations]
            for tensors in self._places
        ]

    def timing(self, kernel: Any, tensors: Sequence[Any]) -> Timing:
        """Return the timing function of a candidate.

        Before each call it rewrites the activations and switches to another copy of the weights.

        Args:
            kernel: The candidate.
            tensors: Its arguments; weights may be packed.
        """
        weights = {i: tensors[i] for i in self._constants}
        copies = [weights]
        heavy = [i for i, weight in weights.items() if _bytes(weight) >= _SMALL]
        if heavy:
            views = zip(*(self._cold(weights[i]) for i in heavy), strict=False)
            copies = [weights | dict(zip(heavy, cold, strict=True)) for cold in views]

        def call(times: int) -> float:
            spent = 0.0
            for _ in range(times):
                for place, producers in zip(self._places, self._producers, strict=True):
                    arguments = list(place)
                    for i, weight in copies[next(self._calls) % len(copies)].items():
                        arguments[i] = weight
                    for produce, source, target in producers:
                        produce(source, target)
                    start = time.perf_counter()
                    kernel(*arguments)
                    spent += time.perf_counter() - start
            return spent / times / len(self._places)

        return call

    def _cold(self, weight: Any) -> list[Any]:
        """Return views like ``weight`` spread over the pool; copies if its dtype is not float32."""
        shape, size = tuple(weight.shape), _bytes(weight)
        copies = max(1, min(_MOST_COPIES, self._weight_bytes // size))
        if str(weight.dtype) != "float32":
            copies = max(1, min(copies, _MOST_COPIED // size))
            return [weight, *(tvm.runtime.tensor(weight.numpy()) for _ in range(copies - 1))]
        if shape not in self._views:
            count = math.prod(shape)
            spread = max(self._weight_bytes // 4 // copies, -(-count // 16) * 16) // 16 * 16
            pool = _pool(max(self._weight_bytes // 4, spread * copies))
            self._views[shape] = [
                tvm.runtime.from_dlpack(pool[at : at + count].reshape(shape))
                for at in range(0, copies * spread, spread)
            ]
        return self._views[shape]


def _bytes(tensor: Any) -> int:
    return math.prod(tensor.shape) * dtypes.dtype(str(tensor.dtype)).numpy.itemsize


@functools.lru_cache(maxsize=1)
def _pool(size: int) -> np.ndarray:
    """Return ``size`` random float32 numbers, aligned to 64 bytes."""
    values = np.random.default_rng(0).random(size + 16, dtype=np.float32)
    first = -(values.ctypes.data // 4) % 16
    return values[first : first + size]
