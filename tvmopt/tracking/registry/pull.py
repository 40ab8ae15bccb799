"""Entry point pull: download a registered model to a folder that runs without MLflow."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import tvmopt
from tvmopt.device.cuda_runtime import PACKAGE
from tvmopt.device.target import TargetSpec
from tvmopt.errors import ArtifactError, ConfigError, LimitError
from tvmopt.parameters.call import entry_point
from tvmopt.parameters.commands import PullCommand
from tvmopt.printable import one_line
from tvmopt.runtime import ModelMetadata
from tvmopt.runtime.bundle import copy_bundle
from tvmopt.runtime.c_files import write_c_files
from tvmopt.runtime.checks import check_machine
from tvmopt.scratch import PULL_PREFIX, scratch_folder, sweep
from tvmopt.stages.launch import SECRETS
from tvmopt.stages.watch import Allowance, Watch
from tvmopt.tracking import flavor
from tvmopt.tracking.flavor.verify import SavedModel, verify_model
from tvmopt.tracking.registry.operator_model import write_operator_model
from tvmopt.tracking.registry.versions import check_name, find_version
from tvmopt.tracking.store.allowance import memory_mb
from tvmopt.tracking.store.console import say
from tvmopt.tracking.store.mlflow_store import open_store
from tvmopt.versions import TVM_FFI_VERSION, TVM_VERSION, python_versions

_RUNTIME_FILES = (
    "__init__.py", "compare.py", "digest.py", "errors.py", "host.py", "printable.py",
    "row_order.py", "versions.py",
    "runtime", "device/__init__.py", "device/dtypes.py", "device/cuda_runtime.py",
    "device/cuda_graph.py",
)  # fmt: skip
_SAMPLE = '''\
"""Run the compiled model of this folder on its golden input."""
import os, sys
os.environ["TVM_USE_RUNTIME_LIB"] = "1"  # the small runtime, not the compiler
from pathlib import Path
here = Path(__file__).parent
sys.path.insert(0, str(here / "code"))
from tvmopt.runtime import load
model = load(here)  # checks hash, TVM version and CPU first
print("largest deviation from the golden output:", model.check_golden(here))
import numpy as np
inputs = {spec.name: np.zeros(spec.shape, spec.dtype) for spec in model.metadata.inputs}
outputs = model(inputs)  # a list in the order of the ONNX graph, and by name: outputs.items()
'''
# Runs the sample as a user does, but ends with the process that started it.
_RUN_SAMPLE = """
import ctypes, json, os, runpy, sys
parent, sample = json.loads(sys.argv[1])
if sys.platform.startswith("linux"):
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
    if os.getppid() != parent:
        sys.exit("the parent process is gone")
sys.argv = [sample]
runpy.run_path(sample, run_name="__main__")
"""
_TIMEOUT_S = 600.0


@entry_point(PullCommand)
def pull(command: PullCommand) -> Path:
    """Download and verify a registered model, and write a self-contained folder.

    The folder holds library, metadata, golden input and output, the loader's code, ``sample.py``
    and ``README.md``. It appears whole or not at all.

    Returns:
        The folder.

    Raises:
        ConfigError: A parameter breaks its rule, or the folder is not empty.
        ArtifactError: The model is damaged, is another machine's, or its golden run fails.
    """
    name, output = command.version.name, command.output.output
    check_name(name)
    client = open_store()
    found = find_version(client, name, command.version.version)
    target = Path(output or f"{name}-{found.version}").expanduser().resolve()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(
            f"output must be a folder that is new or empty, but '{target}' is not"
            "; name another one, or empty it"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    sweep(target.parent, PULL_PREFIX)
    with scratch_folder(PULL_PREFIX, target.parent) as work:
        downloaded = flavor.download(f"models:/{name}/{found.version}", work)
        saved = verify_model(downloaded, found.tags)
        model = saved.metadata
        bundle = _bundle(saved, work / "bundle", f"{name} version {found.version}")
        missing = TargetSpec.from_dict(model.target).missing_on_host()
        if missing:
            said = f"not run here: this machine lacks {', '.join(missing)}"
        else:
            check_machine(model)
            said = _run_sample(bundle)
        _write_to_disk(bundle)
        try:
            bundle.rename(target)  # takes the place of an empty folder, too
        except OSError as error:
            raise ConfigError(
                f"output must be a folder that is new or empty, but another command has filled "
                f"'{target}' meanwhile ({error.strerror}); nothing there was changed"
            ) from error
    say(f"{target}: {name} version {found.version} for {model.device}; {said}")
    say(f"try it: {Path(sys.executable).name} {target / 'sample.py'}")
    return target


def _bundle(saved: SavedModel, bundle: Path, title: str) -> Path:
    bundle.mkdir()
    copy_bundle(saved.bundle, bundle)
    code = bundle / "code" / "tvmopt"
    code.mkdir(parents=True)
    package = Path(tvmopt.__file__).parent
    ignore = shutil.ignore_patterns("__pycache__", "*.c", "*.h", "*.cpp", "*.txt", "Makefile")
    for name in _RUNTIME_FILES:
        source = package / name
        if source.is_dir():
            shutil.copytree(source, code / name, ignore=ignore)
        else:
            (code / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(source, code / name)
    (bundle / "sample.py").write_text(_SAMPLE)
    (bundle / "README.md").write_text(_readme(title, saved.metadata))
    if _is_for_c(saved.metadata):
        write_c_files(bundle, saved.metadata)
        write_operator_model(bundle, saved.metadata)
    return bundle


def _write_to_disk(folder: Path) -> None:
    """Flush the files of ``folder`` to disk, so that a power cut does not leave them empty."""
    for path in [*(p for p in folder.rglob("*")), folder]:
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)


def _cell(text: object) -> str:
    """Escape ``text`` for one cell of a Markdown table."""
    return re.sub(r"([\\|`<>*_\[\]])", r"\\\1", one_line(str(text)))


def _readme(title: str, model: ModelMetadata) -> str:
    def rows(side: str) -> str:
        return "\n".join(
            f"| {side} | {_cell(t.name)} | {'x'.join(map(str, t.shape)) or 'scalar'} "
            f"| {_cell(t.dtype)} |"
            for t in (model.inputs if side == "input" else model.outputs)
        )

    return f"""# {title}

