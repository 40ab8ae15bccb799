"""The fast tuner as a library: tune one function, or all functions of a module, without MLflow.

Names and signatures follow the fast dlight proposal for CUDA (TVM community forum, 2024)::

    policy = DefaultPolicy(func=func, arch=arch)
    configs = policy.emit_config(20)
    results, best = apply_and_build(func, configs, arch, parallel_build=True)
    mod = ApplyFastTuning(topk=20, target=target, meta_database_dir="database")(mod)
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Sequence
from pathlib import Path

import tvm
from tvm import s_tir, tirx

from tvmopt.device.arch import Arch
from tvmopt.device.target import TargetSpec
from tvmopt.errors import ConfigError
from tvmopt.kernels.emit import emit
from tvmopt.kernels.hint import Hint
from tvmopt.measure.devices import device_of
from tvmopt.measure.measurer import Candidates, Measured, Measurer, best_of
from tvmopt.tune.apply import apply_database
from tvmopt.tune.base import TuneOptions
from tvmopt.tune.fast import FastStrategy
from tvmopt.tune.tasks import extract_tasks


@dataclasses.dataclass(frozen=True)
class CompileResult:
    """One candidate, built, checked and timed.

    Attributes:
        func: The unscheduled function.
        config: The configuration.
        latency: Latency of one call in milliseconds; None when the candidate failed.
        error: One-line reason of the failure; None on success.
    """

    func: tirx.PrimFunc
    config: Hint
    latency: float | None
    error: str | None

    @property
    def sch(self) -> s_tir.Schedule | None:
        """The schedule of the function under this configuration; None for a generated kernel."""
        made = emit(self.func, self.config)
        return made if isinstance(made, s_tir.Schedule) else None


def apply_and_build(
    func: tirx.PrimFunc,
    configs: Sequence[Hint],
    arch: Arch,
    parallel_build: bool = True,
) -> tuple[list[CompileResult], CompileResult | None]:
    """Build candidates of one function, check them against a reference, and time them.

    Builds and runs happen in child processes. A candidate that crashes or hangs gets a result with
    an error.

    Args:
        func: A TensorIR function of static shape; it is not modified.
        configs: Configurations to measure, as ``policy.emit_config`` returns them.
        arch: The CPU or GPU of this machine.
        parallel_build: Whether to build on all cores.

    Returns:
        One result per configuration, in order; and the fastest one, or None when all failed.

    Raises:
        ConfigError: When ``configs`` is empty.
    """
    if not configs:
        raise ConfigError(
            "configs must hold at least one configuration, but got none; "
            "DefaultPolicy.reason says why a function has none"
        )
    with (
        tempfile.TemporaryDirectory(prefix="tvmopt-") as scratch,
        Measurer(device_of(arch), Path(scratch), builders=0 if parallel_build else 1) as measurer,
    ):
        [measured] = measurer.measure([Candidates(func, configs)])
    results = [_result(func, m) for m in measured]
    best = best_of(measured)
    return results, None if best is None else _result(func, best)


def _result(func: tirx.PrimFunc, measured: Measured) -> CompileResult:
    us = measured.latency_us
    return CompileResult(func, measured.hint, None if us is None else us / 1e3, measured.error)


@tvm.transform.module_pass(opt_level=0, name="ApplyFastTuning")
class ApplyFastTuning:
    """Module pass: tune every function of a lowered module and apply the fastest schedules.

    Before -> after: unscheduled functions -> scheduled functions with the attribute
    ``tirx.is_scheduled``. On a CPU the weights are still packed at every call, until
    :func:`tvmopt.transform.prepack.prepack` runs.

    Args:
        topk: Maximum number of candidates measured for one function.
        target: The CPU with its features and thread count, or the GPU.
        parallel_build: Whether to build on all cores.
        meta_database_dir: Directory of the tuning database, a MetaSchedule JSONDatabase.
            Workloads that have a record are not measured again. By default the database is
            temporary.
    """

    def __init__(
        self,
        topk: int = 20,
        target: TargetSpec | None = None,
        parallel_build: bool = True,
        meta_database_dir: str | Path | None = None,
    ) -> None:
        from tvmopt.device.target import resolve_target

        self._topk = topk
        self._target = target or resolve_target()
        self._builders = 0 if parallel_build else 1
        self._directory = None if meta_database_dir is None else Path(meta_database_dir)

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Tune and schedule every PrimFunc of ``mod`` that is not scheduled yet."""
        llvm, threads = self._target.to_tvm(), self._target.threads
        options = TuneOptions(trials=0, time_budget_s=0.0, threads=threads, topk=self._topk)
        with tempfile.TemporaryDirectory(prefix="tvmopt-") as scratch:
            work_dir = Path(scratch)
            strategy = FastStrategy(database_dir=self._directory, builders=self._builders)
            tasks, arch = extract_tasks(mod, llvm), self._target.arch()
            result = strategy.tune(tasks, llvm, arch, options, work_dir, lambda *_: None)
            assert result.database_dir is not None, "the strategy keeps a database"
            return apply_database(
                mod, result.database_dir, options.key(llvm), llvm, losers=True
            ).mod
