"""Resolve a user's target text to one CPU with features and threads, or one GPU."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any

from tvmopt import host
from tvmopt.device import cuda_runtime, dtypes
from tvmopt.device.arch import Arch
from tvmopt.device.bandwidth import with_measured_bandwidths
from tvmopt.device.cpu import CpuArch
from tvmopt.device.cuda import CudaArch, probe
from tvmopt.device.features import required_cpu_flags, vector_registers
from tvmopt.device.generations import check_target_name
from tvmopt.device.gpus import GPUS, named_gpu
from tvmopt.device.llvm import llvm_cpus, llvm_features, llvm_target
from tvmopt.device.named import NAMED, TRIPLES, NamedCpu
from tvmopt.errors import ConfigError

# Newest first: the host is the first CPU whose features it has all. LLVM's own detection uses
# family and model numbers, which hypervisors change; it then returns a CPU with too few features.
_X86_BY_CAPABILITY = (
    "diamondrapids", "graniterapids", "sapphirerapids", "znver5", "znver4", "cooperlake",
    "icelake-server", "cascadelake", "skylake-avx512", "alderlake", "znver3", "haswell",
    "nehalem", "x86-64",
)  # fmt: skip
_CACHE_LEVELS = ("l1", "l2", "l3")
_RULE = (
    "target must be 'host', an LLVM CPU name such as 'skylake-avx512', "
    "another known name such as 'graviton3', 'cuda' or a GPU's name such as 'nvidia-h200', "
    "or a JSON object"
)


@dataclasses.dataclass(frozen=True)
class TargetSpec:
    """One exact CPU, or one GPU and the CPU that launches its kernels.

    Attributes:
        mcpu: LLVM's CPU name; with a GPU a generic one, because the host CPU computes nothing.
        isa: Instruction-set architecture, ``"x86_64"``, ``"aarch64"``, ``"riscv64"`` or
            ``"hexagon"``.
        threads: Threads that compiled code may use, at least 1; with a GPU it is 1.
        mattr: Features added or removed, in LLVM's notation (``"+avx2"``, ``"-avx512f"``).
        cpu_flags: Features that the code may use, as Linux CPU flags; checked at library load.
        mtriple: LLVM's target triple; empty for the host.
        gpu: The GPU that compiled functions run on; None for a CPU target.
    """

    mcpu: str
    isa: str
    threads: int
    mattr: tuple[str, ...] = ()
    cpu_flags: tuple[str, ...] = ()
    mtriple: str = ""
    gpu: CudaArch | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict; :meth:`from_dict` is the inverse."""
        data = {
            "kind": "llvm",
            "mcpu": self.mcpu,
            "isa": self.isa,
            "threads": self.threads,
            "mattr": list(self.mattr),
            "cpu_flags": list(self.cpu_flags),
        }
        # Left out when empty, so that digests of host targets do not change.
        if self.mtriple:
            data["mtriple"] = self.mtriple
        if self.gpu is not None:
            data |= {"kind": "cuda", "gpu": self.gpu.to_dict()}
        return data

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> TargetSpec:
        """Rebuild a target from the result of :meth:`to_dict`."""
        return cls(
            mcpu=data["mcpu"],
            isa=data["isa"],
            threads=data["threads"],
            mattr=tuple(data["mattr"]),
            cpu_flags=tuple(data["cpu_flags"]),
            mtriple=data.get("mtriple", ""),
            gpu=CudaArch(**data["gpu"]) if data.get("gpu") else None,
        )

    @property
    def label(self) -> str:
        """Short name for tags and aliases, e.g. ``"sapphirerapids-2t"`` or ``"nvidia-h200"``."""
        return f"{self.mcpu}-{self.threads}t" if self.gpu is None else self.gpu.name

    @property
    def device(self) -> str:
        """Name of the compute device, e.g. ``"sapphirerapids"`` or ``"nvidia-h200"``."""
        return self.mcpu if self.gpu is None else self.gpu.name

    def to_tvm(self, opt_level: int | None = None) -> Any:
        """Return the ``tvm.target.Target``; LLVM's optimisation level is 3 by default."""
        if self.gpu is not None:
            return self.gpu.to_tvm(self.mcpu, self.mattr)
        return llvm_target(self.mcpu, self.mattr, self.threads, opt_level, self.mtriple)

    def arch(self) -> Arch:
        """Return the descriptor of the compute device for schedules and cost models.

        If the host can run the code of a CPU target, cache sizes and relative bandwidths are the
        host's; otherwise they are defaults.
        """
        if self.gpu is not None:
            return self.gpu
        bits, registers = vector_registers(self.isa, self.cpu_flags)
        runs_here = not self.missing_on_host()
        caches = host.cache_bytes() if runs_here else {}
        arch = CpuArch(
            mcpu=self.mcpu,
            isa=self.isa,
            cores=self.threads,
            simd_bits=bits,
            vector_registers=registers,
            mattr=self.mattr,
            mtriple=self.mtriple,
            **{f"{level}_bytes": caches[level] for level in _CACHE_LEVELS if level in caches},
        )
        return with_measured_bandwidths(arch) if runs_here else arch

    def missing_on_host(self) -> tuple[str, ...]:
        """Return the features that this target needs and the host lacks; empty if it can run."""
        if self.isa != host.isa():
            return (self.isa,)
        lacking = sorted(set(self.cpu_flags) - host.cpu_flags())
        if self.gpu is not None and (gpu := cuda_runtime.missing(self.gpu.sm)):
            lacking.append(gpu)
        return tuple(lacking)

    @property
    def int8_operands(self) -> str:
        """Activations and weights of int8, one of ``choices.QUANTIZATIONS``.

        wgmma of GPUs takes two operands of one dtype only. ``vpmaddubsw``, of x86 CPUs without
        VNNI, saturates unless pairs of products stay within int16.
        """
        if self.gpu is not None:
            return "s8s8" if self.gpu.has_wgmma else "u8s8"
        flags = (flag for flag, _ in dtypes.dtype("int8").cpu_rates if flag in self.cpu_flags)
        return "u8s8-pairs" if next(flags, "") == "avx2" else "u8s8"

    def why_not_here(self) -> str:
        """Return a message about the features that the host lacks; empty if it can run the code."""
        missing = ", ".join(self.missing_on_host())
        if not missing:
            return ""
        of = f" of {self.mcpu}" if self.gpu is None else f" ({self.gpu.name})"
        return f"this machine lacks {missing}{of}"

    def why_unmeasured(self) -> str:
        """Return why neither this machine nor a board measures; empty if the host can run it."""
        lacking = self.why_not_here()
        if lacking and self.arch().is_on_boards:
            return f"{lacking}, and no rpc_tracker was given"
        return lacking


