"""The runtime in C of native libraries, under sanitizers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import tvmopt

_RUNTIME = Path(tvmopt.__file__).parent / "codegen" / "native" / "runtime.c"
_HARNESS = Path(__file__).with_name("runtime_test.c")


@pytest.mark.parametrize("sanitizer", ["", "thread", "address,undefined"])
def test_launches_barriers_and_workspaces_of_several_threads(tmp_path, sanitizer) -> None:
    program = tmp_path / "runtime_test"
    options = [f"-fsanitize={sanitizer}"] if sanitizer else []
    build = ["gcc", "-O1", "-g", *options, "-o", program, _HARNESS, _RUNTIME, "-pthread"]
    subprocess.run(build, check=True)
    done = subprocess.run([program], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, "right\n", "")


@pytest.mark.parametrize("compiler", ["gcc", "g++"])
def test_the_runtime_compiles_without_warnings(tmp_path, compiler) -> None:
    options = ["-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-c", "-o", str(tmp_path / "r.o")]
    subprocess.run([compiler, *options, str(_RUNTIME)], check=True)
