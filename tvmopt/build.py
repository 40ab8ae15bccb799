"""Build a shared library, reproducible to the byte, from a lowered module and a tuning database."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import tvm

from tvmopt.codegen import CodeGenerator, code_generator
from tvmopt.device.target import TargetSpec
from tvmopt.errors import BuildError, EnvironmentSetupError, last_line
from tvmopt.kernels.backend import backend_of
from tvmopt.kernels.first_choice import schedule_module
from tvmopt.transform.fallback import add_fallback


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
        native: Whether the library is native code; else TVM's virtual machine interprets it.
    """

    path: Path
    sources: dict[str, str]
    compile_s: float
    instructions: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    records: dict[str, str] = dataclasses.field(default_factory=dict)
    native: bool = False


def build_library(
    mod: tvm.IRModule,
    target: TargetSpec,
    path: Path,
    *,
    database_dir: Path | None = None,
    schedule: str = "default",
    quick: bool = False,
    direct: tvm.IRModule | None = None,
    native: bool = True,
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
        native: Whether a CPU network of static shapes becomes native code; else TVM's virtual
            machine interprets it, whose instrument sees every kernel.

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
    tvm_target = target.to_tvm(opt_level=1 if quick else None)
    if database_dir is not None:
        key = DatabaseKey(
            canonical_target(tvm_target), target.threads, granularity=granularity_of(database_dir)
        )
        applied = apply_database(mod, database_dir, key, tvm_target)
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
        generator = code_generator(target, tvm_target, native)
        mod, others, native = _compile_all(before, mod, generator, path)
    except EnvironmentSetupError:
        raise
    except Exception as error:
        reason = last_line(error)
        raise BuildError(f"code generation for {target.device} failed: {reason}") from error
    sources.update({name: f"default:{how}" for name, how in others.items()})
    instructions = _instructions(mod)
    seconds = time.perf_counter() - start
    return BuiltLibrary(path, sources, seconds, instructions, records, native)


def _compile_all(
    before: tvm.IRModule | None, mod: tvm.IRModule, generator: CodeGenerator, path: Path
) -> tuple[tvm.IRModule, dict[str, str], bool]:
    """Compile ``mod`` to ``path``; replace GPU kernels that fail to compile.

    Args:
        before: The module before default scheduling; None without default schedules.
        mod: The module.
        generator: Code generator of the target.
        path: Library to write.

    Returns:
        The compiled module, the replacement of each function whose kernel did not compile, and
        whether the library is native code.
    """
    try:
        return mod, {}, generator.compile(mod, path)
    except EnvironmentSetupError:
        raise
    except Exception:
        if before is None:
            raise
        mod, others = generator.replace_failing(before, mod)
        if not others:
            raise
    return mod, others, generator.compile(mod, path)


def _instructions(mod: tvm.IRModule) -> dict[str, tuple[str, ...]]:
    """Return the mnemonics of the tensor instructions of each function that uses any."""
    from tvmopt.kernels.cpu.intrinsics import instructions_used

    used = {v.name_hint: instructions_used(f) for v, f in mod.functions_items() if _is_tensor_ir(f)}
    return {name: found for name, found in used.items() if found}


def _is_tensor_ir(func: object) -> bool:
    return isinstance(func, tvm.tirx.PrimFunc)
