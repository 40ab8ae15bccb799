"""Import, convert and compile a model; what fails alone runs in ONNX Runtime."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import onnx
import tvm

from tvmopt.choices import AUTO, FALLBACKS
from tvmopt.config import ConvertConfig
from tvmopt.device.target import TargetSpec, resolve_target
from tvmopt.errors import (
    BuildError,
    ModelError,
    TvmoptError,
    UnsupportedOperatorError,
    after_retry,
    last_line,
)
from tvmopt.frontend import (
    Imported,
    Layer,
    import_onnx,
    import_with_segments,
    not_compilable,
)
from tvmopt.frontend.partition import dynamic_nodes
from tvmopt.frontend.reference import (
    Reference,
    check_outputs,
    input_specs,
    tolerance_for,
    working_random_inputs,
)
from tvmopt.frontend.support import Unsupported, every_node
from tvmopt.stages.auto_layout import ChosenLayout, choose_layout
from tvmopt.stages.check import Run, compile_for_check
from tvmopt.stages.convert_check import compiler_errors
from tvmopt.stages.result import Progress
from tvmopt.transform.conversion import Conversion, convert_module
from tvmopt.transform.plan import free_layouts
from tvmopt.transform.shapes_of_values import require_counted_shapes
from tvmopt.transform.simplify import simplify


@dataclasses.dataclass(frozen=True)
class Skipped:
    """Reasons for skipped layers, by layer index.

    Attributes:
        by_user: Layers that keep dtype and layout.
        for_accuracy: Layers that keep their dtype only, for accuracy or for time.
        halves: Layers that compute in a 16-bit float, another dtype than the conversion's.
    """

    by_user: dict[int, str]
    for_accuracy: dict[int, str]
    halves: dict[int, str] = dataclasses.field(default_factory=dict)

    @property
    def reasons(self) -> dict[int, str]:
        """All of them, sorted; the user's reason where a layer has both."""
        return dict(sorted({**self.for_accuracy, **self.by_user}.items()))

    def with_slower(self, slower: Mapping[int, str]) -> Skipped:
        """Return the same, with layers that keep float32 since it is faster."""
        return dataclasses.replace(self, for_accuracy={**self.for_accuracy, **slower})


class Conversions:
    """Convert a module to a dtype, once for each layout.

    Args:
        imported: The imported module.
        dtype: The dtype.
        skipped: Layers to leave alone.
        allow_tf32: Whether float32 matmuls and convolutions may round to TF32 on a GPU.
        narrow_norms: Whether a LayerNorm may read 16 bits, such as a residual sum; for a GPU.
        frees_layouts: Whether the tuner may choose the layout of every layer that the user does not
            skip.
    """

    def __init__(
        self,
        imported: tvm.IRModule,
        dtype: str,
        skipped: Skipped,
        allow_tf32: bool = False,
        narrow_norms: bool = False,
        frees_layouts: bool = False,
    ) -> None:
        self._imported, self._dtype, self._skipped = imported, dtype, skipped
        self._allow_tf32, self._narrow_norms = allow_tf32, narrow_norms
        self._frees_layouts = frees_layouts
        self._by_layout: dict[str, Conversion] = {}

    def __call__(self, layout: str) -> Conversion:
        """Return the module in ``layout``."""
        if layout not in self._by_layout:
            conversion = self.convert(self._imported, layout)
            if self._frees_layouts:
                free_layouts(conversion.mod, self._skipped.by_user)
            self._by_layout[layout] = conversion
        return self._by_layout[layout]

    def convert(self, mod: tvm.IRModule, layout: str) -> Conversion:
        """Convert another module in the same way."""
        with compiler_errors(f"convert to {self._dtype} in {layout}"):
            return convert_module(
                mod,
                dtype=self._dtype,
                layout=layout,
                skip_layers=self._skipped.by_user,
                keep_dtype=self._skipped.for_accuracy,
                halves=self._skipped.halves,
                allow_tf32=self._allow_tf32,
                narrow_norms=self._narrow_norms,
            )


def _layout(asked: str, conversions: Conversions, target: TargetSpec) -> ChosenLayout:
    """Return the layout to convert to; for ``auto`` the one with the least predicted time."""
    if asked != AUTO:
        return ChosenLayout(asked)
    with compiler_errors("compile in a layout"):
        return choose_layout(lambda layout: conversions(layout).mod, target)


