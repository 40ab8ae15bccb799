"""Export and compile models that ``registry_models`` does not hold; compare answers.

Each model is fitted, saved by MLflow, exported with 20 rows of example, compiled for 1,000 rows
without tuning, and compared with its source on 3,000 other rows::

    python -m benchmarks.registry_exports [MODEL ...]
"""

from __future__ import annotations

import argparse
import importlib
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import yaml

from benchmarks.registry_models import compared
from benchmarks.registry_sources import FittedSource
from benchmarks.registry_unseen import unseen_sources
from tvmopt.errors import TvmoptError

_CALL = 1000
_HEAD = ("model", "ONNX nodes", "labels differ", "largest difference", "segments", "CPU s")


def main() -> int:
    """Print one row per model; return 1 if an answer differs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    sources = unseen_sources()
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(sources))
    names = parser.parse_args().models or list(sources)
    warnings.filterwarnings("ignore")
    print(f"| {' | '.join(_HEAD)} |")
    print(f"|{'---|' * len(_HEAD)}")
    differ = False
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            cells = _row(sources[name](), Path(folder))
        print(f"| {' | '.join((name, *cells))} |", flush=True)
        differ = differ or cells[1] != "0"
    return int(differ)


def _row(source: FittedSource, folder: Path) -> tuple[str, ...]:
    import tvmopt
    from tvmopt.frontend.source_interface import interface_of
    from tvmopt.stages.export import MODEL_FILE

    start = time.process_time()
    try:
        want = _exported(source, folder)
        model = onnx.load(folder / MODEL_FILE)
        inputs = {value.name: value.type.tensor_type for value in model.graph.input}
        shapes = {
            name: (_CALL, *(dim.dim_value for dim in kind.shape.dim[1:]))
            for name, kind in inputs.items()
        }
        compiled = tvmopt.compile(folder / MODEL_FILE, shapes)
    except TvmoptError as error:
        return ("", "", str(error)[:200], "", "")
    interface = interface_of(model)
    assert interface is not None
    dtypes = {
        name: str(np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)))
        for name, kind in inputs.items()
    }
    found = [
        interface.result(dict(compiled(interface.inputs(part, dtypes)).items()))
        for part in (source.table[at : at + _CALL] for at in range(0, len(source.table), _CALL))
    ]
    differ, largest = compared(np.concatenate(found), want)
    spent = time.process_time() - start
    return (
        str(len(model.graph.node)), str(differ), f"{largest:.1e}",
        str(compiled.metadata.segments), f"{spent:.0f}",
    )  # fmt: skip


def _exported(source: FittedSource, folder: Path) -> np.ndarray:
    """Save and export a model; return the answers of the source."""
    from mlflow.models import infer_signature

    from tvmopt.exporters.source import describe
    from tvmopt.stages.export import export

    method = source.arguments.get("pyfunc_predict_fn", "predict")
    predict = getattr(source.model, method)
    flavor: Any = importlib.import_module(f"mlflow.{source.flavor}")
    flavor.save_model(
        source.model,
        str(folder / "saved"),
        signature=infer_signature(source.example, predict(source.example)),
        pip_requirements=["numpy"],
        **source.arguments,
    )
    said = yaml.safe_load((folder / "saved" / "MLmodel").read_text())
    described = describe("models:/m/1", said["flavors"], said["signature"], source.trust)
    source.example.to_parquet(folder / "rows.parquet")
    export(
        described.to_dict(), "", folder / "saved", folder / "rows.parquet", folder,
        lambda *told: None,
    )  # fmt: skip
    return np.asarray(predict(source.table))


if __name__ == "__main__":
    raise SystemExit(main())
