"""Classify one model: rejected in one line, compiled with right results, or a fault."""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Callable, Collection
from pathlib import Path

import numpy as np

REFUSED, RIGHT = "refused", "right"
#: The child exceeded its time or memory; the product reports this in one line.
LIMIT = "limit"
#: A signal killed the child; the product reports this in one line, but each case deserves a look.
CRASH = "crash"
#: A foreign exception, an unclear message, wrong results, or the death of the parent.
UNEXPECTED, UNCLEAR, WRONG, PARENT = "unexpected", "unclear", "wrong", "parent"
GOOD = (REFUSED, RIGHT, LIMIT)
_LONGEST_LINE = 4100
# Weights from which on a GEMM may overflow float32 in one order of additions alone.
_HUGE = 1e30
_QUANTISERS = ("QuantizeLinear",)
# Of NaN among numbers, ONNX defines neither the order nor the range (SECURITY.md, Numbers).
_UNDEFINED_FOR_NAN = ("TopK", "DynamicQuantizeLinear")


@dataclasses.dataclass
class Outcome:
    """The outcome of a mutant.

    Attributes:
        kind: One of the constants above.
        phase: Last phase: request, convert, tune, build, run.
        text: Message of the error, or what is wrong.
        error: Class name of the exception.
        details: Traceback of an unexpected exception.
        notes: Observations to count that are no faults.
    """

    kind: str
    phase: str = ""
    text: str = ""
    error: str = ""
    details: str = ""
    notes: str = ""


def is_clear(text: str) -> bool:
    """Return whether ``text`` is one printable line."""
    from tvmopt.printable import is_printable

    return 0 < len(text) <= _LONGEST_LINE and is_printable(text) and "Traceback" not in text


def judge(
    path: Path, input_shapes: str, folder: Path, at: Callable[[str], None], *, whole: bool
) -> Outcome:
    """Run the model at ``path`` through the stages, as ``main`` does.

    Args:
        path: The ONNX file.
        input_shapes: The parameter ``input_shapes``.
        folder: An empty folder for the files of the stages.
        at: Function to call with the name of each phase.
        whole: Whether to compile the model, or only to load, prepare and import it.
    """
    return judged(at, lambda phase: _through(path, input_shapes, folder, phase, whole))


def judged(
    at: Callable[[str], None], work: Callable[[Callable[[str], None]], tuple[str, str]]
) -> Outcome:
    """Return the outcome of ``work``, which returns what is wrong with its results, and notes.

    Args:
        at: Function to call with the name of each phase.
        work: Function to call; its argument records the name of a phase.
    """
    from tvmopt.errors import TvmoptError

    reached = ""

    def phase(name: str) -> None:
        nonlocal reached
        reached = name
        at(name)

    try:
        text, notes = work(phase)
    except TvmoptError as error:
        if not is_clear(str(error)):
            return Outcome(UNCLEAR, reached, ascii(str(error))[:2000], type(error).__name__)
        return Outcome(REFUSED, reached, str(error), type(error).__name__)
    except MemoryError as error:  # which a stage's process reports as LimitError
        kind = UNEXPECTED if reached in ("", "request") else LIMIT
        return Outcome(kind, reached, ascii(str(error))[:300], type(error).__name__)
    except Exception as error:
        return Outcome(
            UNEXPECTED, reached, ascii(str(error))[-300:], type(error).__name__,
            traceback.format_exc()[-3000:],
        )  # fmt: skip
    return Outcome(WRONG if text else RIGHT, reached, text, notes=notes)


def _through(
    path: Path, input_shapes: str, folder: Path, phase: Callable[[str], None], whole: bool
) -> tuple[str, str]:
    """Run all stages; return what is wrong with the results, and notes."""
    from tvmopt.frontend import import_onnx, layer_table, load_onnx, parse_input_shapes, prepare
    from tvmopt.runtime import load
    from tvmopt.stages.build import BUNDLE_DIR, build
    from tvmopt.stages.convert import convert
    from tvmopt.stages.non_finite import NON_FINITE_TAG
    from tvmopt.stages.tune import tune
    from tvmopt.tracking.pipeline.request import make_request

    phase("request")
    request = make_request(
        path, name="mutant", input_shapes=input_shapes, threads=1, layout="NCHW",
        strategy="default",
    )  # fmt: skip
    if not whole:
        phase("import")
        prepared = prepare(load_onnx(path), parse_input_shapes(request.convert.input_shapes))
        import_onnx(prepared.model, layer_table(prepared.model))
        return "", "imported"
    for name in ("convert", "tune", "build"):
        (folder / name).mkdir()
    phase("convert")
    converted = convert(request.convert, path, folder / "convert", _no_progress)
    phase("tune")
    tune(request.tune, folder / "convert", folder / "tune", _no_progress)
    phase("build")
    build(request.build, folder / "convert", folder / "tune", "", folder / "build", _no_progress)
    phase("run")
    wrong = wrong_numbers(load(folder / "build" / BUNDLE_DIR), path, folder / "convert")
    return wrong, converted.tags.get(NON_FINITE_TAG, "")


def _no_progress(done: int, total: int, text: str) -> None:
    pass