class Importer:
    """Import a model; for a CPU, what cannot be compiled may become segments.

    Args:
        layers: Its layer table.
        config: Configuration of the stage.
        target: Target of the conversion.
        is_checked: Whether the module is compiled and run: for the target, or for this machine's
            CPU where the target does not run here. The conversion is the same for both.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        config: ConvertConfig,
        target: TargetSpec,
        is_checked: bool = True,
    ) -> None:
        self._layers = layers
        self.is_foreign = bool(target.missing_on_host())
        #: Target that the check compiles for; None where nothing is checked.
        self.checked_on: TargetSpec | None = None
        if is_checked:
            self.checked_on = resolve_target("host") if self.is_foreign else target
        self._target = self.checked_on or target
        self._dtype = config.dtype
        self._others: list[Unsupported] = []
        self._first: TvmoptError | None = None
        # Next nodes to leave out, the quickest check first: checking every node compiles it.
        self._steps = [lambda model, _: dynamic_nodes(model), self._that_fail_alone, self._all]
        self.has_segments = config.fallback == FALLBACKS[0] and target.gpu is None

    def __call__(self, model: onnx.ModelProto) -> Imported:
        """Import a prepared model."""
        if self.has_segments:
            return import_with_segments(model, self._layers, self._others)
        return Imported(import_onnx(model, self._layers))

    def leave_out_more(self, model: onnx.ModelProto, error: TvmoptError) -> bool:
        """Leave out, from now on, more nodes than before; return whether there are any.

        The nodes of dynamic shapes; next, those that fail alone; last, of a float32 conversion, all
        nodes: then what is wrong is how some work together.

        Args:
            model: A prepared model.
            error: What was wrong.
        """
        while self.has_segments and self._steps:
            found = self._steps.pop(0)(model, error)
            if len(found) > len(self._others):
                self._others = found
                self._first = self._first or error
                return True
        return False

    def with_first_error(self, error: TvmoptError) -> TvmoptError:
        """Return ``error``, behind the one because of which nodes were left out, if any were.

        Args:
            error: What is wrong although :meth:`leave_out_more` left out all that it could.
        """
        if self._first is None:
            return error
        nodes = f"{len(self._others)} node(s) in ONNX Runtime"
        return after_retry(self._first, nodes, error)

    def _that_fail_alone(self, model: onnx.ModelProto, _: TvmoptError) -> list[Unsupported]:
        return not_compilable(model, self._check_alone)

    def _all(self, model: onnx.ModelProto, error: TvmoptError) -> list[Unsupported]:
        if self._dtype != "float32":
            return []
        return every_node(model, f"as a whole: {last_line(error, 300)}")

    def _check_alone(self, node: onnx.ModelProto) -> None:
        """Compile a model of one node, and compare it with ONNX Runtime where that takes inputs."""
        mod = import_onnx(node)
        require_counted_shapes(simplify(mod))
        run = compile_for_check(mod, self._target)
        reference = Reference(node, self._target.threads)
        try:
            _, inputs, expected = working_random_inputs(reference, input_specs(node), seed=0)
        except ModelError:
            return
        got = run(list(inputs.values()))
        check_outputs(got, expected, reference.output_names, "the node", tolerance_for(node))


#: Returns the prepared model for skipped layers: for int8 one that quantises the others.
SourceOf: TypeAlias = Callable[[Skipped], onnx.ModelProto]
#: Returns layers of a converted module that are to keep float32, with reasons.
FindSlower: TypeAlias = Callable[[tvm.IRModule], dict[int, str]]


@dataclasses.dataclass(frozen=True)
class Made:
    """A conversion that compiles.

    Attributes:
        source: The prepared model that was imported; for int8 a quantised one.
        skipped: Layers that do not have the dtype.
        parted: The imported module.
        conversions: Its conversions.
        config: The configuration, with the layout that was chosen.
        run: Runs the compiled module; None where nothing is checked.
        unchecked: Why this machine's CPU cannot check a conversion for another target; else empty.
    """

    source: onnx.ModelProto
    skipped: Skipped
    parted: Imported
    conversions: Conversions
    config: ConvertConfig
    run: Run | None
    unchecked: str = ""


def converted_module(
    config: ConvertConfig, import_: Importer, source_of: SourceOf, skipped: Skipped,
    target: TargetSpec, progress: Progress, keep_in: Path | None, find_slower: FindSlower | None,
    layout: str = "",
) -> Made:  # fmt: skip
    """Import, convert and compile; leave out nodes that do not compile where the user lets us.

    Args:
        config: Configuration of the stage.
        import_: Imports a prepared model.
        source_of: Returns the prepared model without the skipped layers in int8.
        skipped: Layers that do not have the dtype.
        target: Target of the conversion.
        progress: Called after each step.
        keep_in: Folder to keep the compiled library in, if any
            (:func:`~tvmopt.stages.check.compile_for_check`).
        find_slower: Returns the layers of a converted module that are to keep float32, with
            reasons; None to convert all.
        layout: The layout that an earlier attempt chose; empty to choose.
    """
    source = source_of(skipped)
    try:
        parted = import_(source)
        progress(2, 5, "convert")
        on_gpu = target.gpu is not None
        conversions = Conversions(
            parted.mod, config.dtype, skipped, config.allow_tf32, narrow_norms=on_gpu,
            frees_layouts=config.layout == AUTO,
        )  # fmt: skip
        choice = _layout(layout or config.layout, conversions, target)
        layout = choice.name
        converted = conversions(layout)
        require_counted_shapes(converted.mod)
        slower = {}
        if find_slower is not None:
            with compiler_errors("have layers that the cost model can predict"):
                slower = find_slower(converted.mod)
        if not slower:
            progress(3, 5, "compile check")
            run, unchecked = _compiled(import_, converted.mod, keep_in, choice.lowered)
            chosen = dataclasses.replace(config, layout=layout)
            return Made(source, skipped, parted, conversions, chosen, run, unchecked)
        skipped, find_slower = skipped.with_slower(slower), None
    except (ModelError, BuildError, UnsupportedOperatorError) as error:
        if not import_.leave_out_more(source, error):
            raise import_.with_first_error(error) from error.__cause__
    return converted_module(
        config, import_, source_of, skipped, target, progress, keep_in, find_slower, layout
    )


def _compiled(
    import_: Importer, mod: tvm.IRModule, keep_in: Path | None, lowered: tvm.IRModule | None
) -> tuple[Run | None, str]:
    """Compile for the check; return the function, and why there is none for another target."""
    if import_.checked_on is None:
        return None, ""
    try:
        with compiler_errors("compile"):
            return compile_for_check(mod, import_.checked_on, keep_in, lowered), ""
    except (ModelError, BuildError, UnsupportedOperatorError) as error:
        if import_.has_segments or not import_.is_foreign:
            raise
        return None, f"this machine's CPU cannot run it either: {last_line(error, 200)}"
