"""What starts the tests calls what exists: .ci/, the workflow of GitHub, pre-commit, the README."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from tvmopt.versions import PYTHON_VERSIONS, VERSION

ROOT = Path(__file__).parents[1]
RUN, SMOKE = (ROOT / ".ci" / name for name in ("run", "smoke"))
[JOB] = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"].values()
PYTHONS = [f"{major}.{minor}" for major, minor in PYTHON_VERSIONS]


@pytest.mark.parametrize("script", [RUN, SMOKE], ids=["run", "smoke"])
def test_script_is_well_formed(script):
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", script], check=True)


def test_each_version_of_python_is_tested_once():
    suite = re.findall(r"^python(3\.\d+) -m venv", RUN.read_text(), re.MULTILINE)
    smoke = re.findall(r"^\(smoke (3\.\d+) ", SMOKE.read_text(), re.MULTILINE)
    assert suite + smoke == PYTHONS


def test_run_calls_the_smoke_test():
    assert RUN.read_text().splitlines()[-1].split()[0] == ".ci/smoke"


def test_workflow_installs_each_python_and_the_emulators_and_calls_run():
    [setup] = [step for step in JOB["steps"] if "setup-python" in step.get("uses", "")]
    assert setup["with"]["python-version"].split() == PYTHONS
    *_, install, last = [step["run"] for step in JOB["steps"] if "run" in step]
    assert last == ".ci/run"
    [emulators] = re.findall(r"^emulators=\((.*?)\)", RUN.read_text(), re.MULTILINE | re.DOTALL)
    assert set(emulators.split()) <= set(install.split())


def test_pre_commit_hooks_call_installed_modules():
    [repo] = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert repo["repo"] == "local"
    for hook in repo["hooks"]:
        python, flag, module, *_ = shlex.split(hook["entry"])
        assert (python, flag, hook["language"]) == ("python", "-m", "system")
        assert find_spec(module) is not None


def test_commands_of_the_readme_install_the_exact_set():
    text = (ROOT / "README.md").read_text()
    for marker in ("main", "test"):
        [command] = re.findall(rf"^<!-- ci:{marker} -->\n```sh\n(.*)\n```", text, re.MULTILINE)
        assert re.match(r'pip install -e (\.|"\.\[test\]") -c constraints.txt && ', command)


def test_newest_version_of_the_changelog_is_the_packages():
    versions = re.findall(r"^## (\S+) - (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[0][0] == VERSION
    assert all(re.fullmatch(r"unreleased|\d{4}-\d\d-\d\d", date) for _, date in versions)
