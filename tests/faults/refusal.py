"""Fault injection for a disk: writes and syncs below a folder fail with an errno for a while."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

_SOURCE = Path(__file__).with_name("refuse.c")


def refuse(flag: Path, number: int) -> None:
    """Write the file that makes the library fail with this ``errno``."""
    draft = flag.with_suffix(".new")
    draft.write_text(str(number))
    draft.rename(flag)


class Refusal:
    """A library for ``LD_PRELOAD`` that injects disk errors, and the file that controls it.

    Args:
        folder: Folder of the failing disk.
        place: Folder for the library and its file, outside of ``folder``.
    """

    def __init__(self, folder: Path, place: Path) -> None:
        compiler = shutil.which("gcc")
        if compiler is None:
            pytest.skip("needs gcc")
        library, self._flag = place / "refuse.so", place / "errno"
        command = [compiler, "-O1", "-shared", "-fPIC", "-o", library, _SOURCE, "-ldl"]
        subprocess.run(command, check=True)
        #: Environment of processes that see the failing disk.
        self.env = {
            "LD_PRELOAD": str(library), "REFUSE_FLAG": str(self._flag),
            "REFUSE_BELOW": f"{folder}/",
        }  # fmt: skip

    def begin(self, number: int) -> None:
        """Fail with this ``errno`` from now on."""
        refuse(self._flag, number)

    def end(self) -> None:
        """Stop failing."""
        self._flag.unlink()
