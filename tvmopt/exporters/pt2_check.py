"""Refuse ``.pt2`` files whose reading can run code of whoever wrote them.

``torch.export.load`` unpickles tensors, evaluates the text of symbolic sizes, loads compiled
libraries, and calls any function of ``torch`` that a node names. A program that torch.export wrote
of a model needs none of that: its tensors are plain, its nodes are operators.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tvmopt.errors import ModelError, in_one_line

_MOST_JSON_BYTES = 1 << 28
# Members with compiled code, or with objects that only unpickling makes.
_REFUSED_MEMBER = re.compile(r"aotinductor|\.so$|\.dll$|custom_obj|opaque_obj|executorch|mtia")
# Of Python's operators only arithmetic on sizes: operator.call and attrgetter reach any object. Of
# PyTorch's not those that map a file of the machine.
_OPERATOR = re.compile(
    r"torch\.ops\.(aten|prim|prims|torchvision)"
    r"\.(__i?(and|or|xor|lshift|rshift)__|(?!__|from_file)\w+)(\.(?!_)\w+)?|"
    r"_?operator\.(add|sub|mul|truediv|floordiv|mod|pow|neg|pos|abs|eq|ne|lt|le|gt|ge|and_|or_|xor|"
    r"not_|lshift|rshift|getitem)|math\.\w+|torch\.(sym_\w+|_sym_\w+)"
)
# Sizes: whole numbers, symbols such as s0 and u1, and functions of sizes.
_NAME = re.compile(
    r"[suz][a-z]*\d+|Max|Min|FloorDiv|CeilDiv|CleanDiv|Mod|PythonMod|ModularIndexing|Integer|"
    r"TruncToInt|FloorToInt|CeilToInt|IntTrueDiv|Eq|Ne|True|False|Mul|Add|Pow|Rational"
)
_SYMBOL = re.compile(r"Symbol\('[suz][a-z]*\d+'(, (positive|integer|nonnegative)=(True|False))*\)")
_SIZE = re.compile(r"[\w\s+\-*/(),<>=&|~]*")


def why_not_safe(path: Path) -> str | None:
    """Return why a ``.pt2`` file must be trusted to be read; None if it need not be.

    Raises:
        ModelError: When it is no archive, or damaged.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                if _REFUSED_MEMBER.search(member.filename.lower()):
                    return f"its file holds {Path(member.filename).name!r}"
                if member.filename.endswith(".json"):
                    if member.file_size > _MOST_JSON_BYTES:
                        return f"its {Path(member.filename).name!r} is too large to be checked"
                    reason = _why(json.loads(archive.read(member)))
                    if reason:
                        return reason
    except (zipfile.BadZipFile, ValueError, OSError, RecursionError) as error:
        raise ModelError(
            f"a .pt2 file must be an archive of torch.export.save, but '{path.name}' is not: "
            f"{in_one_line(error)}"
            "; write it with torch.export.save"
        ) from error
    return None


def _why(data: Any) -> str | None:
    pending = [data]
    while pending:
        one = pending.pop()
        if isinstance(one, list):
            pending.extend(one)
        elif isinstance(one, dict):
            target = one.get("target")
            if "inputs" in one and target is not None and not _OPERATOR.fullmatch(str(target)):
                return f"its program calls {str(target)[:60]!r}"
            size = one.get("expr_str")
            if size is not None and not _is_size(str(size)):
                return f"its program holds the size {str(size)[:60]!r}"
            pending.extend(one.values())
    return None


def _is_size(text: str) -> bool:
    text = _SYMBOL.sub("s0", text)
    names = re.findall(r"[A-Za-z_]\w*", text)
    return bool(_SIZE.fullmatch(text)) and all(_NAME.fullmatch(name) for name in names)


@contextmanager
def plain_tensors_only() -> Iterator[None]:
    """Let ``torch.load`` unpickle tensors alone, whatever its caller asks."""
    import torch

    load = torch.load

    def load_plain(*args: Any, **options: Any) -> Any:
        return load(*args, **{**options, "weights_only": True})

    torch.load = load_plain
    try:
        yield
    finally:
        torch.load = load