def resolve_target(text: str = "host", threads: int = 0) -> TargetSpec:
    """Resolve a user's target text to a :class:`TargetSpec`.

    Args:
        text: ``"host"``; an LLVM CPU name of any architecture; a name in
            :data:`~tvmopt.device.named.NAMED`; a JSON object with ``mcpu`` (such a name) and
            optionally ``mattr``, ``num-cores``, ``mtriple``; ``"cuda"`` for this machine's GPU; or
            a name in :data:`~tvmopt.device.gpus.GPUS`.
        threads: Threads to compile for; 0 means all cores of the named CPU, or of this machine if
            the name does not tell. A GPU target always has 1.

    Returns:
        The resolved target.

    Raises:
        ConfigError: When LLVM does not know the CPU or a feature, ``threads`` is negative or too
            large, or there are no kernels for the GPU.
    """
    text = text.strip()
    if text in ("", "host", "auto", "cpu"):
        return _spec(_host_cpu(), (), threads)
    check_target_name(text)
    if text.startswith("{"):
        return _from_json(text, threads)
    gpu = probe() if text == "cuda" else named_gpu(text)
    if gpu is not None:
        return dataclasses.replace(_spec(_plain_cpu(), (), min(threads, 1) or 1), gpu=gpu)
    kind = text.split(",")[0].split("/")[0].split("-")[0]
    if kind in ("cuda", "nvidia", "rocm", "metal", "vulkan"):
        raise ConfigError(f"{_RULE}, but got {text!r}: GPUs known here are {', '.join(GPUS)}")
    if text.startswith("llvm"):
        raise ConfigError(
            f"{_RULE}, but got {text!r}: target strings are gone from TVM; "
            "give the value of -mcpu alone"
        )
    return _spec(text, (), threads)