A model compiled with Apache TVM {_cell(model.tvm_version)} for {_cell(model.device)}
({_how(model)}), built on {_cell(model.host_cpu)}.

| | name | shape | type |
|---|---|---|---|
{rows("input")}
{rows("output")}

Needs Python {python_versions()} and

    pip install {" ".join(_packages(model))}

Then `python sample.py` loads `model.so` (sha256 `{model.library_sha256}`, checked before it is
opened), runs the golden input and says how far the outputs are from the golden ones. `sample.py` is
also the shortest program that uses the model.
{_in_c(model)}"""


def _is_for_c(model: ModelMetadata) -> bool:
    """Return whether C can run a model: in Python alone, ONNX Runtime runs some of its nodes."""
    return model.native and not model.segments


def _in_c(model: ModelMetadata) -> str:
    if not _is_for_c(model):
        return ""
    return """
A program in C or C++ needs neither Python nor TVM: `c/tvmopt.h` says how to load and run the model,
`make -C c && c/example .` builds the examples and compares with the golden output. Copy `model.so`,
`model.txt`, `c/tvmopt.h` and `c/tvmopt.c`.

Programs that use ONNX Runtime (1.16 or newer; Python, C#, Java, Triton) load `model.onnx`, whose
one node `model.so` computes:

    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library("model.so")
    session = onnxruntime.InferenceSession("model.onnx", options)

ONNX Runtime does not check the hash of `model.so`; `sample.py` and `c/example` do.
"""


def _how(model: ModelMetadata) -> str:
    if not model.gpu:
        return f"{model.threads} threads"
    sm = model.target["gpu"]["sm"]
    return f"a GPU of compute capability {sm // 10}.{sm % 10}"


def _packages(model: ModelMetadata) -> list[str]:
    tvm = [f'"apache-tvm=={TVM_VERSION}"', f'"apache-tvm-ffi=={TVM_FFI_VERSION}"']
    return [
        *([] if model.native else tvm),
        "numpy",
        *([f'"{PACKAGE}"'] if model.gpu else []),
        *(["onnxruntime"] if model.segments else []),
    ]


def _run_sample(bundle: Path) -> str:
    """Run ``sample.py`` in a clean, limited process; return its output.

    Raises:
        ArtifactError: When it fails, or passes a limit.
    """
    hidden = ("PYTHONPATH", "TVM_NUM_THREADS", *SECRETS)
    asked = json.dumps([os.getpid(), str(bundle / "sample.py")])
    process = subprocess.Popen(
        [sys.executable, "-I", "-B", "-c", _RUN_SAMPLE, asked],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={k: v for k, v in os.environ.items() if k not in hidden},
        cwd=bundle,
    )
    try:
        with Watch(process.pid, Allowance(_TIMEOUT_S, memory_mb(0.0))) as watch:
            said, wrong = process.communicate()
        watch.check("the golden run")
    except LimitError as error:
        raise ArtifactError(f"{error}; nothing was left behind") from error
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    if process.returncode != 0:
        lines = wrong.strip().splitlines()
        raise ArtifactError(
            "the golden input must run in a clean process, but it failed "
            f"(exit code {process.returncode}): {lines[-1] if lines else 'no message'}; "
            "nothing was left behind"
        )
    return said.strip()
