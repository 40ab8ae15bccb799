"""Lowered module and tuning database -> one shared library, the same bytes every time."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import tvm
from tvm import relax

from tvmopt.arch.llvm import pass_config
from tvmopt.arch.target import TargetSpec
from tvmopt.errors import BuildError
from tvmopt.link import link_options


@dataclasses.dataclass(frozen=True)
class BuiltLibrary:
    """What a build gave.

    Attributes:
        path: The shared library.
        sources: What scheduled each function: ``"database"``, ``"default:<rule>"`` or
            ``"none:<reason>"``.
        records: Granularity of the record that serves each function, ``"subgraph"`` or
            ``"operator"``, or ``"none: <why>"``; empty without a database.
        compile_s: Seconds of code generation and linking.
        instructions: Mnemonics of the tensor instructions that each function uses, of those that
            use any.
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
) -> BuiltLibrary:
    """Schedule every function of a lowered module and compile it to ``path``.

    Functions with a database record get that schedule, transferred to them where the database is
    one of operators; with ``schedule="default"`` the others get
    the default rules'; with ``schedule="none"`` they stay as TVM's own pipeline has them. A
    ``quick`` library, to check numbers with, is optimised less and compiled in half the time.

    Raises:
        DatabaseMismatchError: When the database is another target's.
        BuildError: When code generation or linking fails.
        EnvironmentSetupError: When there is no compiler that links for the target.
    """
    from tvmopt.intrin import instructions_used
    from tvmopt.policy import schedule_module
    from tvmopt.transform.prepack import prepack
    from tvmopt.tune.apply import apply_database
    from tvmopt.tune.database import DatabaseKey, canonical_target, granularity_of

    linker = link_options(target.isa)
    start = time.perf_counter()
    functions = [v.name_hint for v, f in mod.functions_items() if _is_tensor_ir(f)]
    sources = dict.fromkeys(functions, "none:baseline")
    records: dict[str, str] = {}
    llvm = target.to_tvm(opt_level=1 if quick else None)
    if database_dir is not None:
        key = DatabaseKey(
            canonical_target(llvm), target.threads, granularity=granularity_of(database_dir)
        )
        applied = apply_database(mod, database_dir, key, llvm)
        mod = applied.mod
        sources.update(dict.fromkeys(applied.served, "database"))
        records = {name: f"none: {why}" for name, why in applied.missing.items()}
        records.update(dict.fromkeys(applied.served, applied.granularity))
    if schedule == "default":
        mod, rules = schedule_module(mod, target.arch())
        for name, rule in rules.items():
            if sources.get(name) != "database":
                none = rule.startswith("unscheduled")
                sources[name] = f"none:{rule}" if none else f"default:{rule}"
    used = {v.name_hint: instructions_used(f) for v, f in mod.functions_items() if _is_tensor_ir(f)}
    instructions = {name: found for name, found in used.items() if found}
    try:
        mod = prepack(mod)
        with tvm.transform.PassContext(opt_level=3, config=pass_config(target.isa)):
            executable = tvm.compile(mod, llvm, relax_pipeline=_finish_pipeline(llvm))
        executable.export_library(str(path), **linker)
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = lines[-1][:300] if lines else type(error).__name__
        raise BuildError(f"code generation for {target.mcpu} failed: {reason}") from error
    return BuiltLibrary(path, sources, time.perf_counter() - start, instructions, records)


def _is_tensor_ir(func: object) -> bool:
    return isinstance(func, tvm.tirx.PrimFunc)


def _finish_pipeline(target: tvm.target.Target) -> tvm.transform.Pass:
    from tvm.relax.backend.cpu_generic import pipeline as cpu_generic

    @tvm.transform.module_pass(opt_level=0, name="FinishCpuPipeline")
    def finish(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        with target:
            passes = [
                *cpu_generic.dataflow_lower_passes(target),
                *cpu_generic.finalize_passes(target),
            ]
            if _has_branches(mod):
                # It gives a tensor the storage of another that only one branch allocates.
                passes = [p for p in passes if p.info.name != "StaticPlanBlockMemory"]
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
