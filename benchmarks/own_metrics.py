"""Four models, each with its owner's metric, from labelled data to a champion by ``mlflow run``.

    python -m benchmarks.own_metrics [detector] [segmenter] [regressor] [recogniser] [errors]

A face detector is judged by mean average precision (``pycocotools``) on a face of scikit-image that
is pasted into photographs; a text segmenter by the mean IoU of drawn lines; a regressor of
scikit-learn by R2; a text recogniser by the character error rate of drawn strings. ``errors`` runs
what must end with one clear error. The detector needs ``scikit-image`` and ``pycocotools``.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks import zoo
from benchmarks.mixed_accuracy import alphabet
from benchmarks.real_inputs import paste_face, photograph, text_lines

ROOT = Path(__file__).parents[1]
_SAMPLES = 200
_SIDE = 320

_AVERAGE_PRECISION = '''
"""Mean average precision of CenterFace at an overlap of 0.5."""
import contextlib
import os

import numpy as np
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval


def found(heat, scale, offset):
    """Yield (score, box) of a heat map (h, w), best first, without overlaps."""
    boxes = []
    for row, column in zip(*np.nonzero(heat > 0.3)):
        height, width = 4 * np.exp(scale[:, row, column])
        y, x = 4 * (np.array([row, column]) + offset[:, row, column] + 0.5)
        boxes.append((float(heat[row, column]), [x - width / 2, y - height / 2, width, height]))
    kept = []
    for score, box in sorted(boxes, key=lambda one: -one[0]):
        if all(overlap(box, other) < 0.3 for _, other in kept):
            kept.append((score, box))
    return kept


def overlap(a, b):
    wide = min(a[0] + a[2], b[0] + b[2]) - max(a[0], b[0])
    high = min(a[1] + a[3], b[1] + b[3]) - max(a[1], b[1])
    both = max(wide, 0) * max(high, 0)
    return both / (a[2] * a[3] + b[2] * b[3] - both)


def mean_average_precision(outputs, labels):
    heat, scale, offset = (outputs[name] for name in ("537", "538", "539"))
    truth = COCO()
    truth.dataset = {
        "info": {},
        "images": [{"id": image} for image in range(len(labels))],
        "categories": [{"id": 1}],
        "annotations": [
            {"id": at + 1, "image_id": at, "category_id": 1, "bbox": box.tolist(),
             "area": float(box[2] * box[3]), "iscrowd": 0}
            for at, box in enumerate(labels)
        ],
    }
    images, (high, wide) = len(labels), heat.shape[-2:]
    maps = zip(heat.reshape(images, high, wide), scale.reshape(images, 2, high, wide),
               offset.reshape(images, 2, high, wide))
    boxes = [
        {"image_id": image, "category_id": 1, "bbox": box, "score": score}
        for image, one in enumerate(maps)
        for score, box in found(*one)
    ]
    with open(os.devnull, "w") as quiet, contextlib.redirect_stdout(quiet):
        truth.createIndex()
        evaluation = COCOeval(truth, truth.loadRes(boxes), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return evaluation.stats[1]
'''


def _detector(folder: Path) -> dict[str, object]:
    rng = np.random.default_rng(0)
    images, boxes = [], []
    for _ in range(_SAMPLES):
        image = Image.fromarray(photograph(rng, _SIDE, _SIDE))
        boxes.append(paste_face(rng, image))
        images.append(np.asarray(image, np.float32).transpose(2, 0, 1)[None])
    (folder / "precision.py").write_text(_AVERAGE_PRECISION)
    arrays: dict[str, Any] = {"input.1": np.stack(images), "labels": np.array(boxes)}
    np.savez(folder / "faces.npz", **arrays)
    return {
        "model": zoo.path("centerface"), "input_shapes": f"input.1:1x3x{_SIDE}x{_SIDE}",
        "data": folder / "faces.npz", "metric": f"{folder / 'precision.py'}:mean_average_precision",
        "metric_goal": "larger",
    }  # fmt: skip


def _segmenter(folder: Path) -> dict[str, object]:
    rng = np.random.default_rng(1)
    images, masks = [], []
    lines, _ = text_lines(48, 256, 3 * _SAMPLES, 1)
    for sample in range(_SAMPLES):
        image = np.full((3, _SIDE, _SIDE), lines[3 * sample, 0, :, 0, 0].mean(), np.float32)
        mask = np.zeros((_SIDE, _SIDE), np.int64)
        for line in range(3):
            pixels = lines[3 * sample + line, 0]
            top, left = 100 * line + int(rng.integers(0, 40)), int(rng.integers(0, 60))
            image[:, top : top + 48, left : left + 256] = pixels
            ink = np.abs(pixels.mean(0) - np.median(pixels)) > 0.4
            rows, columns = np.nonzero(ink)
            if len(rows):
                box = np.s_[
                    top + rows.min() : top + rows.max(), left + columns.min() : left + columns.max()
                ]
                mask[box] = 1
        images.append(image[None])
        masks.append(mask)
    np.savez(folder / "pages.npz", x=np.stack(images), labels=np.stack(masks))
    return {"model": zoo.path("ppocr_det"), "input_shapes": f"x:1x3x{_SIDE}x{_SIDE}",
            "data": folder / "pages.npz", "metric": "mean_iou"}  # fmt: skip


def _regressor(folder: Path) -> dict[str, object]:
    import mlflow
    import pandas as pd
    from mlflow.models import infer_signature
    from sklearn.ensemble import GradientBoostingRegressor

    rng = np.random.default_rng(2)
    names = ["area", "age", "rooms", "distance"]
    table = pd.DataFrame(rng.normal(size=(2000, 4)).astype(np.float32), columns=names)
    price = 3 * table.area - table.age * table.rooms + rng.normal(size=2000) * 0.3
    model = GradientBoostingRegressor().fit(table[:1000], price[:1000])
    mlflow.set_tracking_uri(os.environ["MLFLOW_TRACKING_URI"])
    with mlflow.start_run():
        mlflow.sklearn.log_model(
            model, name="model", registered_model_name="prices", input_example=table[:3],
            signature=infer_signature(table, model.predict(table)),
            serialization_format="cloudpickle",
        )  # fmt: skip
    table[1000:].assign(price=price[1000:]).to_csv(folder / "prices.csv", index=False)
    return {"model": "models:/prices/1", "trust": "true", "data": folder / "prices.csv",
            "label": "price", "metric": "r2"}  # fmt: skip


def _recogniser(folder: Path) -> dict[str, object]:
    import onnx

    images, texts = text_lines(48, 320, _SAMPLES, 3)
    np.savez(folder / "lines.npz", x=images, labels=texts)
    model = onnx.load_model(str(zoo.path("ppocr_rec")))
    (folder / "symbols.txt").write_text(alphabet(model), encoding="utf-8")
    return {"model": zoo.path("ppocr_rec"), "input_shapes": "x:1x3x48x320",
            "data": folder / "lines.npz", "metric": "cer",
            "metric_alphabet": folder / "symbols.txt"}  # fmt: skip


CASES: dict[str, Callable[[Path], dict[str, object]]] = {
    "detector": _detector,
    "segmenter": _segmenter,
    "regressor": _regressor,
    "recogniser": _recogniser,
}


def _mistakes(folder: Path) -> dict[str, dict[str, object]]:
    """Return parameters of runs that must end with one error, by what is wrong."""
    regressor = _segmenter(folder)
    own = folder / "own.py"
    own.write_text(
        "def nan(outputs, labels):\n    return float('nan')\n\n\n"
        "def text(outputs, labels):\n    return 'good'\n\n\n"
        "def broken(outputs, labels):\n    return outputs['no such output']\n"
    )
    (folder / "wrong.py").write_text("def metric(:\n")
    with np.load(folder / "pages.npz") as pages:
        np.savez(folder / "few.npz", x=pages["x"], labels=pages["labels"][:7])
        np.savez(folder / "small.npz", x=pages["x"], labels=pages["labels"][:, ::2])
    goal = {"metric_goal": "larger"}
    return {
        "no such file": {**regressor, **goal, "metric": f"{folder}/none.py:f"},
        "a file with a syntax error": {**regressor, **goal, "metric": f"{folder}/wrong.py:metric"},
        "no such function": {**regressor, **goal, "metric": f"{own}:none"},
        "no metric_goal": {**regressor, "metric": f"{own}:nan"},
        "a metric of NaN": {**regressor, **goal, "metric": f"{own}:nan"},
        "a metric of text": {**regressor, **goal, "metric": f"{own}:text"},
        "a metric that raises": {**regressor, **goal, "metric": f"{own}:broken"},
        "labels of 7 of 200 samples": {**regressor, "data": folder / "few.npz"},
        "labels of half the height": {**regressor, "data": folder / "small.npz"},
        "a name that is no metric": {**regressor, "metric": "accuracyy"},
        "cer without an alphabet": {**regressor, "metric": "cer"},
    }


def _run(parameters: dict[str, object]) -> tuple[subprocess.CompletedProcess[str], float]:
    """Run ``main`` through ``mlflow run``; return the process and its seconds."""
    command = [sys.executable, "-m", "mlflow", "run", str(ROOT), "--env-manager", "local"]
    for name, value in parameters.items():
        command += ["-P", f"{name}={value}"]
    start = time.perf_counter()
    done = subprocess.run(command, text=True, capture_output=True, check=False)
    return done, time.perf_counter() - start


def _champion(name: str) -> str:
    """Return the cells of the champion's metrics."""
    from mlflow import MlflowClient

    client = MlflowClient(os.environ["MLFLOW_TRACKING_URI"])
    [model] = [m for m in client.search_registered_models() if "champion" in m.aliases]
    version = client.get_model_version_by_alias(model.name, "champion")
    experiments = [one.experiment_id for one in client.search_experiments()]
    chosen = "tags.`tvmopt.entry_point` = 'main'"
    [run] = client.search_runs(experiments, chosen)
    metrics = run.data.metrics
    shown = ("reference_accuracy", "accuracy", "accuracy_drop")
    values = [f"{metrics[key]:.4f}" if key in metrics else "-" for key in shown]
    return " | ".join([model.name, str(version.version), *values])


