"""Programs in C and C++ load and run a native model, here and under QEMU."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tvmopt import host
from tvmopt.config import BuildConfig
from tvmopt.device.target import resolve_target
from tvmopt.runtime import ModelMetadata
from tvmopt.runtime.c_files import DESCRIPTION_FILE, write_c_files
from tvmopt.stages.build import build


def _with_c_files(bundle: Path, folder: Path) -> Path:
    copy = Path(shutil.copytree(bundle, folder))
    write_c_files(copy, ModelMetadata.read(copy))
    return copy


@pytest.fixture(scope="module")
def bundle(conv_bundle, tmp_path_factory) -> Path:
    """Return a bundle with compiled examples."""
    folder = _with_c_files(conv_bundle, tmp_path_factory.mktemp("c") / "bundle")
    _make(folder)
    return folder


def _make(folder: Path, *options: str) -> None:
    command = ["make", "-s", "-B", "-C", folder / "c", "CFLAGS=-O2 -Wall -Wextra -Werror", *options]
    subprocess.run(command, check=True)


def _run(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, env={**os.environ, **environment}
    )


def _deviation(done: subprocess.CompletedProcess[str]) -> float:
    assert (done.returncode, done.stderr) == (0, "")
    [line] = [line for line in done.stdout.splitlines() if line.startswith("largest deviation")]
    return float(line.split(": ")[1])


def test_a_program_in_c_reproduces_the_golden_output(bundle) -> None:
    done = _run(bundle / "c" / "example", bundle)
    assert _deviation(done) < 1e-5
    assert "input x float32 (1, 3, 8, 8)\noutput y float32 (1, 5)\n" in done.stdout


def test_several_tensors_of_several_dtypes(two_input_bundle, tmp_path) -> None:
    folder = _with_c_files(two_input_bundle, tmp_path / "two")
    _make(folder, "example")
    done = _run(folder / "c" / "example", folder)
    assert _deviation(done) < 1e-5
    assert "input ids int64 (4)\ninput in/bias float32 (4, 8)\n" in done.stdout


@pytest.fixture(scope="module")
def sizes(sizes_bundle, tmp_path_factory) -> Path:
    """Return a bundle of four sizes with compiled examples."""
    folder = _with_c_files(sizes_bundle, tmp_path_factory.mktemp("c") / "sizes")
    _make(folder)
    return folder


@pytest.mark.parametrize("flags", ["-O2", "-g -O1 -fsanitize=address,undefined"])
def test_each_size_reproduces_its_golden_output(sizes, tmp_path, flags) -> None:
    folder = Path(shutil.copytree(sizes, tmp_path / "bundle"))
    _make(folder, f"CFLAGS={flags}", "example")
    done = _run(folder / "c" / "example", folder)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    shapes = [line for line in lines if line.startswith("input")]
    assert shapes == [f"input x float32 ({n}, {s})" for n in (2, 1) for s in (16, 8)]
    worst = [float(line.split(": ")[1]) for line in lines if line.startswith("largest")]
    assert len(worst) == 4
    assert max(worst) < 1e-5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace("size 2 8 2 8", "size 2 8 2"), "is damaged"),
        (lambda text: text.replace("size 2 8 2 8", "size 2 8 2 8 1"), "is damaged"),
        (lambda text: text.replace("size 2 8 2 8", "size 2 -8 2 8"), "is damaged"),
        (lambda text: text.replace("size 2 8 2 8", "size " + "9" * 30 + " 8 2 8"), "is damaged"),
        (lambda text: text + "input float32 1 4 z\n", "is damaged"),
        (lambda text: text + "size 1 1 1 1\n" * 200, "is damaged"),
        (lambda text: text + "size 1 1 1 1\n", "native library of tvmopt with 5 sizes"),
    ],
)
def test_a_damaged_size_is_refused_in_one_line(sizes, tmp_path, change, message) -> None:
    folder = Path(shutil.copytree(sizes, tmp_path / "bundle"))
    text = (folder / DESCRIPTION_FILE).read_text()
    (folder / DESCRIPTION_FILE).write_text(change(text))
    done = _run(folder / "c" / "example", folder)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert message in done.stderr


def test_eight_threads_in_cpp(bundle) -> None:
    done = _run(bundle / "c" / "example_cpp", bundle)
    assert (done.returncode, done.stdout) == (0, "8 threads, 100 calls each: done\n"), done.stderr


@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
@pytest.mark.parametrize("program", ["example", "example_cpp"])
def test_sanitizers_find_nothing(bundle, tmp_path, sanitizer, program) -> None:
    folder = Path(shutil.copytree(bundle, tmp_path / "bundle"))
    flags = f"-g -O1 -fsanitize={sanitizer}"
    _make(folder, f"CFLAGS={flags}", f"CXXFLAGS={flags}", program)
    done = _run(folder / "c" / program, folder)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow  # the address sanitizer finds leaks
def test_valgrind_finds_no_leak(conv_build, tmp_path) -> None:
    if shutil.which("valgrind") is None:
        pytest.skip("needs valgrind")
    if "avx2" not in host.cpu_flags():
        pytest.skip("needs a CPU with AVX2; valgrind has no AVX-512")
    folder = _built_for("haswell", conv_build, tmp_path)
    _make(folder, "CFLAGS=-g -O1")
    command = ["valgrind", "--quiet", "--leak-check=full", "--error-exitcode=3"]
    for program in ("example", "example_cpp"):
        done = _run(*command, folder / "c" / program, folder)
        assert (done.returncode, done.stderr) == (0, "")


def _built_for(cpu: str, conv_build: Path, folder: Path) -> Path:
    """Return a bundle with C files, built for a CPU."""
    config = BuildConfig("conv", resolve_target(cpu, 2).to_dict(), BuildConfig.schedule)
    out = folder / "build"
    out.mkdir()
    build(config, conv_build / "convert", None, "0" * 64, out, lambda *_: None)
    return _with_c_files(out / "bundle", folder / "bundle")


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("model.so", lambda data: data[:5000] + b"x" + data[5001:], "must have sha256"),
        ("model.so", lambda data: data[:-1], "it was changed or damaged"),
        ("model.so", lambda data: b"", "it was changed or damaged"),
        (DESCRIPTION_FILE, lambda data: b"", "must be of version 1, but is of version 0"),
        (DESCRIPTION_FILE, lambda data: data.replace(b"tvmopt 1", b"tvmopt 9"), "of version 9"),
        (DESCRIPTION_FILE, lambda data: data.replace(b"float32 4", b"float99 4"), "is damaged"),
        (DESCRIPTION_FILE, lambda data: data.replace(b"1 3 8 8", b"1 3 -8 8"), "is damaged"),
        (
            DESCRIPTION_FILE,
            lambda data: data.replace(b"1 3 8 8", b"1 3 8 " + b"9" * 30),
            "is damaged",
        ),
        (DESCRIPTION_FILE, lambda data: data.replace(b"isa ", b"isa z"), "but this program is for"),
        (
            DESCRIPTION_FILE,
            lambda data: data.replace(b"flags ", b"flags quantum "),
            "this CPU lacks quantum, which the model was built for",
        ),
        (DESCRIPTION_FILE, lambda data: data[: data.index(b"output")], "is damaged"),
    ],
)
def test_a_model_that_fails_a_check_is_refused_in_one_line(
    bundle, tmp_path, file, change, message
) -> None:
    folder = Path(shutil.copytree(bundle, tmp_path / "bundle"))
    (folder / file).write_bytes(change((folder / file).read_bytes()))
    done = _run(folder / "c" / "example", folder)
    assert done.returncode == 1
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("file", ["model.so", DESCRIPTION_FILE])
def test_a_missing_file_is_named(bundle, tmp_path, file) -> None:
    folder = Path(shutil.copytree(bundle, tmp_path / "bundle"))
    (folder / file).unlink()
    done = _run(folder / "c" / "example", folder)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert f"{file}" in done.stderr
    assert "No such file" in done.stderr


def test_cmake_builds_the_examples(bundle, tmp_path) -> None:
    if shutil.which("cmake") is None:
        pytest.skip("needs cmake")
    subprocess.run(["cmake", "-S", bundle / "c", "-B", tmp_path], check=True, capture_output=True)
    subprocess.run(["cmake", "--build", tmp_path], check=True, capture_output=True)
    assert _deviation(_run(tmp_path / "example", bundle)) < 1e-5


@pytest.mark.parametrize(
    ("cpu", "triple", "emulator"),
    [
        ("cortex-a76", "aarch64-linux-gnu", ["qemu-aarch64", "-cpu", "max"]),
        (
            "riscv64-rvv",
            "riscv64-linux-gnu",
            ["qemu-riscv64", "-cpu", "rv64,v=true,vext_spec=v1.0"],
        ),
    ],
)
def test_a_cross_built_model_runs_under_qemu(conv_build, tmp_path, cpu, triple, emulator) -> None:
    for tool in (f"{triple}-gcc", emulator[0]):
        if shutil.which(tool) is None:
            pytest.skip(f"needs {tool}")
    folder = _built_for(cpu, conv_build, tmp_path)
    _make(folder, f"CC={triple}-gcc", "example")
    done = _run(*emulator, "-L", f"/usr/{triple}", folder / "c" / "example", folder)
    assert _deviation(done) < 1e-5