def wrong_numbers(compiled, path: Path, converted: Path) -> str:
    """Compare with ONNX Runtime on the original file, on inputs that no stage has seen."""
    import onnx
    import onnxruntime as ort

    from tvmopt.compare import deviation
    from tvmopt.frontend.old_opsets import at_least_opset_7
    from tvmopt.frontend.prepare import session_options
    from tvmopt.frontend.shapes import fix_input_shapes
    from tvmopt.kernels.recurrence import GATES
    from tvmopt.random_inputs import random_arrays
    from tvmopt.stages.signature import Signature

    model = at_least_opset_7(onnx.load_model(str(path)))  # onnx's own reader of external data
    for node in model.graph.node:  # ONNX Runtime crashes on a LayerNormalization bias named ""
        while node.input and not node.input[-1]:
            del node.input[-1]
    # ONNX Runtime confuses the types of weights that an older file does not list as inputs.
    model.ir_version = max(model.ir_version, 4)
    metadata = compiled.metadata
    # The parameter input_shapes may change static sizes.
    fix_input_shapes(model, {spec.name: spec.shape for spec in metadata.inputs})
    options = session_options(model, threads=1)
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    kind = Signature.read(converted).random_inputs
    for seed in (11, 12, 13):
        inputs = random_arrays(metadata.inputs, seed, kind)
        try:
            expected = session.run([o.name for o in session.get_outputs()], inputs)
        except Exception:  # the model does not accept this input
            continue
        got = list(compiled(inputs))
        if len(got) != len(expected):
            return f"{len(expected)} outputs, but got {len(got)}"
        if nan_reaches(model, inputs, _UNDEFINED_FOR_NAN):
            continue
        if has_huge_weights(model) and any(n.op_type in GATES for n in model.graph.node):
            continue  # ONNX Runtime's sigmoid of -1e37 is not 0 there (test_recurrent.py)
        lost = nan_reaches(model, inputs, _QUANTISERS) or nan_is_lost(model, inputs)
        overflows = has_huge_weights(model)
        for spec, actual, wanted in zip(metadata.outputs, got, expected, strict=True):
            wanted = np.asarray(wanted)
            if (actual.shape, actual.dtype) != (wanted.shape, wanted.dtype):
                return (
                    f"{spec.name}: {wanted.dtype}{wanted.shape}, but got "
                    f"{actual.dtype}{actual.shape}"
                )
            if lost and actual.dtype.kind == "f":  # ours propagates NaN, ONNX Runtime may give 0
                wanted = np.where(np.isnan(actual), np.nan, wanted).astype(wanted.dtype)
            if overflows and actual.dtype.kind == "f":
                one_overflows = np.isfinite(actual) != np.isfinite(wanted)
                wanted = np.where(one_overflows, actual, wanted).astype(wanted.dtype)
            apart = deviation(actual, wanted, metadata.measure)
            if apart > metadata.tolerance:
                return f"{spec.name}: deviates by {apart:.3g} (allowed {metadata.tolerance:g})"
    return ""


def has_huge_weights(model) -> bool:
    """Whether the order of additions decides which sums overflow (SECURITY.md, Numbers)."""
    from onnx import numpy_helper

    from tvmopt.frontend.external import graphs

    def largest(tensor) -> float:
        tensor.ClearField("segment")  # ONNX Runtime ignores it, numpy_helper refuses it
        values = np.abs(numpy_helper.to_array(tensor).astype(np.float64))
        return float(values[np.isfinite(values)].max(initial=0.0))

    # ONNX Runtime drops what no node uses, whatever it holds.
    used = {name for graph in graphs(model.graph) for node in graph.node for name in node.input}
    floats = [t for t in model.graph.initializer if t.data_type == t.FLOAT and t.name in used]
    return any(largest(tensor) >= _HUGE for tensor in floats)


def nan_reaches(model, inputs: dict[str, np.ndarray], operators: Collection[str]) -> bool:
    """Return whether one of ``operators``, whose result ONNX leaves undefined for NaN, gets any."""
    names = {n.input[0] for n in model.graph.node if n.op_type in operators and n.input}
    return any(np.isnan(value).any() for value in values_of(model, inputs, names))


def nan_is_lost(model, inputs: dict[str, np.ndarray]) -> bool:
    """Return whether ONNX Runtime may turn NaN into numbers in a recurrent layer.

    Infinities in its weights or its input make NaN in it.
    """
    from tvmopt.frontend.reference import loses_nan
    from tvmopt.kernels.recurrence import GATES

    if not loses_nan(model):
        return False
    cells = [node for node in model.graph.node if node.op_type in GATES]
    names = {name for node in cells for name in node.input if name}
    values = values_of(model, inputs, names)
    return any(v.dtype.kind == "f" and not np.isfinite(v).all() for v in values)


def values_of(model, inputs: dict[str, np.ndarray], names: Collection[str]) -> list[np.ndarray]:
    """Return the tensors of these names; none if ONNX Runtime does not give inner ones."""
    import onnx
    import onnxruntime as ort
    from onnx import numpy_helper

    from tvmopt.frontend.prepare import session_options

    constants = [t for t in model.graph.initializer if t.name in names and t.name not in inputs]
    values = [numpy_helper.to_array(t) for t in constants]
    values += [value for name, value in inputs.items() if name in names]
    inner = set(names) - {t.name for t in constants} - set(inputs)
    if not inner:
        return values
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    del shown.graph.output[:]
    for name in sorted(inner):
        shown.graph.output.add(name=name)
    options = session_options(shown, threads=1)
    content = shown.SerializeToString()
    try:
        session = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        return values + session.run(None, inputs)
    except Exception:  # with inner outputs, ONNX Runtime fuses other operators
        return values
