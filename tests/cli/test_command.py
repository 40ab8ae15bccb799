"""Tests of the command ``tvmopt``: its help, its version, and words that are no command."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from tvmopt.cli import main
from tvmopt.cli.commands import DOCTOR, SUMMARIES
from tvmopt.parameters import ENTRY_POINTS
from tvmopt.versions import VERSION

ROOT = Path(__file__).parents[2]
_HEAVY = {"tvm", "mlflow", "numpy", "onnx", "optuna"}
_IMPORTED = """
import sys, tvmopt.cli
try: tvmopt.cli.main(sys.argv[1:])
finally: print(*sys.modules)
"""


@pytest.fixture
def said(capsys):
    """Run ``tvmopt`` in this process; return its exit code, output and errors."""

    def run(*words):
        with pytest.raises(SystemExit) as exited:
            main(words)
        return exited.value.code, *capsys.readouterr()

    return run


def test_commands_are_the_entry_points_and_the_doctor():
    assert set(SUMMARIES) == {*ENTRY_POINTS, DOCTOR}


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_lists_each_command_in_one_line(said, flag):
    code, out, err = said(flag)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    for name, summary in SUMMARIES.items():
        assert [re.split(r"  +", line.strip()) for line in lines].count([name, summary]) == 1
    assert all(len(line) <= 110 for line in lines)


def test_version(said):
    assert said("--version") == (0, f"tvmopt {VERSION}\n", "")


def test_no_command_prints_the_help_as_an_error(said):
    code, out, err = said()
    assert (code, out) == (2, "")
    assert err == said("--help")[1]


@pytest.mark.parametrize(
    ("word", "near"),
    [
        ("serach", "did you mean search?"),
        ("Main", "did you mean main?"),
        ("evalute", "did you mean evaluate?"),
        ("docter", "did you mean doctor?"),
        ("xyzzy", "see tvmopt --help"),
        ("--model", "see tvmopt --help"),
        ("two\nlines", "see tvmopt --help"),
    ],
)
def test_unknown_command(said, word, near):
    code, out, err = said(word)
    assert (code, out) == (2, "")
    assert err.startswith("error: command must be one of main, ")
    assert err.endswith(f"but got {word!r}; {near}\n")
    assert err.count("\n") == 1


def test_doctor_takes_no_parameters(said):
    code, out, err = said(DOCTOR, "now")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: doctor must be given no parameters, but got 'now'")


def test_help_of_the_doctor(said):
    code, out, err = said(DOCTOR, "--help")
    assert (code, err) == (0, "")
    assert out.splitlines() == ["usage: tvmopt doctor", "", SUMMARIES[DOCTOR]]


@pytest.mark.parametrize("words", [["--help"], ["--version"], [], ["main", "--help"], ["serach"]])
def test_answers_without_the_compiler_and_mlflow(words, run_python):
    done = run_python("-c", _IMPORTED, *words)
    assert not _HEAVY & set(done.stdout.splitlines()[-1].split())


@pytest.mark.alone
def test_help_is_quick(run_python):
    seconds = []
    while len(seconds) < 3 and not (seconds and min(seconds) < 1):
        start = time.perf_counter()
        done = run_python("-m", "tvmopt", "--help")
        seconds.append(time.perf_counter() - start)
        assert (done.returncode, done.stderr) == (0, "")
    assert min(seconds) < 1


def test_parameters_follow_the_command(said):
    code, out, err = said("main", "--threads", "two")
    assert (code, out, err) == (2, "", "error: threads must be a whole number, but got 'two'\n")


@pytest.mark.sample(3)
@pytest.mark.parametrize("entry", ENTRY_POINTS)
def test_flow_is_the_command(entry, run_python):
    flow = run_python("-m", f"flows.{entry}", "--bogus")
    command = run_python("-m", "tvmopt", entry, "--bogus")
    assert flow.returncode == command.returncode == 2
    assert flow.stderr == command.stderr == "error: unrecognized arguments: --bogus (see --help)\n"
