"""Tests of the whole package: import time, layering, pinned versions, use without MLflow."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import re
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import tvmopt
from tvmopt import versions

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "tvmopt"
_CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT, DATA = _CONFIG["project"], _CONFIG["tool"]["setuptools"]["package-data"]["tvmopt"]

# Total order of the rooms: a room imports only rooms above its own line.
ROOMS = [
    "printable", "errors", "markdown", "spreadsheet", "chart", "environment", "host",
    "versions", "process", "forked", "link", "device", "choices", "skip_layers", "plain_yaml",
    "metrics", "parameters", "digest", "row_order", "compare", "random_inputs", "scratch",
    "command_cache", "command_start", "nncf_import", "kernels", "runtime", "transform", "frontend",
    "remote", "measure", "config", "tune", "fast_tuning", "codegen", "build", "evaluate",
    "quantize", "profile", "exporters", "stages", "api", "search", "tracking", "workflow", "doctor",
    "cli", "__main__",
]  # fmt: skip
_PACKED_FOLDERS = {"c", "examples", "native", "profile", "report"}
PLACE = {room: place for place, room in enumerate(ROOMS)}
# The same within tvmopt/tracking.
TRACKING = ["store", "flavor", "report", "registry", "serving", "pipeline", "search"]


def _modules():
    for path in sorted(PACKAGE.rglob("*.py")):
        relative = path.relative_to(PACKAGE)
        if relative != Path("__init__.py"):
            yield path, relative.parts[0].removesuffix(".py")


def _imported(path):
    """Return absolute names of everything that a file imports, also inside functions."""
    package = ".".join(path.relative_to(ROOT).parent.parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            relative = "." * node.level + (node.module or "")
            module = importlib.util.resolve_name(relative, package)
            yield from (f"{module}.{alias.name}" for alias in node.names)


@pytest.mark.alone
def test_import_is_quick(run_python):
    code = (
        "import time; start = time.perf_counter(); import tvmopt, sys\n"
        "print(time.perf_counter() - start)\n"
        "assert not {'tvm', 'numpy', 'mlflow', 'onnx', 'optuna'} & set(sys.modules)\n"
    )
    seconds = []
    while len(seconds) < 3 and not (seconds and min(seconds) < 1):
        done = run_python("-c", code)
        assert done.returncode == 0, done.stderr
        seconds.append(float(done.stdout))
    assert min(seconds) < 1


def test_every_room_has_a_place():
    assert {room for _, room in _modules()} == set(PLACE)


def test_no_room_imports_a_later_one():
    wrong = []
    for path, room in _modules():
        for name in _imported(path):
            parts = [*name.split("."), ""]
            if parts[0] == "tvmopt" and PLACE.get(parts[1], -1) > PLACE[room]:
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert wrong == []


def test_no_room_of_tracking_imports_a_later_one():
    folder, place = PACKAGE / "tracking", {room: i for i, room in enumerate(TRACKING)}
    wrong = []
    for path in folder.rglob("*.py"):
        own = path.relative_to(folder).parts[0]
        for name in _imported(path):
            parts = [*name.split("."), "", ""]
            if parts[:2] == ["tvmopt", "tracking"] and place.get(parts[2], -1) > place.get(own, 99):
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert wrong == []
    assert {path.name for path in folder.iterdir() if path.suffix != ".pyc"} - {"__pycache__"} == {
        *TRACKING, "__init__.py"
    }  # fmt: skip


def test_no_two_classes_have_one_name():
    places: dict[str, list[str]] = {}
    for path, _ in _modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


def test_no_file_is_long():
    """A file holds one idea; 300 lines are usual, and where one needs more, 400 are enough."""
    lengths = {path: path.read_text().count("\n") for path, _ in _modules()}
    assert not {str(path.relative_to(ROOT)): n for path, n in lengths.items() if n > 400}


def test_whoever_catches_every_exception_says_why():
    """A refusal has a class: ``TVM_ERRORS``, and the tuples of ``frontend/library_errors.py``."""
    broad = re.compile(r"except:|(?:except|suppress)\b.*\b(?:Base)?Exception\b(?!s)")
    silent = []
    for path, _ in _modules():
        lines = path.read_text().splitlines()
        for at, line in enumerate(lines):
            if broad.search(line.partition("#")[0]):
                near = lines[at - 1].lstrip(), lines[at + 1].lstrip()
                if "  # " not in line and not any(other.startswith("#") for other in near):
                    silent.append(f"{path.relative_to(ROOT)}:{at + 1}: {line.strip()}")
    assert not silent, "\n".join(silent)


def test_whoever_loads_a_library_asks_for_amx():
    # Workers request it at start, the runtime in its checks; a board requests it by its own server.
    elsewhere = {
        "measure/host_cpu.py", "measure/cuda_gpu.py", "runtime/library.py",
        "runtime/callers.py", "remote/model.py",
    }  # fmt: skip
    opens = re.compile(r"load_module\(|load_from_file|open_library\(")
    loads = {p for p, _ in _modules() if opens.search(p.read_text())}
    assert {str(p.relative_to(PACKAGE)) for p in loads} > elsewhere
    asks = {p for p in loads if "request_amx(" in p.read_text()}
    assert {str(p.relative_to(PACKAGE)) for p in loads - asks} == elsewhere
    for name in ("measure/worker.py", "runtime/checks.py"):
        assert "request_amx(" in (PACKAGE / name).read_text()


def test_only_the_upper_rooms_know_mlflow_and_optuna():
    for path, room in _modules():
        names = {name.split(".")[0] for name in _imported(path)}
        if room not in ("tracking", "doctor", "search"):
            assert not names & {"mlflow", "optuna"}, path
        assert not names & {"flows", "benchmarks", "tests"}, path


def test_host_facts_need_the_standard_library_alone():
    allowed = sys.stdlib_module_names | {"tvmopt"}
    for name in ("host", "errors", "versions"):
        imported = {n.split(".")[0] for n in _imported(PACKAGE / f"{name}.py")}
        assert imported - {"tvm"} <= allowed  # versions asks TVM only without package metadata


def test_compiler_half_works_without_mlflow_and_optuna(run_python):
    names = []
    for path, room in _modules():
        if room not in ("tracking", "search", "workflow", "doctor", "cli", "__main__"):
            relative = path.relative_to(ROOT).with_suffix("")
            names.append(".".join(relative.parts).removesuffix(".__init__"))
    assert len(names) > 50
    code = (
        "import importlib, sys\n"
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('mlflow', 'optuna'):\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Block())\n"
        "for name in sys.argv[1:]: importlib.import_module(name)\n"
        "try: import mlflow\n"
        "except ModuleNotFoundError: print('blocked')\n"
    )
    done = run_python("-c", code, *names)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["blocked"]


def test_public_names():
    assert dir(tvmopt) == sorted(tvmopt.__all__)
    from tvmopt.runtime import CompiledModel, load

    assert (tvmopt.load, tvmopt.CompiledModel) == (load, CompiledModel)
    with pytest.raises(AttributeError, match="no attribute 'missing'"):
        _ = tvmopt.missing


def _pins(lines):
    """Return the exact version of each requirement, with the packages that its extras add."""
    pins = {}
    for requirement in map(Requirement, lines):
        [(operator, version)] = [(s.operator, s.version) for s in requirement.specifier]
        assert operator == "==", requirement
        extras = [f"{requirement.name}-{extra}" for extra in requirement.extras]
        pins |= dict.fromkeys([requirement.name, *extras], version)
    return pins


def _constraints():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return _pins(line for line in lines if not line.startswith("#"))


def test_environment_file_and_constraints_are_the_same_set():
    conda = yaml.safe_load((ROOT / "conda.yaml").read_text())
    [pip] = [entry["pip"] for entry in conda["dependencies"] if isinstance(entry, dict)]
    assert _pins(pip) == _constraints()
    [python] = [d for d in conda["dependencies"] if str(d).startswith("python=")]
    assert python == "python=3.11"


def test_constraints_are_within_the_ranges_of_the_package():
    pins, wanted = _constraints(), list(map(Requirement, PROJECT["dependencies"]))
    assert set(pins) == {w.name for w in wanted} | {"psycopg-binary"}
    for requirement in wanted:
        assert requirement.specifier.contains(pins[requirement.name]), requirement
        operators = {s.operator for s in requirement.specifier}
        exact = requirement.name.startswith("apache-tvm")
        assert operators == ({"=="} if exact else {">=", "<"}), requirement


def test_installed_versions_are_within_the_ranges():
    for requirement in map(Requirement, PROJECT["dependencies"]):
        assert requirement.specifier.contains(importlib.metadata.version(requirement.name))


def test_pins_are_what_the_code_checks():
    pins = _constraints()
    assert pins["apache-tvm"] == versions.TVM_VERSION
    assert pins["apache-tvm-ffi"] == versions.TVM_FFI_VERSION
    assert PROJECT["version"] == versions.VERSION == tvmopt.__version__


def test_python_versions_are_said_once():
    said = [f"{major}.{minor}" for major, minor in versions.PYTHON_VERSIONS]
    python = "Programming Language :: Python :: "
    assert [c for c in PROJECT["classifiers"] if python in c] == [python + v for v in said]
    supported = SpecifierSet(PROJECT["requires-python"])
    assert [f"3.{minor}" for minor in range(30) if f"3.{minor}" in supported] == said
    assert versions.python_versions() == f"{said[0]} to {said[-1]}"
    assert sys.version_info[:2] in versions.PYTHON_VERSIONS


def test_requirement_of_a_dependency(monkeypatch):
    lines = ["onnx<2,>=1.20", "onnxruntime<2,>=1.23", "psycopg[binary]<4,>=3.2"]
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: lines)
    assert versions.requirement("onnx") == lines[0]
    assert versions.requirement("onnxruntime") == lines[1]
    assert versions.requirement("psycopg") == lines[2]
    assert versions.requirement("other") == "other"


def test_files_that_are_not_python_are_package_data():
    files = {path for path in PACKAGE.rglob("*") if path.is_file()}
    packed = {path for glob in DATA for path in PACKAGE.glob(glob)}
    assert {path for path in files if path.suffix not in (".py", ".pyc")} == packed
    assert {path.parent.name for path in packed} == _PACKED_FOLDERS


def test_every_imported_package_is_a_dependency():
    stems = {"tvm": "apache-tvm", "tvm_ffi": "apache-tvm-ffi", "sklearn": "scikit-learn",
             "yaml": "pyyaml", "google": "onnx"}  # fmt: skip
    extras = PROJECT["optional-dependencies"]
    lines = [*PROJECT["dependencies"], *extras["text"], *extras["nncf"]]
    lines += [*extras["sklearn"], *extras["pytorch"]]
    pins = {Requirement(line).name for line in lines}
    pins |= {"requests", "uvicorn", "pandas", "skops"}  # dependencies of mlflow
    pins |= {"xgboost", "lightgbm"}  # whoever has their models has them
    for folder in (PACKAGE, ROOT / "flows"):
        for path in folder.rglob("*.py"):
            for name in {n.split(".")[0] for n in _imported(path)} - sys.stdlib_module_names:
                if name not in ("tvmopt", "flows"):
                    assert stems.get(name, name) in pins, f"{path} imports {name}"


@pytest.fixture
def installed(monkeypatch):
    """Fake the installed versions; None for no metadata."""

    def pretend(**found):
        real = importlib.metadata.version

        def version(name):
            value = found.get(name.replace("-", "_"), "as it is")
            if value is None:
                raise importlib.metadata.PackageNotFoundError(name)
            return real(name) if value == "as it is" else value

        monkeypatch.setattr(importlib.metadata, "version", version)

    return pretend


def test_pinned_pair_is_right():
    assert versions.tvm_problem() is None
    assert versions.tvm_version() == versions.TVM_VERSION


def test_wrong_ffi(installed):
    installed(apache_tvm_ffi="0.1.15")
    problem = versions.tvm_problem()
    assert "apache-tvm-ffi must be 0.1.14.post1 (0.1.15 crashes" in problem
    assert "but got 0.1.15; run: pip install" in problem
    with pytest.raises(tvmopt.errors.EnvironmentSetupError, match="must be"):
        versions.require_tvm()


def test_wrong_tvm(installed):
    installed(apache_tvm="0.26.0")
    assert "apache-tvm must be 0.27.0.post1, but got 0.26.0" in versions.tvm_problem()


def test_no_tvm(installed, monkeypatch):
    installed(apache_tvm=None, apache_tvm_ffi=None)
    assert versions.tvm_problem() is None  # a copied tree without metadata is accepted
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "apache-tvm must be installed, but it is not; run: pip" in versions.tvm_problem()


_OTHER_FFI = """
import importlib.metadata as metadata
real = metadata.version
metadata.version = lambda name: "0.1.15" if name == "apache-tvm-ffi" else real(name)
"""


@pytest.fixture
def wrong_pair(tmp_path, run_python):
    """Run Python with metadata of a wrong apache-tvm-ffi version."""
    (tmp_path / "sitecustomize.py").write_text(_OTHER_FFI)
    return lambda *args: run_python(*args, PYTHONPATH=f"{tmp_path}:{ROOT}")


def test_wrong_pair_is_refused_at_import(wrong_pair):
    done = wrong_pair("-c", "import tvmopt.runtime")
    assert done.returncode == 1
    assert "Error: apache-tvm-ffi must be 0.1.14.post1" in done.stderr
    assert 'pip install "apache-tvm==0.27.0.post1" "apache-tvm-ffi==0.1.14.post1"' in done.stderr


def test_doctor_runs_with_the_wrong_pair(wrong_pair):
    done = wrong_pair("-m", "tvmopt", "doctor")
    assert done.returncode == 1, done.stderr
    assert "apache-tvm-ffi  0.1.15" in done.stdout
    assert "target          unknown: TVM cannot be used" in done.stdout
    assert "apache-tvm-ffi must be 0.1.14.post1" in done.stdout.split("problem(s):")[1]


def test_a_command_with_the_wrong_pair_is_one_line(wrong_pair):
    done = wrong_pair("-m", "tvmopt", "pull", "--name", "m")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: apache-tvm-ffi must be 0.1.14.post1")
    assert done.stderr.count("\n") == 1
