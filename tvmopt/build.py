"""Build a shared library, reproducible to the byte, from a lowered module and a tuning database."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path

import tvm

from tvmopt.codegen import CodeGenerator, code_generator
from tvmopt.device.target import TargetSpec
from tvmopt.errors import BuildError, EnvironmentSetupError, last_line
from tvmopt.kernels.backend import backend_of
from tvmopt.kernels.module_schedules import schedule_module
from tvmopt.runtime.sizes import of_size
from tvmopt.transform.fallback import add_fallback
from tvmopt.transform.merge_sizes import merge_sizes
from tvmopt.transform.share_packing import without_tiles


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


@dataclasses.dataclass(frozen=True)
class SizeModule:
    """The network in one more size.

    Attributes:
        mod: Lowered module.
        database_dir: As of :func:`build_library`.
        direct: As of :func:`build_library`.
    """

    mod: tvm.IRModule
    database_dir: Path | None = None
    direct: tvm.IRModule | None = None


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
    other_sizes: Sequence[SizeModule] = (),
    timed: bool = False,
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
        other_sizes: The network in more sizes, which the library holds, too
            (:mod:`tvmopt.transform.merge_sizes`).
        timed: Whether native code takes the time around each kernel of ``main``
            (:mod:`tvmopt.codegen.timestamps`).

    Raises:
        DatabaseMismatchError: When the database has another key.
        BuildError: When code generation or linking fails.
        EnvironmentSetupError: When no compiler can link for the target.
    """
    start = time.perf_counter()
    tvm_target = target.to_tvm(opt_level=1 if quick else None)
    sizes = [
        schedule_size(one, target, tvm_target, schedule)
        for one in (SizeModule(mod, database_dir, direct), *other_sizes)
    ]
    befores = [size.before for size in sizes if size.before is not None]
    try:
        generator = code_generator(target, tvm_target, native, timed=timed)
        mod, others, native = _compile_all(
            merge_sizes(befores) if befores else None,
            merge_sizes([size.after for size in sizes]),
            generator,
            path,
        )
    except (EnvironmentSetupError, MemoryError):
        raise
    except Exception as error:  # of TVM, LLVM, NVRTC, the linker or the disk
        reason = last_line(error)
        raise BuildError(
            f"code generation for {target.device} failed: {reason}"
            "; run tvmopt doctor, and report the model if it finds nothing"
        ) from error
    sources = _by_size([size.sources for size in sizes])
    sources.update({name: f"default:{how}" for name, how in others.items()})
    records = _by_size([size.records for size in sizes])
    instructions = _instructions(mod)
    seconds = time.perf_counter() - start
    return BuiltLibrary(path, sources, seconds, instructions, records, native)


@dataclasses.dataclass(frozen=True)
class ScheduledSize:
    """A module before and after default scheduling, and where each schedule comes from.

    Attributes:
        before: The module; None without default scheduling.
        after: The scheduled module.
        sources: As of :class:`BuiltLibrary`.
        records: As of :class:`BuiltLibrary`.
    """

    before: tvm.IRModule | None
    after: tvm.IRModule
    sources: dict[str, str]
    records: dict[str, str]


def schedule_size(
    network: SizeModule, target: TargetSpec, tvm_target: tvm.target.Target, schedule: str
) -> ScheduledSize:
    """Apply the tuning database, and default schedules to what it lacks.

    Args:
        network: The network.
        target: Target to compile for.
        tvm_target: ``target`` as a target of TVM.
        schedule: As of :func:`build_library`.
    """
    from tvmopt.tune.apply import apply_database
    from tvmopt.tune.database import DatabaseKey, canonical_target, granularity_of

    mod, database_dir = network.mod, network.database_dir
    functions = [v.name_hint for v, f in mod.functions_items() if _is_tensor_ir(f)]
    sources = dict.fromkeys(functions, "none:baseline")
    records: dict[str, str] = {}
    if database_dir is not None:
        key = DatabaseKey(
            canonical_target(tvm_target), target.threads, granularity=granularity_of(database_dir)
        )
        applied = apply_database(mod, database_dir, key, tvm_target)
        mod = applied.mod
        sources.update(dict.fromkeys(applied.served, "database"))
        records = {name: f"none: {why}" for name, why in applied.missing.items()}
        records.update(dict.fromkeys(applied.served, applied.granularity))
    if network.direct is not None:
        mod = add_fallback(mod, network.mod, network.direct)
    arch = target.arch()
    if schedule != "default":
        return ScheduledSize(None, backend_of(arch).schedule_unmatched(mod, arch), sources, records)
    before = mod
    mod, rules = schedule_module(mod, arch)
    before, mod = without_tiles(before), without_tiles(mod)
    for name, rule in rules.items():
        if sources.get(name) != "database":
            none = rule.startswith("unscheduled")
            sources[name] = f"none:{rule}" if none else f"default:{rule}"
    return ScheduledSize(before, mod, sources, records)


def _by_size(texts: Sequence[dict[str, str]]) -> dict[str, str]:
    """Return the texts of functions of all sizes by name and number of the size."""
    return {
        of_size(name, size): text for size, own in enumerate(texts) for name, text in own.items()
    }


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
    except (EnvironmentSetupError, MemoryError):
        raise
    except Exception:  # of whatever compiler; raised again unless a kernel is at fault
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
