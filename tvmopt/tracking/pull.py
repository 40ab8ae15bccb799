"""The entry point pull: a registered model becomes a folder that runs without MLflow."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tvmopt.arch.target import TargetSpec
from tvmopt.cuda_runtime import PACKAGE
from tvmopt.errors import ArtifactError, ConfigError
from tvmopt.runtime import ModelMetadata
from tvmopt.runtime.bundle import copy_bundle
from tvmopt.runtime.checks import check_bundle, check_files
from tvmopt.tracking import flavor
from tvmopt.tracking.console import say
from tvmopt.tracking.registry import CHAMPION, check_name, find_version
from tvmopt.tracking.store import open_store
from tvmopt.versions import TVM_FFI_VERSION, TVM_VERSION

_RUNTIME_FILES = (
    "__init__.py", "compare.py", "cuda_runtime.py", "digest.py", "errors.py", "host.py",
    "versions.py", "runtime", "cuda/__init__.py", "cuda/graph.py",
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
# outputs = model({arguments})  # a list in the order of the ONNX graph
'''
_TIMEOUT_S = 600


def pull(name: str, version: str = CHAMPION, output: str = "") -> Path:
    """Bring a registered model to a folder, verify it and leave a bundle that runs anywhere.

    The folder holds library, metadata, golden input and output, the loader's code, ``sample.py``
    and ``README.md``. It appears whole or not at all.

    Args:
        name: Registered model.
        version: Version number or alias.
        output: Folder to create; by default ``<name>-<version>``.

    Returns:
        The folder.

    Raises:
        ConfigError: A parameter breaks its rule, or the folder is not empty.
        ArtifactError: The model is damaged, is another machine's, or its golden run fails.
    """
    check_name(name)
    client = open_store()
    found = find_version(client, name, version)
    target = Path(output or f"{name}-{found.version}").expanduser().resolve()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"output must be a folder that is new or empty, but '{target}' is not")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".tvmopt-pull-", dir=target.parent) as folder:
        work = Path(folder)
        saved = flavor.download(f"models:/{name}/{found.version}", work)
        bundle = _bundle(saved, work / "bundle", f"{name} version {found.version}")
        model = ModelMetadata.read(bundle)
        missing = TargetSpec.from_dict(model.target).missing_on_host()
        if missing:
            check_files(bundle, model)
            said = f"not run here: this machine lacks {', '.join(missing)}"
        else:
            check_bundle(bundle, model)
            said = _run_sample(bundle)
        if target.exists():
            target.rmdir()
        bundle.rename(target)
    say(f"{target}: {name} version {found.version} for {model.device}; {said}")
    say(f"try it: {Path(sys.executable).name} {target / 'sample.py'}")
    return target


def _bundle(saved: Path, bundle: Path, title: str) -> Path:
    bundle.mkdir()
    copy_bundle(flavor.compiled_folder(saved), bundle)
    code = bundle / "code" / "tvmopt"
    code.mkdir(parents=True)
    package = Path(__file__).parents[1]
    ignore = shutil.ignore_patterns("__pycache__")
    for name in _RUNTIME_FILES:
        source = package / name
        if source.is_dir():
            shutil.copytree(source, code / name, ignore=ignore)
        else:
            (code / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(source, code / name)
    model = ModelMetadata.read(bundle)
    names = ", ".join(f'"{spec.name}": array' for spec in model.inputs)
    arguments = "array" if len(model.inputs) == 1 else f"{{{names}}}"
    (bundle / "sample.py").write_text(_SAMPLE.replace("{arguments}", arguments))
    (bundle / "README.md").write_text(_readme(title, model))
    return bundle


def _readme(title: str, model: ModelMetadata) -> str:
    def rows(side: str) -> str:
        return "\n".join(
            f"| {side} | {t.name} | {'x'.join(map(str, t.shape)) or 'scalar'} | {t.dtype} |"
            for t in (model.inputs if side == "input" else model.outputs)
        )

    return f"""# {title}

A model compiled with Apache TVM {model.tvm_version} for {model.device}
({_how(model)}), built on {model.host_cpu}.

| | name | shape | type |
|---|---|---|---|
{rows('input')}
{rows('output')}

Needs Python 3.11 and

    pip install {" ".join(_packages(model))}

Then `python sample.py` loads `model.so` (sha256 `{model.library_sha256}`, checked before it is
opened), runs the golden input and says how far the outputs are from the golden ones. `sample.py` is
also the shortest program that uses the model.
"""


def _how(model: ModelMetadata) -> str:
    if not model.gpu:
        return f"{model.threads} threads"
    sm = model.target["gpu"]["sm"]
    return f"a GPU of compute capability {sm // 10}.{sm % 10}"


def _packages(model: ModelMetadata) -> list[str]:
    pinned = [f'"apache-tvm=={TVM_VERSION}"', f'"apache-tvm-ffi=={TVM_FFI_VERSION}"', "numpy"]
    return pinned + ([f'"{PACKAGE}"'] if model.gpu else [])


def _run_sample(bundle: Path) -> str:
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "TVM_NUM_THREADS")}
    done = subprocess.run(
        [sys.executable, "-I", "-B", str(bundle / "sample.py")],
        capture_output=True,
        text=True,
        env=env,
        cwd=bundle,
        timeout=_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise ArtifactError(
            "the golden input must run in a clean process, but it failed "
            f"(exit code {done.returncode}): {lines[-1] if lines else 'no message'}; "
            "nothing was left behind"
        )
    return done.stdout.strip()
