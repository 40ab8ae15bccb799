"""Results by structure of a function that earlier stages of the same command have computed."""

from __future__ import annotations

import json
from typing import Any

import tvm
import tvm_ffi

from tvmopt import command_cache
from tvmopt.digest import sha256_text
from tvmopt.kernels.saved import load_saved
from tvmopt.kernels.structure import Structure


class KeptResults:
    """Results of one kind; none are kept outside of a command (:mod:`tvmopt.command_cache`).

    Args:
        kind: What they are.
        about: What they depend on beside the function; the same ``repr`` in each process.
    """

    def __init__(self, kind: str, *about: object) -> None:
        self._folder = command_cache.folder(f"{kind}-{sha256_text(repr(about))[:16]}")

    def find(self, structure: Structure[Any]) -> Any | None:
        """Return the result for a function of equal structure; None where there is none."""
        if self._folder is None:
            return None
        try:
            text = (self._folder / f"{structure.name}.json").read_text()
        except FileNotFoundError:
            return None
        found = json.loads(text)
        # The file is named by a hash.
        same = tvm_ffi.structural_equal(load_saved(found["func"]), structure.func)
        return found["result"] if same else None

    def keep(self, structure: Structure[Any], result: Any) -> None:
        """Keep a result that JSON can hold."""
        if self._folder is None:
            return
        text = json.dumps({"func": tvm.ir.save_json(structure.func), "result": result})
        with command_cache.whole_file(self._folder / f"{structure.name}.json") as file:
            file.write_text(text)
