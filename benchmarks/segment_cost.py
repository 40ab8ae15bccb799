"""Measure what a segment in ONNX Runtime costs in the middle of a compiled model.

Usage: ``python -m benchmarks.segment_cost [--only NAMES | --model FILE.onnx --input_shapes S]
[--threads N] [--seconds S] [--json FILE]``

The script puts a QuickGelu, which ONNX Runtime alone runs, in the middle of each model, at a value
through which everything flows. The table sets the whole beside its segments, the part before, the
operator in ONNX Runtime, and the part after: beside the sum of their latencies, each called again
and again, so that its weights stay in the caches, and beside a call of all three in a row.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from functools import partial

import numpy as np
import onnx
from onnx import helper
from onnx.utils import Extractor

import tvmopt
from benchmarks import options, report
from benchmarks.cpu_models import ModelFile, model_files
from benchmarks.interleave import Timing, interleave
from benchmarks.peers import ort_session
from tvmopt.frontend import load_onnx, parse_input_shapes, prepare
from tvmopt.frontend.partition import used_values
from tvmopt.random_inputs import random_arrays

MODELS = ("resnet18", "mobilenet_v2", "efficientnet_lite0", "ppocr_det", "ppocr_rec")
_MOST_DEVIATION = 1e-2
_DOMAIN = "com.microsoft"
_BEFORE, _OPERATOR, _AFTER, _WHOLE = "before", "operator", "after", "whole"
_IN_A_ROW = "in a row"


@dataclasses.dataclass(frozen=True)
class SegmentRow:
    """Results of one model.

    Attributes:
        name: Name of the model.
        timings: Latency of the whole and of its segments, in milliseconds.
        error: Largest deviation of the whole from ONNX Runtime.
        problem: Error of the model; empty on success.
    """

    name: str
    timings: dict[str, Timing] = dataclasses.field(default_factory=dict)
    error: float = 0.0
    problem: str = ""

    @property
    def in_a_row(self) -> float:
        """Latency of the whole over that of its segments in a row."""
        return self.timings[_WHOLE].median / self.timings[_IN_A_ROW].median

    @property
    def ratio(self) -> float:
        """Latency of the whole over the sum of its segments."""
        parts = sum(self.timings[part].median for part in (_BEFORE, _OPERATOR, _AFTER))
        return self.timings[_WHOLE].median / parts

    @property
    def right(self) -> bool:
        """Whether the whole computes what ONNX Runtime computes."""
        return not self.problem and self.error <= _MOST_DEVIATION


def narrow_value(model: onnx.ModelProto) -> str:
    """Return the value nearest to the middle of the nodes through which everything flows.

    Raises:
        ValueError: When there is none.
    """
    constants = {tensor.name for tensor in model.graph.initializer}
    last: dict[str, int] = {}
    for at, node in enumerate(model.graph.node):
        last.update(dict.fromkeys(used_values(node) - constants, at))
    last.update((output.name, len(model.graph.node)) for output in model.graph.output)
    made = [value.name for value in model.graph.input]
    found: list[tuple[float, str]] = []
    for at, node in enumerate(model.graph.node):
        made += node.output
        alive = [name for name in made if last.get(name, -1) > at]
        if len(alive) == 1 and alive[0] in node.output and at + 1 < len(model.graph.node):
            found.append((abs(at + 1 - len(model.graph.node) / 2), alive[0]))
    if not found:
        raise ValueError("everything must flow through one value somewhere, but it never does")
    return min(found)[1]


def with_operator(model: onnx.ModelProto, value: str) -> tuple[onnx.ModelProto, onnx.NodeProto]:
    """Return the model with a QuickGelu behind ``value``, and its node."""
    out = onnx.ModelProto()
    out.CopyFrom(model)
    new = f"{value}/gelu"
    place = next(at for at, node in enumerate(out.graph.node) if value in node.output)
    for node in out.graph.node:
        for at, name in enumerate(node.input):
            if name == value:
                node.input[at] = new
    gelu = helper.make_node("QuickGelu", [value], [new], name=new, domain=_DOMAIN, alpha=1.0)
    out.graph.node.insert(place + 1, gelu)
    out.opset_import.append(helper.make_opsetid(_DOMAIN, 1))
    return out, gelu


def measure(file: ModelFile, threads: int, seconds: float) -> SegmentRow:
    """Measure one model."""
    import onnxruntime as ort

    shapes = parse_input_shapes(file.shapes) if file.shapes else {}
    model = prepare(load_onnx(file.path), shapes).model
    cut = narrow_value(model)
    whole_model, _ = with_operator(model, cut)
    names = [[value.name for value in side] for side in (model.graph.input, model.graph.output)]
    extractor = Extractor(model)
    parts = extractor.extract_model(names[0], [cut]), extractor.extract_model([cut], names[1])
    before, after = (tvmopt.compile(part, threads=threads) for part in parts)
    whole = tvmopt.compile(whole_model, threads=threads)
    operator = ort_session(_operator_model(model, cut), threads, spins=False)
    inputs = random_arrays(whole.metadata.inputs, 0, "normal")
    middle = before(inputs)[0]
    activated = operator.run(None, {cut: middle})[0]
    reference = ort.InferenceSession(
        whole_model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    apart = max(
        float(np.abs(ours.astype("f8") - theirs.astype("f8")).max())
        for ours, theirs in zip(whole(inputs), reference.run(None, inputs), strict=True)
    )

    def in_a_row() -> None:
        after({cut: operator.run(None, {cut: before(inputs)[0]})[0]})

    timings = interleave(
        {
            _WHOLE: partial(whole, inputs),
            _BEFORE: partial(before, inputs),
            _OPERATOR: partial(operator.run, None, {cut: middle}),
            _AFTER: partial(after, {cut: activated}),
            _IN_A_ROW: in_a_row,
        },
        time_limit_s=seconds,
    )
    return SegmentRow(file.name, timings, apart)


def _operator_model(model: onnx.ModelProto, value: str) -> onnx.ModelProto:
    declared = next(v for v in model.graph.value_info if v.name == value)
    node = helper.make_node("QuickGelu", [value], ["out"], domain=_DOMAIN, alpha=1.0)
    out = helper.make_value_info("out", declared.type)
    graph = helper.make_graph([node], "operator", [declared], [out])
    ids = [*model.opset_import, helper.make_opsetid(_DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=ids, ir_version=model.ir_version)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = options.make_parser("segment_cost", __doc__, 10.0, "timing limit per model in seconds")
    args = options.parse(parser, arguments)
    with options.errors_in_one_line(parser):
        todo = model_files(parser, args, MODELS)
    facts = report.environment(args.threads)
    report.print_environment(facts, needed=())
    rows = report.measure_all(
        todo,
        lambda file: measure(file, args.threads, args.seconds),
        lambda row: f"whole over segments {row.ratio:.3f}, in a row {row.in_a_row:.3f}",
    )
    shown = (_WHOLE, _BEFORE, _OPERATOR, _AFTER, _IN_A_ROW)
    header = ("model", *(f"{part}, ms" for part in shown), "whole / sum", "/ in a row", "error")
    print(
        report.markdown(
            header,
            [
                (
                    row.name,
                    *(str(row.timings[part]) for part in shown),
                    f"{row.ratio:.3f}",
                    f"{row.in_a_row:.3f}",
                    f"{row.error:.1e}",
                )
                for row in rows
            ],
        )
    )
    return report.finish(args.json, facts, rows)


if __name__ == "__main__":
    sys.exit(main())
