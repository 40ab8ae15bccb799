"""TVM is imported without PyTorch, which stays importable."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_TORCH = "print('torch is imported', flush=True)\n"
_PROGRAM = """
import sys
from tvmopt.device.tvm_import import import_tvm_without_torch
import_tvm_without_torch()
print("tvm" in sys.modules, "torch" in sys.modules, flush=True)
import torch
"""


def test_torch_is_not_imported_with_tvm_but_can_be_afterwards(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(_TORCH)
    places = [str(tmp_path), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, places))},
        text=True,
        capture_output=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["True False", "torch is imported"]
