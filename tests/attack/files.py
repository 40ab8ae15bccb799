"""Attacks by models, data and parameters that a user is given."""

from __future__ import annotations

import io
import os
import zipfile
from typing import Any

import numpy as np
from onnx.helper import make_graph, make_node

from ..fuzz.seed import BOOL, INT64, make_model, value
from .checkout import Checkout
from .victim import is_unclear, network


def code_in_a_name(checkout: Checkout) -> str:
    """An input's name ends the comment that it is written into, and is run by ``pull``."""
    mark = checkout.folder / "mark"
    name = f"x\n__import__('os').mkdir({str(mark)!r})\n#"  # no comma, which separates inputs
    node = make_node("Add", [name, "other"], ["y"], name="add")
    inputs = [value(name, [2]), value("other", [2])]  # a single input's name is not written
    path = checkout.save(make_model([node], inputs, [value("y", [2])]))
    checkout.run("main", model=path, name="named", strategy="default", threads=1)
    checkout.run("pull", name="named", output=checkout.folder / "pulled")
    return "the code ran" if mark.exists() else ""


def escapes_in_a_name(checkout: Checkout) -> str:
    """The name of a node moves the cursor of the terminal."""
    node = make_node("Det", ["x"], ["y"], name="\x1b[2Jdet")
    path = checkout.save(make_model([node], [value("x", [3, 4, 4])], [value("y", [3])]))
    _, said = checkout.run("convert", model=path)
    return "an escape sequence is printed" if "\x1b[2J" in said else ""


def endless_loop(checkout: Checkout) -> str:
    """A Loop that never ends keeps the conversion for ever."""
    body = make_graph(
        [
            make_node("Identity", ["on"], ["still"], name="still"),
            make_node("Add", ["state", "x"], ["next"], name="next"),
        ],
        "body",
        [value("i", [], INT64), value("on", [], BOOL), value("state", [2])],
        [value("still", [], BOOL), value("next", [2])],
    )
    node = make_node("Loop", ["", "go", "x"], ["y"], name="loop", body=body)
    model = make_model([node], [value("x", [2])], [value("y", [2])], {"go": np.array(True)})
    limit: dict[str, Any] = {"stage_timeout": 15} if checkout.has_limits else {}
    code, _ = checkout.run("main", seconds=120, model=checkout.save(model), name="loop", **limit)
    return "still running after 120 s" if code is None else ""


def fifo_as_model(checkout: Checkout) -> str:
    """A model that is a fifo is waited for."""
    os.mkfifo(checkout.folder / "pipe.onnx")
    return is_unclear(*checkout.run("convert", seconds=90, model=checkout.folder / "pipe.onnx"))


def huge_dimension(checkout: Checkout) -> str:
    """A dimension of 10^20."""
    path = checkout.save(network())
    return is_unclear(
        *checkout.run("convert", seconds=120, model=path, input_shapes=f"x:1x3x8x{10**20}")
    )


def loop_of_links(checkout: Checkout) -> str:
    """A model that is a loop of symbolic links."""
    path = checkout.folder / "loop.onnx"
    path.symlink_to(path)
    return is_unclear(*checkout.run("convert", seconds=90, model=path))


def damaged_data(checkout: Checkout) -> str:
    """Evaluation data whose headers lie."""
    path, model = checkout.folder / "data.npz", checkout.save(network())
    found = ""
    np.savez(path, x=np.zeros((2, 3, 8, 8), np.float32))
    whole = path.read_bytes()
    directory = whole.index(b"PK\x01\x02")
    for damaged in (
        whole[:200], whole.replace(b"(2, 3, 8, 8)", b"(2, 3, 8, 9)"),
        whole.replace(b"'<f4'", b"'|O' "), whole.replace(b"x.npy", b"\xff.npy"),
        whole[:directory + 10] + b"\x63" + whole[directory + 11:],  # an unknown compression
        whole[:6] + b"\x01" + whole[7:directory + 8] + b"\x01" + whole[directory + 9:],  # encrypted
        whole.replace(b"(2, 3, 8, 8), }", b"(2, 3, 8, 8, ((("),
        _archive(b"(1000000000000, 3, 8, 8)"),
    ):  # fmt: skip
        path.write_bytes(damaged)
        found = found or is_unclear(
            *checkout.run("main", model=model, name="net", data=path, strategy="default")
        )
    return found


def _archive(shape: bytes) -> bytes:
    """Return an archive whose one array has the shape in its header, and no values."""
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': " + shape + b", }"
    header = header.ljust(117) + b"\n"
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    return file.getvalue()


def absurd_threads(checkout: Checkout) -> str:
    """A thread count of 5,000 starts as many threads, and work that does not end."""
    path = checkout.save(network())
    return is_unclear(
        *checkout.run("main", seconds=90, model=path, name="net", threads=5_000, strategy="default")
    )


def nested_yaml(checkout: Checkout) -> str:
    """A YAML file whose lists lie 2,000 deep."""
    return _searched(checkout, f"topk: {'[' * 2_000}{']' * 2_000}")


def alias_bomb(checkout: Checkout) -> str:
    """A YAML file of nested aliases: 9^10 texts, all of which the refusal writes to quote it."""
    text = "[float8]"
    for n in range(10):
        text = f"[&a{n} {text}{f', *a{n}' * 8}]"
    return _searched(checkout, f"dtypes: {text}")


def _searched(checkout: Checkout, text: str) -> str:
    """Search a space that must be refused; say what is wrong with the refusal."""
    space, path = checkout.folder / "space.yaml", checkout.save(network())
    space.write_text(text)
    return is_unclear(
        *checkout.run("search", seconds=40, model=path, name="s", space=space, trials=1)
    )
