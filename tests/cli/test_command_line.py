"""Tests of the command line: fast help, one-line errors, one parameter table behind all of it."""

from __future__ import annotations

import importlib
import inspect
import time
from pathlib import Path

import pytest
import yaml

from tvmopt import command_cache, errors
from tvmopt.cli import command_line
from tvmopt.cli.commands import function as find_function
from tvmopt.errors import ConfigError, ModelError, TvmoptError
from tvmopt.parameters import COMMANDS, ENTRY_POINTS
from tvmopt.skip_layers import SkipLayers

ROOT = Path(__file__).parents[2]
PROJECT = yaml.safe_load((ROOT / "MLproject").read_text())
NEEDED = {
    entry: {p.name: "something" for p in parameters if p.default is None}
    for entry, parameters in ENTRY_POINTS.items()
}


def _argv(values):
    return [word for name, value in values.items() for word in (f"--{name}", value)]


@pytest.mark.alone
@pytest.mark.parametrize("entry", ENTRY_POINTS)
def test_help_is_quick_and_complete(entry, run_python):
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        done = run_python("-m", "tvmopt", entry, "--help")
        seconds.append(time.perf_counter() - start)
        if seconds[-1] < 2:
            break
    assert done.returncode == 0
    assert done.stderr == ""
    for parameter in ENTRY_POINTS[entry]:
        assert f"--{parameter.name} " in done.stdout
        assert parameter.help.split()[0] in done.stdout
    assert COMMANDS[entry].summary()[:30] in done.stdout
    assert min(seconds) < 2


@pytest.fixture
def refuse(monkeypatch, capsys):
    """Run an entry point with arguments that it must reject; return the one-line error."""

    def run(entry, *argv, code=2):
        monkeypatch.setattr("sys.argv", [entry, *argv])
        with pytest.raises(SystemExit) as exited:
            command_line.run(entry, lambda: pytest.fail("the function was looked for"))
        said = capsys.readouterr()
        assert exited.value.code == code
        assert said.out == ""
        assert said.err.startswith("error: ")
        assert said.err.count("\n") == 1
        return said.err

    return run


@pytest.mark.parametrize("entry", ENTRY_POINTS)
def test_wrong_types(entry, refuse):
    words = {int: "a whole number", float: "a number", bool: "true or false"}
    for parameter in ENTRY_POINTS[entry]:
        if parameter.kind in words:
            values = {**NEEDED[entry], parameter.name: "a lot"}
            said = refuse(entry, *_argv(values))
            assert f"{parameter.name} must be {words[parameter.kind]}, but got 'a lot'" in said


@pytest.mark.parametrize("entry", [e for e, needed in NEEDED.items() if needed])
def test_missing_parameter(entry, refuse):
    [name] = NEEDED[entry]
    assert f"{name} must be given" in refuse(entry)
    assert f"{name} must be given" in refuse(entry, f"--{name}", "  ")


@pytest.mark.parametrize("entry", ENTRY_POINTS)
def test_unknown_option(entry, refuse):
    said = refuse(entry, *_argv(NEEDED[entry]), "--bogus", "x\ny")
    assert "unrecognized arguments: --bogus x y (see --help)" in said


def test_options_are_not_abbreviated(refuse):
    assert "unrecognized arguments: --thread 2" in refuse("main", "--thread", "2")


def test_option_without_a_value(refuse):
    assert "expected one argument" in refuse("main", "--threads")


def test_stray_word(refuse):
    assert "unrecognized arguments: model.onnx" in refuse("main", "model.onnx")


def test_empty_values_mean_defaults():
    found = command_line.parse("main", ["--threads", "", "--name", " ", "--no_cache", ""])
    assert found.values() == {p.name: p.default for p in ENTRY_POINTS["main"]}


def test_values_get_their_types():
    argv = ["--threads", "2", "--time_budget", "1.5", "--no_cache", "true", "--name", "a b"]
    values = command_line.parse("main", argv).values()
    assert (values["threads"], values["time_budget"], values["no_cache"]) == (2, 1.5, True)
    assert values["name"] == "a b"


def test_negative_number_is_a_value(refuse):
    assert "threads must be at least 0, but got -1" in refuse("main", "--threads", "-1")


