"""Files of a converted model: IR, module, weights and ONNX models."""

from __future__ import annotations

from pathlib import Path

import tvm

from tvmopt.kernels.saved import load_saved
from tvmopt.transform.constants import bind_constants, split_constants

MODULE_FILE = "module.json"
PARAMS_FILE = "params.bin"
SCRIPT_FILE = "module.py"
IMPORTED_FILE = "imported.py"
REFERENCE_FILE = "reference.onnx"
QUANTIZED_FILE = "quantized.onnx"


def write_module(folder: Path, mod: tvm.IRModule) -> int:
    """Write ``mod`` and its weights to separate files; return the bytes of the weights."""
    without, params = split_constants(mod)
    (folder / MODULE_FILE).write_text(tvm.ir.save_json(without))
    _write_script(folder / SCRIPT_FILE, without)
    data = tvm.runtime.save_param_dict(params)
    (folder / PARAMS_FILE).write_bytes(data)
    return len(data)


def write_script(path: Path, mod: tvm.IRModule) -> None:
    """Write ``mod`` as TVMScript, without its weights."""
    _write_script(path, split_constants(mod)[0])


def _write_script(path: Path, without: tvm.IRModule) -> None:
    path.write_text(without.script(show_meta=False))


def read_module(folder: Path, weights: Path | None = None) -> tvm.IRModule:
    """Read what :func:`write_module` wrote, weights bound.

    Args:
        folder: Folder of the module.
        weights: Folder of its weights; None is the same one.
    """
    mod = load_saved((folder / MODULE_FILE).read_text())
    params = tvm.runtime.load_param_dict(((weights or folder) / PARAMS_FILE).read_bytes())
    return bind_constants(mod, dict(params.items()))
