"""A whole model on an emulated AArch64, through TVM's tracker and server, as on a real board.

Needs qemu-user, and a folder that ``TVMOPT_AARCH64`` names, with an AArch64 Python 3.11 as
``sysroot`` and the wheels that TVM needs there unpacked as ``site``:

    mmdebstrap --architectures=arm64 --variant=extract \
        --include=python3.11,libstdc++6,libgcc-s1 bookworm sysroot
    pip download --platform manylinux_2_28_aarch64 --platform manylinux_2_27_aarch64 \
        --only-binary=:all: --no-deps -d wheels apache-tvm==0.27.0.post1 \
        apache-tvm-ffi==0.1.14.post1 numpy==2.4.6 ml_dtypes==0.6.0 typing_extensions cloudpickle
    for wheel in wheels/*.whl; do python -m zipfile -e $wheel site; done
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tvmopt.config import BuildConfig, ConvertConfig, EvaluateConfig, TuneConfig
from tvmopt.device.target import resolve_target
from tvmopt.errors import ArtifactError
from tvmopt.remote import Board
from tvmopt.stages.build import BUNDLE_DIR, build
from tvmopt.stages.comparison_table import CANDIDATE
from tvmopt.stages.convert import convert
from tvmopt.stages.evaluate import evaluate
from tvmopt.stages.tune import tune

from .conftest import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "tvmopt" / "examples"
TARGET = resolve_target("cortex-a76", 2).to_dict()
LINKERS = ("gcc", "zig")


def quiet(done: int, total: int, text: str) -> None:
    pass


def _start(tracker: int, key: str, cpu: str, log: Path) -> subprocess.Popen:
    if shutil.which("qemu-aarch64") is None:
        pytest.skip("needs qemu-aarch64 (Debian: qemu-user)")
    folder = Path(os.environ.get("TVMOPT_AARCH64", "/nowhere"))
    python = folder / "sysroot" / "usr" / "bin" / "python3.11"
    if not python.exists() or not (folder / "site" / "tvm").is_dir():
        pytest.skip(f"TVMOPT_AARCH64 must name a folder with sysroot and site; see {__file__}")
    command = ["qemu-aarch64", "-cpu", cpu, "-L", str(folder / "sysroot")]
    command += ["-E", f"PYTHONPATH={folder / 'site'}", str(python)]
    command += [str(Path(__file__).with_name("aarch64_server.py")), str(tracker), key]
    with log.open("w") as file:
        return subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)


@pytest.fixture(scope="module")
def emulated(tracker, tmp_path_factory) -> Iterator[Board]:
    """Return an AArch64 board with every feature that QEMU knows."""
    log = tmp_path_factory.mktemp("server") / "log.txt"
    process = _start(tracker, "a64", "max", log)
    try:
        yield wait_for(tracker, "a64", 120)
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def of_emulated(emulated) -> dict[str, str]:
    wait_for(emulated.port, emulated.key)
    return {"rpc_tracker": emulated.address, "rpc_key": emulated.key}


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    """Return the bundled example, converted for the target, by dtype."""
    made: dict[str, Path] = {}

    def of_dtype(dtype: str) -> Path:
        if dtype not in made:
            made[dtype] = tmp_path_factory.mktemp(dtype)
            config = ConvertConfig("image:1x1x8x8", TARGET, dtype=dtype)
            calibrated = None
            if dtype == "int8":
                from tvmopt.config import CalibrateConfig
                from tvmopt.stages.calibrate import calibrate

                calibrated = tmp_path_factory.mktemp("calibrated")
                calibrate(
                    CalibrateConfig("image:1x1x8x8"), EXAMPLES / "digits_cnn.onnx", calibrated,
                    quiet, EXAMPLES / "digits_eval.npz",
                )  # fmt: skip
            convert(
                config, EXAMPLES / "digits_cnn.onnx", made[dtype], quiet,
                EXAMPLES / "digits_eval.npz", calibrated,
            )  # fmt: skip
        return made[dtype]

    return of_dtype


def _built(converted: Path, folder: Path, tuned: Path | None = None) -> Path:
    folder.mkdir()
    result = build(BuildConfig("digits", TARGET), converted, tuned, "d1", folder, quiet)
    assert "lacks aarch64" in result.tags["tvmopt.unchecked"]
    return folder / BUNDLE_DIR


def _evaluated(converted: Path, bundle: Path, folder: Path, options: dict[str, str]):
    folder.mkdir()
    config = EvaluateConfig(2, repeats=20, **options)
    data = EXAMPLES / "digits_eval.npz"
    return evaluate(config, converted, {CANDIDATE: bundle}, folder, quiet, data)


@pytest.mark.parametrize("linker", LINKERS)
def test_float_model_keeps_its_accuracy(of_emulated, converted, tmp_path, monkeypatch, linker):
    if linker == "zig":
        if importlib.util.find_spec("ziglang") is None:
            pytest.skip('needs Zig: pip install "tvmopt[cross]"')
        which = shutil.which
        monkeypatch.setattr(shutil, "which", lambda n: None if "gcc" in n else which(n))
    elif shutil.which("aarch64-linux-gnu-gcc") is None:
        pytest.skip("needs aarch64-linux-gnu-gcc (Debian: gcc-aarch64-linux-gnu)")
    folder = converted("float32")
    bundle = _built(folder, tmp_path / "build")
    result = _evaluated(folder, bundle, tmp_path / "evaluate", of_emulated)
    print(linker, result.metrics, result.tags)
    assert result.metrics["accuracy"] > 0.98
    assert result.metrics["accuracy_drop"] == 0
    assert result.metrics["golden_max_deviation"] < 1e-3
    assert "aarch64" in result.tags["tvmopt.board"]


def test_int8_model_with_dot_products(of_emulated, converted, tmp_path):
    folder = converted("int8")
    bundle = _built(folder, tmp_path / "build")
    result = _evaluated(folder, bundle, tmp_path / "evaluate", of_emulated)
    print(result.metrics)
    assert result.metrics["accuracy"] > 0.97
    assert abs(result.metrics["accuracy_drop"]) <= 0.01


@pytest.mark.parametrize("options", [
    {"strategy": "fast", "topk": 1}, {"strategy": "metaschedule", "trials": 4}
])  # fmt: skip
def test_tuned_there(of_emulated, converted, tmp_path, options):
    folder, tuned = converted("float32"), tmp_path / "tune"
    tuned.mkdir()
    result = tune(TuneConfig(TARGET, **options, **of_emulated), folder, tuned, quiet)
    print(result.metrics, result.changed)
    assert result.metrics["tune_trials"] > 0
    assert result.metrics["tune_failures"] == 0
    bundle = _built(folder, tmp_path / "build", tuned)
    assert _evaluated(folder, bundle, tmp_path / "evaluate", of_emulated).metrics["accuracy"] > 0.98


def test_cpu_that_lacks_an_instruction_is_an_error(tracker, converted, tmp_path):
    """The int8 model uses ``sdot``, which a Cortex-A53 lacks."""
    folder = converted("int8")
    bundle = _built(folder, tmp_path / "build")
    process = _start(tracker, "old", "cortex-a53", tmp_path / "log.txt")
    try:
        board = wait_for(tracker, "old", 120)
        options = {"rpc_tracker": board.address, "rpc_key": board.key}
        with pytest.raises(ArtifactError, match=r"an instruction that its CPU lacks.*check target"):
            _evaluated(folder, bundle, tmp_path / "evaluate", options)
    finally:
        process.kill()
        process.wait()


def test_larger_model(of_emulated, tmp_path):
    """``TVMOPT_AARCH64_MODEL`` names an ONNX file, ``TVMOPT_AARCH64_SHAPES`` its input shapes."""
    path = os.environ.get("TVMOPT_AARCH64_MODEL", "")
    if not path:
        pytest.skip("TVMOPT_AARCH64_MODEL names no ONNX file")
    folder = tmp_path / "convert"
    folder.mkdir()
    shapes = os.environ.get("TVMOPT_AARCH64_SHAPES", "")
    convert(ConvertConfig(shapes, TARGET), Path(path), folder, quiet)
    bundle = _built(folder, tmp_path / "build")
    out = tmp_path / "evaluate"
    out.mkdir()
    config = EvaluateConfig(2, repeats=5, **of_emulated)
    result = evaluate(config, folder, {CANDIDATE: bundle}, out, quiet)
    print(result.metrics, result.tags)
    assert result.metrics["cosine"] > 0.9999
