"""Send odd rows to source models and to what is compiled of them; compare the answers.

Both are called by ``mlflow.pyfunc.load_model(...).predict``, and over HTTP: the source by the app
of ``mlflow models serve``, the compiled model by that app and by the app of ``tvmopt serve``::

    python -m benchmarks.odd_rows [--exported] [--all] [MODEL ...]

With ``--exported``, ONNX Runtime computes the exported graph in place of compiled code, which
checks all but the kernels in a fraction of the time. ``--all`` prints every case, not faults alone.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import logging
import os
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.odd_requests import odd_bodies, odd_calls
from benchmarks.odd_sources import SOURCES
from benchmarks.odd_verdicts import BOTH_REFUSE, FAULTS, REFUSED, SAME, Outcome, called, verdict
from benchmarks.registry_models import register
from benchmarks.registry_sources import FittedSource
from tvmopt.errors import TvmoptError

_HEAD = ("model", "through", "cases", SAME, BOTH_REFUSE, REFUSED, "faults")
_MOST_BYTES = 1_000_000


@dataclasses.dataclass(frozen=True)
class Pair:
    """A source and its compiled model.

    Attributes:
        source: The source, as ``mlflow.pyfunc.load_model`` loads it.
        ours: The compiled model, loaded alike.
    """

    source: Any
    ours: Any


@dataclasses.dataclass(frozen=True)
class Case:
    """One call of both models.

    Attributes:
        name: What is odd.
        through: ``"predict"``, ``"mlflow serve"`` or ``"tvmopt serve"``.
        source: What the source did.
        ours: What the compiled model did.
    """

    name: str
    through: str
    source: Outcome
    ours: Outcome

    @property
    def verdict(self) -> str:
        """Return the verdict."""
        return verdict(self.ours, self.source)


def main() -> int:
    """Print one row per model and way to call it; return 1 if there is a fault."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--exported", action="store_true", help="ONNX Runtime computes")
    parser.add_argument("--all", action="store_true", help="print every case")
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(SOURCES))
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    folder = Path(tempfile.mkdtemp(prefix="tvmopt-odd-rows-"))
    os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder / 'mlflow.db'}"
    os.chdir(folder)
    rows: list[tuple[str, ...]] = []
    faults = 0
    for name in given.models or SOURCES:
        source = SOURCES[name]()
        try:
            pair = exported_pair(source, folder / name) if given.exported else _main(name, source)
        except TvmoptError as error:
            rows.append((name, "export", "", "", "", "1", ""))
            print(f"{name}: {error}")
            continue
        cases = list(odd_cases(pair, source))
        for case in cases:
            if given.all or case.verdict in FAULTS:
                print(f"{name}, {case.through}: {case.name}: {case.verdict}")
                print(f"    source: {_shown(case.source)}\n    ours:   {_shown(case.ours)}")
        found = table_rows(name, cases)
        faults += sum(int(cells[-1]) for cells in found)
        rows += found
    print()
    for cells in (_HEAD, ("---",) * len(_HEAD), *rows):
        print(f"| {' | '.join(cells)} |")
    return int(faults > 0)


def table_rows(name: str, cases: list[Case]) -> list[tuple[str, ...]]:
    """Return the rows of a model: how many cases have which verdict."""
    rows = []
    for through in dict.fromkeys(case.through for case in cases):
        counts = Counter(case.verdict for case in cases if case.through == through)
        counted = [counts[one] for one in (SAME, BOTH_REFUSE, REFUSED)]
        total = sum(counts.values())
        cells = map(str, (total, *counted, total - sum(counted)))
        rows.append((name, through, *cells))
    return rows


def odd_cases(pair: Pair, source: FittedSource) -> Iterator[Case]:
    """Yield what both models do with each odd call."""
    calls = odd_calls(source.table)
    for name, data in calls.items():
        yield Case(
            name, "predict", called(pair.source.predict, data), called(pair.ours.predict, data)
        )
    apps = {"mlflow serve": _mlflow_app(pair.ours), "tvmopt serve": _tvmopt_app(pair.ours)}
    source_app = _mlflow_app(pair.source)
    for name, body in odd_bodies(calls).items():
        want = post(source_app, body)
        for through, app in apps.items():
            yield Case(name, through, want, post(app, body))


def post(app: Any, body: bytes) -> Outcome:
    """Return what an ASGI application answers to a request with a JSON body."""
    sent: list[dict[str, Any]] = []
    given = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive() -> dict[str, Any]:
        for message in given:
            return message
        await asyncio.sleep(3600)  # the client waits for the answer
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    headers = [(b"content-type", b"application/json"), (b"host", b"here")]
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST",
        "scheme": "http", "path": "/invocations", "raw_path": b"/invocations", "root_path": "",
        "query_string": b"", "headers": headers, "client": ("127.0.0.1", 1), "server": ("here", 80),
    }  # fmt: skip
    asyncio.run(app(scope, receive, send))
    content = b"".join(message.get("body", b"") for message in sent)
    if sent[0]["status"] == HTTPStatus.OK:
        return Outcome(content)
    if sent[0]["status"] >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return Outcome(None, f"status {sent[0]['status']}:\n{content.decode()}")
    message = str(json.loads(content).get("message", ""))
    # MLflow's own server puts the rows, and the error behind them, into its message.
    return Outcome(None, message, "Failed to predict data" in message)


