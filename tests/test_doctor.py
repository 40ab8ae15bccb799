"""The doctor reports each problem with its solution."""

from __future__ import annotations

import importlib.metadata
import os

import pytest

from tvmopt import doctor, host, versions

CORES = 8


@pytest.fixture
def store_is_fine(monkeypatch):
    monkeypatch.setattr(doctor, "_store", lambda problems: None)


@pytest.fixture
def report(monkeypatch, capsys):
    """Run the doctor on a machine of eight cores; return exit code, report and problems."""
    monkeypatch.setattr(host, "usable_cores", lambda: CORES)
    monkeypatch.delenv("TVM_NUM_THREADS", raising=False)

    def run():
        code = doctor.main()
        text, _, problems = capsys.readouterr().out.partition(" problem(s):")
        found = [line.strip()[3:] for line in problems.splitlines() if line.strip()]
        assert code == bool(found)
        assert ("no problems found" in text) == (not found)
        return text, found

    return run


@pytest.mark.usefixtures("store_is_fine")
class TestMachine:
    def test_healthy(self, report):
        text, found = report()
        assert found == []
        for name in ("tvmopt", "python", "apache-tvm-ffi", "cpu", "target", "c++ compiler"):
            assert f"\n{name} " in f"\n{text}"
        assert f"TVM on its own would use {CORES // 2} of {CORES}" in text

    def test_wrong_ffi(self, report, monkeypatch):
        real = importlib.metadata.version
        monkeypatch.setattr(
            importlib.metadata,
            "version",
            lambda name: "0.1.15" if name == "apache-tvm-ffi" else real(name),
        )
        text, found = report()
        assert len(found) == 1
        assert "apache-tvm-ffi must be 0.1.14.post1" in found[0]
        assert "pip install" in found[0]
        assert "unknown: TVM cannot be used" in text

    def test_missing_package(self, report, monkeypatch):
        real = importlib.metadata.version

        def version(name):
            if name == "optuna":
                raise importlib.metadata.PackageNotFoundError(name)
            return real(name)

        monkeypatch.setattr(importlib.metadata, "version", version)
        [problem] = report()[1]
        assert problem.startswith("optuna must be installed, but it is not; run: pip install ")
        assert problem.endswith(f'"{versions.requirement("optuna")}"')

    def test_unknown_python(self, report, monkeypatch):
        monkeypatch.setattr(doctor, "PYTHON_VERSIONS", ())
        [problem] = report()[1]
        assert problem.startswith("Python must be 3.11 to 3.13, but got 3.")

    @pytest.mark.parametrize("setting", ["1", "16"])
    def test_threads_that_are_not_the_cores(self, report, monkeypatch, setting):
        monkeypatch.setenv("TVM_NUM_THREADS", setting)
        [problem] = report()[1]
        assert f"should be the 8 usable core(s), but got {setting}" in problem
        assert "TVM_NUM_THREADS=8" in problem

    @pytest.mark.parametrize("setting", ["0", "many", "", "-1", "1.5"])
    def test_threads_that_are_no_number(self, report, monkeypatch, setting):
        monkeypatch.setenv("TVM_NUM_THREADS", setting)
        [problem] = report()[1]
        assert f"must be a number of at least 1, but got {setting!r}" in problem

    def test_threads_that_are_the_cores(self, report, monkeypatch):
        monkeypatch.setenv("TVM_NUM_THREADS", str(CORES))
        assert report()[1] == []

    def test_no_compiler(self, report, monkeypatch, tmp_path):
        monkeypatch.delenv("CXX", raising=False)
        monkeypatch.delenv("CC", raising=False)
        monkeypatch.setenv("PATH", str(tmp_path))
        [problem] = report()[1]
        assert "a C++ compiler must be there" in problem
        assert "apt-get install g++" in problem

    def test_compiler_that_is_not_there_though_another_is(self, report, monkeypatch):
        monkeypatch.setenv("CXX", "no-such-compiler++")
        [problem] = report()[1]
        assert "'no-such-compiler++' of CXX or CC is not there" in problem

    def test_doctor_and_build_find_the_same_compiler(self, report, monkeypatch, tmp_path):
        from tvmopt.link import cxx_compiler

        monkeypatch.delenv("CXX", raising=False)
        monkeypatch.delenv("CC", raising=False)
        (tmp_path / "cc").write_text("#!/bin/sh\necho pretended compiler 1.0\n")
        (tmp_path / "cc").chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        text, found = report()
        assert found == []
        assert f"{cxx_compiler()} (pretended compiler 1.0)" in text

    def test_several_problems_are_numbered(self, report, monkeypatch, capsys):
        monkeypatch.setenv("TVM_NUM_THREADS", "1")
        monkeypatch.setenv("CXX", "no-such-compiler++")
        assert len(report()[1]) == 2
        doctor.main()
        out = capsys.readouterr().out
        assert "2 problem(s):\n  1. " in out
        assert "\n  2. " in out

    def test_tvm_that_does_not_import(self, report, monkeypatch):
        def fail(text):
            raise ImportError("libLLVM is missing")

        monkeypatch.setattr("tvmopt.device.target.resolve_target", fail)
        assert "TVM must import and know this CPU, but it does not: libLLVM" in report()[1][0]


class TestStore:
    def test_database(self, report, monkeypatch, tmp_path):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
        text, found = report()
        assert found == []
        assert f"sqlite:///{tmp_path}/mlflow.db" in text

    def test_folder_that_cannot_be_written(self, report, monkeypatch, tmp_path):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
        monkeypatch.setattr(os, "access", lambda path, mode: str(path) != str(tmp_path))
        monkeypatch.setattr(doctor.shutil, "which", lambda name: "/bin/true")
        [problem] = report()[1]
        assert f"must be writable, but '{tmp_path}' is not" in problem

    def test_server_that_does_not_answer(self, report, monkeypatch):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
        [problem] = report()[1]
        assert "the tracking server must answer, but http://127.0.0.1:9 does not" in problem

    def test_file_store(self, report, monkeypatch, tmp_path):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path}/mlruns")
        [problem] = report()[1]
        assert "must be a database or a server" in problem
        assert "MLFLOW_TRACKING_URI=sqlite:///mlflow.db" in problem
