"""Tests of library builds: reproducible bytes, and errors that name what is missing."""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from pathlib import Path

import pytest
import tvm

from tvmopt.build import build_library
from tvmopt.device.target import resolve_target
from tvmopt.errors import BuildError, EnvironmentSetupError
from tvmopt.link import cxx_compiler
from tvmopt.runtime.metadata import LIBRARY_FILE
from tvmopt.stages.module_files import read_module
from tvmopt.transform.lower import lower

ROOT = Path(__file__).parents[1]

_BUILD = """
import sys
from pathlib import Path
from tvmopt.device.target import resolve_target
from tvmopt.config import BuildConfig
from tvmopt.stages.build import build
folder, out = map(Path, sys.argv[1:])
config = BuildConfig("conv", resolve_target("host", 2).to_dict())
build(config, folder / "convert", folder / "tune", "d2", out, lambda *a: None)
"""

_BRANCHES = """
import sys
from pathlib import Path
import numpy as np
import tvm
from tvm import relax
from tvm.script import ir as I, relax as R
from tvmopt.device.target import resolve_target
from tvmopt.build import build_library
from tests.libraries import loaded
from tvmopt.transform.lower import lower

@I.ir_module
class Choice:
    @R.function
    def main(
        x: R.Tensor((1, 16, 8, 8), "float32"),
        w: R.Tensor((16, 16, 1, 1), "float32"),
        flag: R.Tensor((), "bool"),
    ) -> R.Tensor((1, 16, 8, 8), "float32"):
        a = R.nn.conv2d(x, w)
        if flag:
            b = R.nn.conv2d(a, w)
            c = R.nn.relu(b)
        else:
            c = R.nn.relu(a)
        out = R.add(R.nn.conv2d(c, w), a)
        return out

spec, path = resolve_target("host", 1), Path(sys.argv[1]) / "choice.so"
build_library(lower(Choice, spec.to_tvm()), spec, path)
run = loaded(path)
rng = np.random.default_rng(0)
x, w = rng.standard_normal((1, 16, 8, 8), np.float32), rng.standard_normal((16, 16), np.float32)
conv = lambda v: np.einsum("nihw,oi->nohw", v, w)
for flag in (True, False, True):
    arrays = (x, w[:, :, None, None], np.array(flag))
    [got] = run(*arrays)
    a = conv(x)
    want = conv(np.maximum(conv(a) if flag else a, 0)) + a
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3)
"""


@pytest.fixture
def spec():
    return resolve_target("host", 2)


@pytest.fixture
def lowered(conv_build, spec):
    return lower(read_module(conv_build / "convert"), spec.to_tvm())


def test_two_processes_build_the_same_bytes(conv_build, conv_bundle, tmp_path, run_python):
    out = tmp_path / "elsewhere"
    out.mkdir()
    done = run_python("-c", _BUILD, str(conv_build), str(out), PYTHONHASHSEED="77")
    assert done.returncode == 0, done.stderr
    again = (out / "bundle" / LIBRARY_FILE).read_bytes()
    assert again == (conv_bundle / LIBRARY_FILE).read_bytes()


def test_tensors_of_a_branch_have_their_own_memory(tmp_path, run_python):
    """TVM's memory planning reuses storage that a branch not taken never allocates."""
    script = tmp_path / "choice.py"
    script.write_text(_BRANCHES)
    done = run_python(str(script), str(tmp_path), PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr


def test_library_names_no_folder_of_the_build(conv_bundle):
    assert tempfile.gettempdir().encode() + b"/" not in (conv_bundle / LIBRARY_FILE).read_bytes()


def test_sources_name_every_function(lowered, spec, tmp_path):
    built = build_library(lowered, spec, tmp_path / "a.so")
    names = {v.name_hint for v, f in lowered.functions_items() if isinstance(f, tvm.tirx.PrimFunc)}
    assert set(built.sources) == names
    assert built.records == {}  # no database is used
    assert built.path == tmp_path / "a.so"
    assert built.compile_s > 0


@pytest.fixture
def no_compiler(monkeypatch, tmp_path):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))


def test_no_compiler_on_the_path(no_compiler):
    with pytest.raises(EnvironmentSetupError, match=r"C\+\+ compiler must be installed.*apt-get"):
        cxx_compiler()


def test_compiler_that_is_not_there(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler++")
    with pytest.raises(EnvironmentSetupError, match="install g"):
        cxx_compiler()


def test_compiler_is_looked_for_before_any_work(no_compiler, lowered, spec, tmp_path, monkeypatch):
    monkeypatch.setattr(tvm, "compile", lambda *a, **k: pytest.fail("was compiled"))
    with pytest.raises(EnvironmentSetupError):
        build_library(lowered, spec, tmp_path / "a.so")


def test_compiler_of_the_environment_is_taken(monkeypatch):
    found = cxx_compiler()
    monkeypatch.setenv("CXX", found)
    assert cxx_compiler() == found


@pytest.mark.parametrize(("cpu", "isa", "machine"), [
    ("cortex-a76", "aarch64", 183), ("riscv64-rvv", "riscv64", 243)
])  # fmt: skip
def test_library_for_another_platform(lowered, tmp_path, cpu, isa, machine):
    if shutil.which(f"{isa}-linux-gnu-gcc") is None:
        pytest.skip(f"needs {isa}-linux-gnu-gcc (Debian: gcc-{isa}-linux-gnu)")
    built = build_library(lowered, resolve_target(cpu, 2), tmp_path / "a.so")
    header = built.path.read_bytes()[:20]
    assert header[:4] == b"\x7fELF"
    assert int.from_bytes(header[18:20], "little") == machine


def test_missing_compiler_for_another_platform_is_named(lowered, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EnvironmentSetupError, match=r"aarch64-linux-gnu-gcc or Zig must be inst.*"
                       "apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross"):  # fmt: skip
        build_library(lowered, resolve_target("cortex-a76", 2), tmp_path / "a.so")


def test_no_library_for_hexagon(lowered, tmp_path):
    with pytest.raises(BuildError, match="CPU that Linux runs on, but got hexagon"):
        build_library(lowered, resolve_target("hexagon-v68", 2), tmp_path / "a.so")


def test_failure_of_code_generation_is_one_line(lowered, spec, tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise RuntimeError("a trace\n  of many\n\n  the cause  \n")

    monkeypatch.setattr(tvm, "compile", fail)
    with pytest.raises(BuildError) as caught:
        build_library(lowered, spec, tmp_path / "a.so")
    first, cure = str(caught.value).split("; ", 1)
    assert first == f"code generation for {spec.mcpu} failed: the cause"
    assert cure == "run tvmopt doctor, and report the model if it finds nothing"


def test_failure_to_link_is_a_build_error(lowered, spec, tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(BuildError, match=r"code generation for .* failed"):
        build_library(lowered, spec, tmp_path / "a.so")
