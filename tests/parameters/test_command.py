"""Tests of commands: composition, YAML files, Python calls, the project file."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import yaml

from tvmopt.errors import ConfigError
from tvmopt.parameters import COMMANDS, ENTRY_POINTS
from tvmopt.parameters.call import entry_point
from tvmopt.parameters.commands import MainCommand, PullCommand, TuneCommand
from tvmopt.parameters.project_file import project_file

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("entry", COMMANDS)
def test_no_command_has_a_parameter_twice(entry):
    names = [one.name for one in COMMANDS[entry].parameters()]
    assert len(names) == len(set(names))
    assert names[-1] == "config"
    assert ENTRY_POINTS[entry] == COMMANDS[entry].parameters()


def test_values_are_those_of_the_groups():
    command = MainCommand.of({"topk": "5", "skip_layers": "0,fc*"})
    assert command.tuning.topk == 5
    assert command.conversion.skip_layers == (0, "fc*")
    assert command.values()["topk"] == 5
    assert list(command.values()) == [one.name for one in MainCommand.parameters()]
    assert MainCommand.of(command.values()) == command


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tpk": 5}, "a parameter must be one of this command's, but got 'tpk'; did you mean topk"),
        ({"xyzzy": 5}, r"but got 'xyzzy' \(model, name, "),
        ({"topk": 0}, "topk must be at least 1, but got 0"),
    ],
)
def test_wrong_parameters(given, message):
    with pytest.raises(ConfigError, match=message):
        MainCommand.of(given)


def test_a_needed_parameter():
    with pytest.raises(ConfigError, match="name must be given: name of the registered model"):
        PullCommand.of({"name": ""})


@pytest.fixture
def config(tmp_path):
    """Write a YAML file, and return its path."""

    def write(text: str) -> str:
        path = tmp_path / "config.yaml"
        path.write_text(text)
        return str(path)

    return write


def test_a_file_gives_parameters_and_what_is_given_beside_it_wins(config):
    path = config(
        "topk: 5\ndtype: int8\nskip_layers: [0, fc*]\nno_cache: yes\ntime_budget: 3\nname:\n"
    )
    command = MainCommand.of({"config": path, "topk": 7})
    assert (command.tuning.topk, command.conversion.dtype) == (7, "int8")
    assert command.conversion.skip_layers == (0, "fc*")
    assert (command.reuse.no_cache, command.tuning.time_budget) == (True, 3.0)
    assert command.model.name == ""
    assert command.file.config == path


def test_a_file_may_give_a_needed_parameter(config):
    assert PullCommand.of({"config": config("name: net\nversion: 3\n")}).version.version == "3"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tpk: 5", "each name in '.*config.yaml' must be one of .* got 'tpk'; did you mean topk?"),
        ("- topk", "config must be a YAML file that maps .*, but '.*' holds list"),
        ("topk: [", "config must be a YAML file .* cannot be read: "),
        ("a: &a [1]\nb: *a", "it must hold no aliases"),
        ("config: other.yaml", "config must not be named in a config file"),
        ("topk: many", "topk must be a whole number, but got 'many'"),
        ("topk: 1.5", "topk must be a whole number, but got 1.5"),
        ("dtype: {a: b}", "dtype must be text, but got"),
        ("? [1]\n: 2", "cannot be read|must be one of"),
        ("1: 2", "must be one of this command's, but got 1"),
    ],
)
def test_wrong_files(config, text, message):
    with pytest.raises(ConfigError, match=message) as caught:
        MainCommand.of({"config": config(text)})
    assert "\n" not in str(caught.value)


def test_a_file_that_is_missing(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        MainCommand.of({"config": str(tmp_path / "none.yaml")})


def test_python_calls_have_the_signature_of_the_command():
    @entry_point(TuneCommand)
    def tune(command: TuneCommand) -> TuneCommand:
        """Find schedules."""
        return command

    found = inspect.signature(tune).parameters
    assert list(found) == [one.name for one in TuneCommand.parameters()]
    assert found["topk"].default == 20
    assert "topk: most configurations" in tune.__doc__
    assert tune("net.onnx", topk=3).tuning.topk == 3
    assert tune("net.onnx").model.model == "net.onnx"
    with pytest.raises(ConfigError, match="did you mean topk"):
        tune(topkk=3)
    with pytest.raises(TypeError, match="too many positional"):
        tune(*range(99))


def test_a_dry_run_replaces_the_call():
    said = []

    @entry_point(TuneCommand, dry_run=said.append)
    def tune(command: TuneCommand) -> str:
        """Find schedules."""
        return "done"

    assert tune() == "done"
    assert tune(dry_run=True) is None
    assert said[0].dry_run.dry_run


def test_the_project_file_is_generated():
    """Write it with ``python -m tvmopt.parameters.project_file > MLproject``."""
    assert (ROOT / "MLproject").read_text() == project_file()
    assert set(yaml.safe_load(project_file())["entry_points"]) == set(COMMANDS)
