"""Build a shared library, reproducible to the byte, from a lowered module and a tuning database."""

from __future__ import annotations

import dataclasses
import functools
import time
from pathlib import Path

import tvm
from tvm import relax

from tvmopt.device.cuda import CudaArch
from tvmopt.device.llvm import pass_config
from tvmopt.device.target import TargetSpec
from tvmopt.errors import BuildError, EnvironmentSetupError, last_line
from tvmopt.kernels.backend import backend_of
from tvmopt.kernels.cuda.build import build_kernels
from tvmopt.kernels.cuda.common.passes import PASS_CONFIG
from tvmopt.kernels.cuda.pipeline import PIPELINE
from tvmopt.kernels.cuda.replace_kernels import replace_kernels
from tvmopt.kernels.cuda.toolchain.modules import embed_cubins
from tvmopt.kernels.first_choice import schedule_module
from tvmopt.link import link_options
from tvmopt.transform.cpu_pipeline import CPU_PIPELINE
from tvmopt.transform.fallback import add_fallback
from tvmopt.transform.lift_storage import LiftStorage


@dataclasses.dataclass(frozen=True)
class BuiltLibrary:
    """Result of a build.

    Attributes:
        path: The shared library.
        sources: Source of each function's schedule: ``"database"``, ``"default:<rule>"`` or
            ``"none:<reason>"``.
        records: Granularity of each function's tuning record, ``"subgraph"`` or ``"operator"``,
            or ``"none: <why>"``; empty without a database.
        compile_s: Seconds of code generation and linking.
        instructions: Mnemonics of the tensor instructions of each function that uses any.
    """

    path: Path
    sources: dict[str, str]
    compile_s: float
    instructions: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    records: dict[str, str] = dataclasses.field(default_factory=dict)


def build_library(
    mod: tvm.IRModule,
    target: TargetSpec,
    path: Path,
    *,
    database_dir: Path | None = None,
    schedule: str = "default",
    quick: bool = False,
    direct: tvm.IRModule | None = None,
) -> BuiltLibrary:
    """Schedule every function of a lowered module and compile it to ``path``.

    A function with a tuning record gets its schedule; records of operators are transferred. The
    other functions get the default schedule, or stay unscheduled with ``schedule="none"``.

    A GPU library contains machine code; building it needs no GPU. A network of static shapes gets
    a separate function that allocates its memory (:mod:`tvmopt.transform.lift_storage`), so that a
    CUDA graph can capture its launches.

    Args:
        mod: Lowered module.
        target: Target to compile for.
        path: Library to write.
        database_dir: Tuning database, or None.
        schedule: ``"default"`` or ``"none"``, for functions without a record.
        quick: Optimise less, for half the compile time; for checks of the outputs.
        direct: The same network with direct convolutions only. A CPU library gets it as a fallback
            function with default schedules (:mod:`tvmopt.transform.fallback`).

    Raises:
        DatabaseMismatchError: When the database has another key.
        BuildError: When code generation or linking fails.
        EnvironmentSetupError: When no compiler can link for the target.
    """
    from tvmopt.tune.apply import apply_database
    from tvmopt.tune.database import DatabaseKey, canonical_target, granularity_of

    start = time.perf_counter()
    lowered = mod
    functions = [v.name_hint for v, f in mod.functions_items() if _is_tensor_ir(f)]
    sources = dict.fromkeys(functions, "none:baseline")
    records: dict[str, str] = {}
    kind = target.to_tvm(opt_level=1 if quick else None)
    if database_dir is not None:
        key = DatabaseKey(
            canonical_target(kind), target.threads, granularity=granularity_of(database_dir)
        )
        applied = apply_database(mod, database_dir, key, kind)
        mod = applied.mod
        sources.update(dict.fromkeys(applied.served, "database"))
        records = {name: f"none: {why}" for name, why in applied.missing.items()}
        records.update(dict.fromkeys(applied.served, applied.granularity))
    if direct is not None:
        mod = add_fallback(mod, lowered, direct)
    before = mod if schedule == "default" else None
    if schedule == "default":
        mod, rules = schedule_module(mod, target.arch())
        for name, rule in rules.items():
            if sources.get(name) != "database":
                none = rule.startswith("unscheduled")
                sources[name] = f"none:{rule}" if none else f"default:{rule}"
    else:
        arch = target.arch()
        mod = backend_of(arch).schedule_unmatched(mod, arch)
    try:
        mod, others = _compile_all(before, mod, target, kind, path)
    except EnvironmentSetupError:
        raise
    except Exception as error:
        reason = last_line(error)
        raise BuildError(f"code generation for {target.device} failed: {reason}") from error
    sources.update({name: f"default:{how}" for name, how in others.items()})
    instructions = _instructions(mod)
    return BuiltLibrary(path, sources, time.perf_counter() - start, instructions, records)