def _from_json(text: str, threads: int) -> TargetSpec:
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{_RULE}, but got {text!r}: {error}") from error
    unknown = sorted(set(data) - {"kind", "mcpu", "mattr", "num-cores", "mtriple"})
    if unknown or data.get("kind", "llvm") != "llvm" or not isinstance(data.get("mcpu"), str):
        raise ConfigError(
            f"{_RULE} with keys kind='llvm', mcpu, mattr, num-cores, mtriple (mcpu is needed), "
            f"but got {text!r}"
        )
    mattr = data.get("mattr", [])
    if not isinstance(mattr, list) or not all(
        isinstance(m, str) and m[:1] in ("+", "-") for m in mattr
    ):
        raise ConfigError(f"mattr must be a list like ['+avx2'], but got {mattr!r}")
    cores = data.get("num-cores", 0)
    if type(cores) is not int or cores < 0:
        raise ConfigError(f"num-cores must be a whole number of at least 0, but got {cores!r}")
    return _spec(data["mcpu"], tuple(mattr), threads or cores, data.get("mtriple", ""))


def _spec(name: str, mattr: tuple[str, ...], threads: int, mtriple: str = "") -> TargetSpec:
    if not 0 <= threads <= host.MOST_THREADS:
        raise ConfigError(f"threads must be 0 to {host.MOST_THREADS}, but got {threads}")
    cpu = _named(name, [_isa(mtriple)] if mtriple else [host.isa(), *TRIPLES])
    mtriple = mtriple or _platform(cpu.isa)
    for feature in dict.fromkeys(m[1:] for m in mattr):
        if feature not in llvm_features(cpu.mcpu, (f"+{feature}",), mtriple):
            raise ConfigError(f"mattr must hold features that LLVM knows, but got {feature!r}")
    mattr = (*cpu.mattr, *mattr)
    features = set(llvm_features(cpu.mcpu, mattr, mtriple))
    features |= {m[1:] for m in mattr if m[0] == "+"}
    features -= {m[1:] for m in mattr if m[0] == "-"}
    return TargetSpec(
        mcpu=cpu.mcpu,
        isa=cpu.isa,
        threads=threads or cpu.threads or host.usable_cores(),
        mattr=mattr,
        cpu_flags=required_cpu_flags(cpu.isa, features),
        mtriple=mtriple,
    )


def _isa(mtriple: Any) -> str:
    """Return the ISA of a target triple; reject others, on which LLVM in TVM would crash."""
    first = mtriple.split("-")[0] if isinstance(mtriple, str) else ""
    isa = {"arm64": "aarch64", "amd64": "x86_64"}.get(first, first)
    if isa not in TRIPLES:
        raise ConfigError(
            f"mtriple must begin with {', '.join(TRIPLES)}, like {TRIPLES['aarch64']!r}, "
            f"but got {mtriple!r}"
        )
    return isa


def _platform(isa: str) -> str:
    """Return LLVM's target triple for ``isa``; empty for the host's."""
    return "" if isa == host.isa() else TRIPLES[isa]


def _named(name: str, isas: list[str]) -> NamedCpu:
    """Return the CPU ``name`` of the first of these architectures that has it."""
    known = [n for n, cpu in NAMED.items() if cpu.isa in isas]
    if name in known:
        return NAMED[name]
    for isa in dict.fromkeys(isas):
        names = llvm_cpus(_platform(isa))
        if name in names:
            return NamedCpu(isa, name, 0)
        known += sorted(names)
    import difflib

    close = difflib.get_close_matches(name, dict.fromkeys(known), n=3, cutoff=0.6)
    hint = f"; did you mean {', '.join(close)}?" if close else ""
    raise ConfigError(f"{_RULE}, but got {name!r}{hint}")


def _plain_cpu() -> str:
    """Return the baseline CPU of the host's architecture; it suffices to launch GPU kernels."""
    return "x86-64" if host.isa() == "x86_64" else "generic"


def _host_cpu() -> str:
    if host.isa() == "x86_64":
        for mcpu in _X86_BY_CAPABILITY:
            if set(required_cpu_flags("x86_64", llvm_features(mcpu, ()))) <= host.cpu_flags():
                return mcpu
    from tvm.target.codegen import llvm_get_system_cpu

    with llvm_target("generic", (), 1):
        return str(llvm_get_system_cpu())


def set_thread_environment(threads: int) -> None:
    """Set the size of TVM's thread pool; call it before the pool starts."""
    os.environ.update(host.thread_environment(threads))
