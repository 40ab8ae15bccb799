"""Tests of the linker choice: native compiler, cross compiler, Zig, or an error."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
import tomllib
import types
from pathlib import Path

import pytest
import tvm
from tvm import te

from tvmopt import link
from tvmopt.codegen.native_objects import write_objects
from tvmopt.device.target import resolve_target
from tvmopt.errors import BuildError, EnvironmentSetupError
from tvmopt.link import (
    compile_command,
    compile_objects,
    cxx_compiler,
    isa_of,
    link_options,
)

ISAS = {"aarch64": ("cortex-a76", 183), "riscv64": ("riscv64-rvv", 243)}


@pytest.fixture
def only_zig(monkeypatch):
    """Neither cross compiler is installed; Zig is."""
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda n: None if "linux-gnu-gcc" in n else which(n))
    found = types.SimpleNamespace()
    monkeypatch.setattr(importlib.util, "find_spec", lambda n: found if n == "ziglang" else None)


def test_this_machine_links_with_its_own(monkeypatch):
    monkeypatch.setattr(shutil, "which", "/bin/{}".format)
    assert compile_command() == (cxx_compiler(), "-O2", "-pthread")


def test_cross_compiler_goes_before_zig(monkeypatch, only_zig):
    monkeypatch.setattr(shutil, "which", "/bin/{}".format)
    assert compile_command("aarch64")[0] == "/bin/aarch64-linux-gnu-gcc"


def test_neither_names_both_ways_out(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    both = (
        r"riscv64-linux-gnu-gcc or Zig must be installed .*apt-get install gcc-riscv64-linux-gnu "
        r'libc6-dev-riscv64-cross; anywhere: pip install "tvmopt\[cross\]"'
    )
    with pytest.raises(EnvironmentSetupError, match=both):
        link_options("riscv64")


def test_zig_is_told_the_platform(monkeypatch, only_zig):
    commands = []

    def run(command, **options):
        commands.append(command)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    link_options("aarch64")["fcompile"]("a.so", ["a.o", "b.o"], cc=None)
    [command] = commands
    assert command[:4] == [sys.executable, "-m", "ziglang", "cc"]
    assert command[4:6] == ["-target", "aarch64-linux-gnu.2.28"]
    assert command[-4:] == ["-o", "a.so", "a.o", "b.o"]


def test_what_zig_says_is_the_error(monkeypatch, only_zig):
    failed = subprocess.CompletedProcess([], 1, "", "error: no\n  such file\n")
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: failed)
    with pytest.raises(BuildError, match=r"aarch64.*, but the linker says: error: no such file$"):
        link_options("aarch64")["fcompile"]("a.so", ["a.o"])


def test_source_that_does_not_compile_is_named(tmp_path):
    (tmp_path / "good.c").write_text("int f(void) { return 1; }")
    (tmp_path / "bad.c").write_text("int f(void) { return }")
    sources = [tmp_path / "good.c", tmp_path / "bad.c"]
    with pytest.raises(BuildError, match=r"^bad\.c must compile with .* -O2 .*error: expected"):
        compile_objects(compile_command(), sources, tmp_path)
    [path] = compile_objects(compile_command(), sources[:1], tmp_path)
    assert path == tmp_path / "good.o"
    assert path.is_file()


def test_runtime_is_compiled_once_in_a_process(tmp_path, monkeypatch):
    first = write_objects(compile_command(), tmp_path)
    before = {path.name: path.read_bytes() for path in first}
    monkeypatch.setattr(subprocess, "Popen", None)  # nothing may be compiled now
    folder = tmp_path / "again"
    folder.mkdir()
    again = write_objects(compile_command(), folder)
    assert {path.name: path.read_bytes() for path in again} == before
    assert "runtime.o" in before


@pytest.mark.parametrize("isa", ISAS)
def test_library_that_zig_links(tmp_path, monkeypatch, isa):
    if importlib.util.find_spec("ziglang") is None:
        pytest.skip('needs Zig: pip install "tvmopt[cross]"')
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda n: None if "linux-gnu-gcc" in n else which(n))
    cpu, machine = ISAS[isa]
    a = te.placeholder((4,), name="a")
    func = te.create_prim_func([a, te.compute((4,), lambda i: a[i] + 1.0)])
    built = tvm.tirx.build(tvm.IRModule({"main": func}), target=resolve_target(cpu, 1).to_tvm())
    libraries = [tmp_path / "first.so", tmp_path / "again.so"]
    for library in libraries:
        built.export_library(str(library), **link_options(isa))
    header = libraries[0].read_bytes()[:20]
    assert header[:4] == b"\x7fELF"
    assert int.from_bytes(header[18:20], "little") == machine
    assert libraries[0].read_bytes() == libraries[1].read_bytes()


def test_isa_of_a_target():
    assert isa_of(str(resolve_target("graviton3", 1).to_tvm())) == "aarch64"
    assert isa_of(json.dumps({"kind": "llvm", "mcpu": "haswell"})) == ""


def test_extra_of_the_error_exists():
    project = tomllib.loads((Path(link.__file__).parents[1] / "pyproject.toml").read_text())
    extra = project["project"]["optional-dependencies"]["cross"]
    assert any(name.startswith("ziglang") for name in extra)