def _compile_all(
    before: tvm.IRModule | None,
    mod: tvm.IRModule,
    target: TargetSpec,
    kind: tvm.target.Target,
    path: Path,
) -> tuple[tvm.IRModule, dict[str, str]]:
    """Compile ``mod`` to ``path``; replace GPU kernels that fail to compile.

    Args:
        before: The module before default scheduling; None without default schedules.
        mod: The module.
        target: Target to compile for.
        kind: The same as TVM target.
        path: Library to write.

    Returns:
        The compiled module, and the replacement of each function whose kernel did not compile.
    """
    try:
        _compile(mod, target, kind, path)
        return mod, {}
    except EnvironmentSetupError:
        raise
    except Exception:
        if target.gpu is None or before is None:
            raise
        check = functools.partial(_why_not_built, arch=target.gpu)
        mod, others = replace_kernels(before, mod, target.gpu, check)
        if not others:
            raise
    _compile(mod, target, kind, path)
    return mod, others


def _why_not_built(kernels: dict[str, tvm.tirx.PrimFunc], arch: CudaArch) -> str | None:
    """Return why ``kernels`` do not compile; None when they do."""
    try:
        with embed_cubins(arch):
            build_kernels(kernels, arch)
    except EnvironmentSetupError:
        raise
    except Exception as error:
        return last_line(error)
    return None


def _instructions(mod: tvm.IRModule) -> dict[str, tuple[str, ...]]:
    """Return the mnemonics of the tensor instructions of each function that uses any."""
    from tvmopt.kernels.cpu.intrinsics import instructions_used

    used = {v.name_hint: instructions_used(f) for v, f in mod.functions_items() if _is_tensor_ir(f)}
    return {name: found for name, found in used.items() if found}


def _compile(mod: tvm.IRModule, target: TargetSpec, kind: tvm.target.Target, path: Path) -> None:
    """Generate code for a scheduled module and link it."""
    from tvmopt.transform.prepack import prepack

    linker = link_options(target.isa)
    if target.gpu is not None:
        with embed_cubins(target.gpu), tvm.transform.PassContext(opt_level=3, config=PASS_CONFIG):
            executable = tvm.compile(
                mod, kind, relax_pipeline=_finish_pipeline(kind), tir_pipeline=PIPELINE
            )
    else:
        with tvm.transform.PassContext(opt_level=3, config=pass_config(target.isa)):
            executable = tvm.compile(
                prepack(mod),
                kind,
                relax_pipeline=_finish_pipeline(kind),
                tir_pipeline=CPU_PIPELINE,
            )
    executable.export_library(str(path), **linker)


def _is_tensor_ir(func: object) -> bool:
    return isinstance(func, tvm.tirx.PrimFunc)


def _finish_pipeline(target: tvm.target.Target) -> tvm.transform.Pass:
    if target.kind.name == "cuda":
        from tvm.relax.backend.cuda import pipeline as backend
    else:
        from tvm.relax.backend.cpu_generic import pipeline as backend

    @tvm.transform.module_pass(opt_level=0, name="FinishPipeline")
    def finish(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        with target:
            passes = [*backend.dataflow_lower_passes(target), *backend.finalize_passes(target)]
            if target.kind.name == "cuda":
                # Lowering already made views of reshapes; this pass rejects kernels without blocks.
                passes = [p for p in passes if p.info.name != "RewriteDataflowReshape"]
            if _has_branches(mod):
                # The pass may share storage that only one branch allocates.
                passes = [p for p in passes if p.info.name != "StaticPlanBlockMemory"]
            elif target.kind.name == "cuda":
                allocated = [p.info.name for p in passes].index("LowerAllocTensor")
                passes.insert(allocated + 1, LiftStorage())
            return tvm.transform.Sequential(passes)(mod)

    return finish


def _has_branches(mod: tvm.IRModule) -> bool:
    found: list[relax.If] = []

    def look(expr: relax.Expr) -> None:
        if isinstance(expr, relax.If):
            found.append(expr)

    for _, func in mod.functions_items():
        if isinstance(func, relax.Function):
            relax.analysis.post_order_visit(func, look)
    return bool(found)