def main() -> int:
    """Run the cases; return 1 if one has no champion, or a mistake no single error."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("cases", nargs="*", help=", ".join((*CASES, "errors")))
    parser.add_argument("--dtype", default="float32")
    given = parser.parse_args()
    failed = 0
    for name in given.cases or (*CASES, "errors"):
        with tempfile.TemporaryDirectory(prefix="tvmopt-metrics-") as scratch:
            folder = Path(scratch)
            os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder / 'mlflow.db'}"
            if name == "errors":
                failed += sum(_wrong(what, one) for what, one in _mistakes(folder).items())
            else:
                failed += _right(name, CASES[name](folder) | {"dtype": given.dtype})
    return int(failed > 0)


def _right(name: str, parameters: dict[str, object]) -> bool:
    done, seconds = _run({**parameters, "strategy": "default"})
    if done.returncode:
        print(f"| {name} | FAILED: {done.stdout[-1500:]}{done.stderr[-1500:]} |", flush=True)
        return True
    print(f"| {name} | {parameters['metric']} | {_champion(name)} | {seconds:.0f} |", flush=True)
    return False


def _wrong(what: str, parameters: dict[str, object]) -> bool:
    done, seconds = _run({**parameters, "strategy": "default"})
    lines = re.findall(r"^.*\berror:.*$", done.stderr, re.MULTILINE)
    print(f"| {what} | {done.returncode} | {' / '.join(lines)} | {seconds:.0f} |", flush=True)
    return done.returncode == 0 or len(lines) != 1


if __name__ == "__main__":
    raise SystemExit(main())
