"""The runtime in C of native libraries, under sanitizers."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import tvmopt

_NATIVE = Path(tvmopt.__file__).parent / "codegen" / "native"
_NAMES = ("runtime.c", "thread_count.c", "core_of_thread.c", "workspace.c", "segments.c")
_FILES = [_NATIVE / name for name in _NAMES]
_HERE = Path(__file__).parent


def _output(program: Path, harness: str, files: list[Path], *options: str) -> tuple[int, str, str]:
    """Build and run a program of this folder; return its status, output and errors."""
    sources = [_HERE / harness, *files]
    build = ["gcc", "-O1", "-g", f"-I{_NATIVE}", *options, "-o", program, *sources, "-pthread"]
    subprocess.run(build, check=True)
    # As malloc does, the sanitizers' allocators return NULL for what there is not.
    options_of = dict.fromkeys(("ASAN_OPTIONS", "TSAN_OPTIONS"), "allocator_may_return_null=1")
    env = {**os.environ, **options_of}
    done = subprocess.run([program], capture_output=True, text=True, timeout=300, env=env)
    said = [line for line in done.stderr.splitlines() if "failed to allocate" not in line]
    return done.returncode, done.stdout, "\n".join(said)


@pytest.mark.parametrize("sanitizer", ["", "thread", "address,undefined"])
def test_launches_barriers_and_workspaces_of_several_threads(tmp_path, sanitizer) -> None:
    options = [f"-fsanitize={sanitizer}"] if sanitizer else []
    found = _output(tmp_path / "program", "runtime_test.c", _FILES, *options)
    assert found == (0, "right\n", "")


def test_a_loop_chooses_its_threads_by_their_times(tmp_path) -> None:
    found = _output(tmp_path / "program", "thread_count_test.c", [_NATIVE / "thread_count.c"])
    assert found == (0, "right\n", "")


def test_a_thread_leaves_the_core_of_another(tmp_path) -> None:
    files = [_NATIVE / "core_of_thread.c"]
    found = _output(tmp_path / "program", "core_of_thread_test.c", files)
    if found[1] == "one core\n":
        pytest.skip("this machine has one core only")
    assert found == (0, "right\n", "")


@pytest.mark.parametrize("compiler", ["gcc", "g++"])
def test_the_runtime_compiles_without_warnings(tmp_path, compiler) -> None:
    options = ["-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-c"]
    subprocess.run([compiler, *options, *_FILES], cwd=tmp_path, check=True)
