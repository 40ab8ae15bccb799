"""Lowered module and tuning database -> one shared library, the same bytes every time."""

from __future__ import annotations

import dataclasses
import shutil
import time
from pathlib import Path

import tvm
from tvm import relax

from tvmopt import host
from tvmopt.arch.llvm import pass_config
from tvmopt.arch.target import TargetSpec
from tvmopt.errors import BuildError, EnvironmentSetupError

# Debian's names of the platforms that libraries are linked for.
_DEBIAN = {"x86_64": "amd64", "aarch64": "arm64", "riscv64": "riscv64"}


@dataclasses.dataclass(frozen=True)
class BuiltLibrary:
    """What a build gave.

    Attributes:
        path: The shared library.
        sources: What scheduled each function: ``"database"``, ``"default:<rule>"`` or
            ``"none:<reason>"``.
        compile_s: Seconds of code generation and linking.
        instructions: Mnemonics of the tensor instructions that each function uses, of those that
            use any.
    """

    path: Path
    sources: dict[str, str]
    compile_s: float
    instructions: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)


def cxx_compiler(isa: str = "") -> str:
    """Path of the compiler that links libraries for ``isa``, this machine's by default.

    Raises:
        EnvironmentSetupError: When there is none; TVM's own message would be a TypeError.
        BuildError: When no Linux runs on ``isa``, which has no shared libraries then.
    """
    if isa not in ("", host.isa()):
        return _cross_compiler(isa)
    from tvm.support import cc

    found = cc.get_cc()
    if not found or not shutil.which(found):
        raise EnvironmentSetupError(
            "a C++ compiler must be installed to link the library, but none was found; "
            "install g++ (Debian: apt-get install g++) or set CXX to one"
        )
    return str(found)


def _cross_compiler(isa: str) -> str:
    if isa == "hexagon":
        raise BuildError(
            "a library must be for a CPU that Linux runs on, but got hexagon; only single kernels "
            "can be compiled for it (tvmopt.emulate runs them)"
        )
    name = isa.replace("_", "-") + "-linux-gnu"
    found = shutil.which(f"{isa}-linux-gnu-gcc")
    if not found:
        raise EnvironmentSetupError(
            f"{isa}-linux-gnu-gcc must be installed to link a library for {isa}, but it is not "
            f"found; install it (Debian: apt-get install gcc-{name} libc6-dev-{_DEBIAN[isa]}-cross)"
        )
    return found


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

    Functions with a database record get that schedule; with ``schedule="default"`` the others get
    the default rules'; with ``schedule="none"`` they stay as TVM's own pipeline has them. A
    ``quick`` library, to check numbers with, is optimised less and compiled in half the time.

    Raises:
        DatabaseMismatchError: When the database is another target's.
        BuildError: When code generation or linking fails.
        EnvironmentSetupError: When there is no C++ compiler.
    """
    from tvmopt.intrin import instructions_used
    from tvmopt.policy import schedule_module
    from tvmopt.transform.prepack import prepack
    from tvmopt.tune.database import DatabaseKey, apply_database, canonical_target

    compiler = cxx_compiler(target.isa)
    start = time.perf_counter()
    functions = [v.name_hint for v, f in mod.functions_items() if _is_tensor_ir(f)]
    sources = dict.fromkeys(functions, "none:baseline")
    llvm = target.to_tvm(opt_level=1 if quick else None)
    if database_dir is not None:
        key = DatabaseKey(canonical_target(llvm), target.threads)
        mod, served = apply_database(mod, database_dir, key, llvm)
        sources.update(dict.fromkeys(served, "database"))
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
        executable.export_library(str(path), cc=compiler)
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = lines[-1][:300] if lines else type(error).__name__
        raise BuildError(f"code generation for {target.mcpu} failed: {reason}") from error
    return BuiltLibrary(path, sources, time.perf_counter() - start, instructions)


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