def _mlflow_app(model: Any) -> Any:
    from mlflow.pyfunc import scoring_server

    return scoring_server.init(model)


def _tvmopt_app(model: Any) -> Any:
    from tvmopt.parameters.groups import ServerParameters
    from tvmopt.tracking.serving.serve import scoring_app

    return scoring_app(model.get_raw_model(), ServerParameters())


def exported_pair(source: FittedSource, folder: Path) -> Pair:
    """Return a source, and its exported graph in ONNX Runtime behind the runtime's own front."""
    import importlib

    import mlflow
    import onnx
    import yaml
    from mlflow.models import infer_signature

    from tvmopt.exporters.source import describe
    from tvmopt.frontend.load import load_onnx
    from tvmopt.frontend.source_interface import interface_of
    from tvmopt.stages.export import MODEL_FILE, export
    from tvmopt.tracking.flavor.python_model import CompiledPyFunc

    saved, out = folder / "saved", folder / "out"
    out.mkdir(parents=True)
    flavor: Any = importlib.import_module(f"mlflow.{source.flavor}")
    method = source.arguments.get("pyfunc_predict_fn", "predict")
    signature = infer_signature(source.example, getattr(source.model, method)(source.example))
    flavor.save_model(source.model, str(saved), signature=signature, **source.arguments)
    said = yaml.safe_load((saved / "MLmodel").read_text())
    described = describe("models:/source/1", said["flavors"], said["signature"], trust=True)
    data = folder / "rows.parquet"
    text = {name: str for name, dtype in source.table.dtypes.items() if dtype == "category"}
    source.table.astype(text).to_parquet(data)
    export(described.to_dict(), "", saved, data, out, lambda *told: None)
    wrapped = mlflow.pyfunc.load_model(str(saved))
    model: Any = ExportedModel(load_onnx(out / MODEL_FILE))
    assert interface_of(onnx.load(out / MODEL_FILE)) is not None
    ours = mlflow.pyfunc.PyFuncModel(wrapped.metadata, CompiledPyFunc(model))
    return Pair(wrapped, ours)


class ExportedModel:
    """An exported graph in ONNX Runtime that is called as a compiled model is.

    Args:
        graph: The graph, with codes for strings.
    """

    def __init__(self, graph: Any) -> None:
        import onnxruntime

        from tvmopt.frontend.reference import input_specs
        from tvmopt.frontend.source_interface import interface_of
        from tvmopt.runtime.categories import Categories

        self._session = onnxruntime.InferenceSession(graph.SerializeToString())
        fixed = type(graph)()
        fixed.CopyFrom(graph)
        for value in fixed.graph.input:
            value.type.tensor_type.shape.dim[0].dim_value = 1
        specs = input_specs(fixed)
        self._categories = {
            spec.name: Categories(spec.name, spec.categories) for spec in specs if spec.categories
        }
        self._names = [output.name for output in graph.graph.output]
        outputs = [SimpleNamespace(name=name, shape=(1,), categories=()) for name in self._names]
        self.metadata = SimpleNamespace(
            interface=interface_of(graph), inputs=specs, outputs=outputs, any_rows=True, threads=1,
            native=True, open_inputs=specs,
        )  # fmt: skip

    def __call__(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Return the outputs by name."""
        coded = {
            name: self._categories[name].encode(array) if name in self._categories else array
            for name, array in inputs.items()
        }
        found = self._session.run(self._names, coded)
        return dict(zip(self._names, found, strict=True))


def _main(name: str, source: FittedSource) -> Pair:
    import mlflow

    from tvmopt import workflow

    register(name, source)
    text = {column: str for column, dtype in source.table.dtypes.items() if dtype == "category"}
    source.table.astype(text).to_parquet(f"{name}.parquet")
    workflow.main(
        model=f"models:/{name}/1", data=f"{name}.parquet", trust=source.trust, repeats=10,
        strategy="default", input_shapes="rows=1,8",
    )  # fmt: skip
    load = mlflow.pyfunc.load_model
    return Pair(load(f"models:/{name}/1"), load(f"models:/{name}-compiled@champion"))


def _shown(outcome: Outcome) -> str:
    return " ".join(outcome.error.split())[:300] if outcome.error else repr(outcome.answer)[:120]


if __name__ == "__main__":
    raise SystemExit(main())