def test_a_default_on_the_command_line_does_not_override_the_file(tmp_path):
    """``mlflow run`` passes every parameter, the default where none is given."""
    (tmp_path / "config.yaml").write_text("topk: 5\ntrials: 7\n")
    argv = ["--config", str(tmp_path / "config.yaml"), "--topk", "20", "--trials", "8"]
    tuning = command_line.parse("main", argv).tuning
    assert (tuning.topk, tuning.trials) == (5, 8)


@pytest.mark.parametrize(
    ("raised", "code", "line"),
    [
        (None, 0, ""),
        (ConfigError("rule,\n but got"), 2, "error: rule, but got\n"),
        (ModelError("bad model"), 2, "error: bad model\n"),
        (errors.UnsupportedOperatorError("ops"), 2, "error: ops\n"),
        (errors.PromotionRefusedError("worse"), 1, "error: worse\n"),
        (errors.EnvironmentSetupError("no g++"), 1, "error: no g++\n"),
        (TvmoptError("x" * 5000), 1, f"error: {'x' * 1500}...\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
    ],
)
def test_exit_codes(monkeypatch, capsys, raised, code, line):
    def function(**values):
        if raised is not None:
            raise raised

    monkeypatch.setattr("sys.argv", ["main"])
    with pytest.raises(SystemExit) as exited:
        command_line.run("main", lambda: function)
    assert exited.value.code == code
    assert capsys.readouterr().err == line


def test_stages_of_a_command_share_a_folder_that_goes_with_it(monkeypatch):
    found = []

    def function(**values):
        found.append(command_cache.folder("kind"))
        assert found[0].is_dir()

    monkeypatch.setattr("sys.argv", ["main"])
    with pytest.raises(SystemExit) as exited:
        command_line.run("main", lambda: function)
    assert exited.value.code == 0
    assert not found[0].exists()
    assert command_cache.folder("kind") is None


@pytest.mark.alone
def test_wrong_input_is_refused_by_the_real_command_before_tvm_is_imported(run_python):
    start = time.perf_counter()
    done = run_python("-X", "importtime", "-m", "flows.main", "--threads", "two")
    assert time.perf_counter() - start < 5
    said = [line for line in done.stderr.splitlines() if not line.startswith("import time:")]
    assert done.returncode == 2
    assert said == ["error: threads must be a whole number, but got 'two'"]
    imported = {line.split("|")[-1].strip() for line in done.stderr.splitlines() if "|" in line}
    assert not imported & {"tvm", "mlflow", "numpy", "onnx"}


def test_flows_and_entry_points_correspond():
    files = {p.stem for p in (ROOT / "flows").glob("*.py")} - {"__init__", "unexpected"}
    assert files == set(ENTRY_POINTS) == set(PROJECT["entry_points"])


@pytest.mark.parametrize("entry", ENTRY_POINTS)
def test_project_file_says_the_same(entry):
    """Compare names, order, types and defaults; MLflow declares integers as float."""
    kinds = {str: "string", SkipLayers: "string", bool: "string", int: "float", float: "float"}
    written = PROJECT["entry_points"][entry]["parameters"]
    assert list(written) == [p.name for p in ENTRY_POINTS[entry]]
    for parameter in ENTRY_POINTS[entry]:
        said = written[parameter.name]
        assert said["type"] == kinds[parameter.kind]
        if parameter.default is None:
            assert "default" not in said
        else:
            assert parameter.parse(str(said["default"])) == parameter.default


@pytest.mark.parametrize("entry", ENTRY_POINTS)
def test_project_file_passes_every_parameter(entry):
    command = PROJECT["entry_points"][entry]["command"].split()
    names = [p.name for p in ENTRY_POINTS[entry]]
    assert command == ["python", "-m", f"flows.{entry}", *_argv({n: f"{{{n}}}" for n in names})]


@pytest.mark.parametrize("entry", ENTRY_POINTS)
def test_functions_have_the_same_signature(entry):
    workflow = importlib.import_module("tvmopt.workflow")
    function = getattr(workflow, entry)
    assert find_function(entry) is function
    signature = inspect.signature(function).parameters
    assert list(signature) == [p.name for p in ENTRY_POINTS[entry]]
    for parameter in ENTRY_POINTS[entry]:
        said = signature[parameter.name]
        default = inspect.Parameter.empty if parameter.default is None else parameter.default
        assert said.default == default
        assert said.annotation == parameter.kind.__name__
