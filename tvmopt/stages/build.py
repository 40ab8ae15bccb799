"""Stage 3: compile the scheduled module to a library and check it."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx

from tvmopt import host
from tvmopt.build import BuiltLibrary, build_library
from tvmopt.config import BuildConfig
from tvmopt.device.gpus import CONSTANTS_TAG, constants_words
from tvmopt.device.target import TargetSpec
from tvmopt.digest import sha256_file
from tvmopt.frontend.reference import Reference, loses_nan
from tvmopt.frontend.source_interface import interface_of
from tvmopt.quantize import is_quantized
from tvmopt.runtime import CompiledModel, ModelMetadata, load
from tvmopt.runtime.bundle import join_golden
from tvmopt.runtime.metadata import GOLDEN_FILE, LIBRARY_FILE
from tvmopt.runtime.parts import part_hashes
from tvmopt.runtime.sizes import CompiledSize
from tvmopt.spreadsheet import write_csv
from tvmopt.stages import kept_library
from tvmopt.stages.lower_network import LoweredNetwork, lower_network
from tvmopt.stages.module_files import QUANTIZED_FILE, REFERENCE_FILE
from tvmopt.stages.non_finite import AGREES, NON_FINITE_TAG, NonFinite, compare_non_finite
from tvmopt.stages.result import Progress, StageResult
from tvmopt.stages.signature import Signature
from tvmopt.stages.size_folders import read_dimensions, read_size, size_folder, size_folders
from tvmopt.stages.size_times import SIZES_TABLE, with_times, write_sizes
from tvmopt.stages.tune_files import DATABASE_DIR, PACKING_FILE, PLAN_FILE
from tvmopt.stages.tune_sizes import packed_as_chosen
from tvmopt.transform.plan import read_plan
from tvmopt.versions import TVM_VERSION, VERSION

BUNDLE_DIR = "bundle"
SOURCES_FILE = "schedules.csv"


def build(
    config: BuildConfig,
    convert_dir: Path,
    tune_dir: Path | None,
    digest: str,
    out_dir: Path,
    progress: Progress,
) -> StageResult:
    """Compile a tuned model into a bundle: library, metadata, golden inputs and outputs.

    Raises:
        BuildError, EnvironmentSetupError, DatabaseMismatchError: As :func:`build_library`.
        AccuracyError: When the library does not reproduce the golden outputs. If NaN and infinities
            of its outputs differ from ONNX Runtime's, a tag says so.
    """
    target = TargetSpec.from_dict(config.target)
    bundle = out_dir / BUNDLE_DIR
    bundle.mkdir()
    progress(0, 3, "lower")
    folders = size_folders(convert_dir) if config.all_sizes else [convert_dir]
    signature = Signature.read(convert_dir)
    made = _compiled(config, target, convert_dir, tune_dir, bundle / LIBRARY_FILE, progress)
    built = made.library
    join_golden(folders, bundle)
    metadata = ModelMetadata(
        name=config.name,
        inputs=signature.inputs,
        outputs=signature.outputs,
        target=target.to_dict(),
        host_cpu=host.cpu_model(),
        threads=target.threads,
        tvm_version=TVM_VERSION,
        tvmopt_version=VERSION,
        library_sha256=sha256_file(bundle / LIBRARY_FILE),
        golden_sha256=sha256_file(bundle / GOLDEN_FILE),
        digest=digest,
        tolerance=signature.tolerance.limit,
        measure=signature.tolerance.measure,
        instructions=tuple(sorted(set().union(*built.instructions.values()))),
        segments=made.segments,
        native=built.native,
        any_rows=signature.any_rows,
        library_parts=_parts_of(bundle / LIBRARY_FILE),
        sizes=_sizes(folders),
        dimensions=read_dimensions(convert_dir) if folders[1:] else (),
        interface=interface_of(onnx.load_model(str(convert_dir / REFERENCE_FILE))),
    )
    metadata.write(bundle)
    _write_sources(out_dir / SOURCES_FILE, built)

    progress(2, 3, "check")
    metrics = {
        "compile_s": built.compile_s,
        "library_bytes": float((bundle / LIBRARY_FILE).stat().st_size),
    }
    tags = {
        "tvmopt.sha256": metadata.library_sha256,
        "tvmopt.instructions": ", ".join(metadata.instructions) or "no tensor instructions",
    }
    if target.gpu is not None:
        tags[CONSTANTS_TAG] = constants_words(target.gpu)
    if metadata.segments:
        tags["tvmopt.fallback"] = f"{metadata.segments} segment(s): onnxruntime"
    non_finite: NonFinite | None = None
    if lacking := target.why_not_here():
        tags["tvmopt.unchecked"] = lacking
    else:
        model = load(bundle)
        metrics["golden_max_deviation"] = model.check_golden(bundle)
        if metadata.sizes:
            metadata = with_times(metadata, model, bundle)
            metadata.write(bundle)
            write_sizes(out_dir / SIZES_TABLE, metadata)
        if config.plants_non_finite:
            non_finite = _non_finite(model, convert_dir, signature)
    progress(3, 3, "done")
    kinds = [source.split(":")[0] for source in built.sources.values()]
    counts = ", ".join(f"{kinds.count(k)} {k}" for k in ("database", "default", "none"))
    tags["tvmopt.records"] = _records(built)
    lines = []
    if non_finite is not None:
        tags[NON_FINITE_TAG] = non_finite.tag
        lines.append(f"{non_finite.line}{_why_elsewhere(non_finite, made)}")
    return StageResult(
        metrics,
        tags,
        [
            f"{len(kinds)} functions scheduled by: {counts}",
            f"records: {tags['tvmopt.records']}",
            f"{len(built.instructions)} of them use {', '.join(metadata.instructions)}"
            if built.instructions
            else "none of them uses a tensor instruction",
            f"library {metrics['library_bytes'] / 1e6:.2f} MB in {built.compile_s:.1f} s"
            + (", compiled by the convert stage" if made.is_kept else ""),
            *lines,
        ],
    )


def _non_finite(model: CompiledModel, convert_dir: Path, signature: Signature) -> NonFinite | None:
    """Compare NaN and infinities of the library's outputs with ONNX Runtime's.

    The check of the conversion covers neither the schedules nor Winograd convolutions.
    """
    file = convert_dir / REFERENCE_FILE
    reference = Reference(str(file), model.metadata.threads)
    names = [spec.name for spec in signature.inputs]

    def run(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        return list(model.coded(dict(zip(names, arrays, strict=True))))

    float_model = onnx.load(str(file))
    return compare_non_finite(
        run,
        reference,
        signature.inputs,
        reference.output_names,
        dtype=signature.dtype,
        quantised=(convert_dir / QUANTIZED_FILE).is_file() or is_quantized(float_model),
        kind=signature.random_inputs,
        exact_loses_nan=loses_nan(float_model),
    )


def _why_elsewhere(non_finite: NonFinite, made: _Compiled) -> str:
    """Return why NaN and infinities differ; empty if unknown."""
    if non_finite.tag.startswith(AGREES) or not made.only_winograd:
        return ""
    return "; Winograd convolutions give NaN for infinities, and for all of a tile that holds NaN"


@dataclasses.dataclass(frozen=True)
class _Compiled:
    """A compiled model.

    Attributes:
        library: The library.
        segments: Number of segments for ONNX Runtime, of the size that has most.
        only_winograd: Whether it has Winograd convolutions, and no fallback without.
        is_kept: Whether the convert stage compiled it.
    """

    library: BuiltLibrary
    segments: int
    only_winograd: bool = False
    is_kept: bool = False


def _compiled(
    config: BuildConfig,
    target: TargetSpec,
    convert_dir: Path,
    tune_dir: Path | None,
    path: Path,
    progress: Progress,
) -> _Compiled:
    """Compile a converted model to ``path``, or take the library that its check compiled."""
    count = len(size_folders(convert_dir)) if config.all_sizes else 1
    kept = kept_library.find(convert_dir, target)
    if kept is not None and config.schedule == "default" and not _is_tuned(tune_dir):
        return _Compiled(kept.copy_to(path), kept.segments, is_kept=True)
    networks = [
        lowered_network(config, target, convert_dir, tune_dir, number) for number in range(count)
    ]
    largest = networks[0]
    progress(1, 3, "compile")
    built = build_library(
        largest.mod,
        target,
        path,
        database_dir=largest.database_dir,
        schedule=config.schedule,
        direct=largest.direct,
        other_sizes=networks[1:],
    )
    names = [var.name_hint for var in largest.mod.get_global_vars()]
    only_winograd = largest.direct is None and any("winograd" in name for name in names)
    return _Compiled(built, max(network.segments for network in networks), only_winograd)


def _is_tuned(tune_dir: Path | None) -> bool:
    """Return whether a tune stage left records, an implementation plan or chosen tiles."""
    if tune_dir is None:
        return False
    return (
        (tune_dir / DATABASE_DIR).is_dir()
        or (tune_dir / PACKING_FILE).is_file()
        or bool(read_plan(tune_dir / PLAN_FILE))
    )


def lowered_network(
    config: BuildConfig, target: TargetSpec, convert_dir: Path, tune_dir: Path | None, size: int
) -> LoweredNetwork:
    """Lower a converted model of one size, as its tune stage chose."""
    plan = read_plan(tune_dir / PLAN_FILE) if tune_dir else {}
    module = read_size(convert_dir, size)
    network = lower_network(module, target, plan=plan, winograd=config.schedule != "none")
    database = size_folder(tune_dir, size) / DATABASE_DIR if tune_dir else None
    direct = network.direct
    return dataclasses.replace(
        network,
        mod=packed_as_chosen(network.mod, tune_dir, size),
        direct=None if direct is None else packed_as_chosen(direct, tune_dir, size),
        database_dir=database if database and database.is_dir() else None,
    )


def _sizes(folders: Sequence[Path]) -> tuple[CompiledSize, ...]:
    """Return the sizes of converted models; empty if there is one only."""
    if len(folders) == 1:
        return ()
    signatures = [Signature.read(folder) for folder in folders]
    return tuple(
        CompiledSize(
            tuple(spec.shape for spec in one.inputs), tuple(spec.shape for spec in one.outputs)
        )
        for one in signatures
    )


def _parts_of(library: Path) -> tuple[str, ...]:
    with library.open("rb") as file:
        return part_hashes(file.fileno())


def _write_sources(path: Path, built: BuiltLibrary) -> None:
    with path.open("w", newline="") as file:
        rows = (
            (
                name,
                source,
                built.records.get(name, "none: no database"),
                " ".join(built.instructions.get(name, ())),
            )
            for name, source in sorted(built.sources.items())
        )
        write_csv(file, ["function", "schedule", "record", "instructions"], rows)


def _records(built: BuiltLibrary) -> str:
    """Return the number of functions per granularity of their record, or per missing record."""
    if not built.records:
        return "no tuning database"
    counts = collections.Counter(built.records.values())
    return "; ".join(f"{counts[kind]} {kind}" for kind in sorted(counts, reverse=True))
