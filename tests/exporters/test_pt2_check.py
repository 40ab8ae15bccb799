"""Files of torch.export whose reading could run code are refused without trust."""

from __future__ import annotations

import json
import zipfile

import pytest

from tvmopt.errors import ModelError
from tvmopt.exporters.pt2_check import why_not_safe


def _file(tmp_path, **members):
    path = tmp_path / "model.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def _program(target="torch.ops.aten.linear.default", size="Symbol('s0', positive=True)"):
    node = {"target": target, "inputs": [], "outputs": []}
    return json.dumps({"graph": {"nodes": [node]}, "sizes": [{"as_expr": {"expr_str": size}}]})


@pytest.mark.parametrize("size", ["s0", "2*s0 + 1", "Max(1, s1)", "Mul(Integer(2), Symbol('s0'))"])
def test_a_program_of_operators_is_safe(tmp_path, size):
    assert why_not_safe(_file(tmp_path, **{"m/models/model.json": _program(size=size)})) is None


@pytest.mark.parametrize(
    "target",
    [
        "torch.ops.aten.__and__.Tensor",
        "torch.ops.aten._softmax.default",
        "torch.ops.torchvision.nms",
        "_operator.floordiv",
        "math.ceil",
        "torch.sym_max",
    ],
)
def test_operators_and_arithmetic_on_sizes_are_safe(tmp_path, target):
    assert why_not_safe(_file(tmp_path, **{"m/models/model.json": _program(target)})) is None


@pytest.mark.parametrize(
    "target",
    [
        "torch.serialization.os.system",
        "torch.load",
        "torch.ops.mine.run",
        "os.system",
        "operator.call",
        "_operator.attrgetter",
        "operator.methodcaller",
        "torch.ops.aten.from_file.default",
        "torch.ops.aten.__class__.mro",
        "torch.ops.aten.linear.__init__",
        "torch.ops.aten.linear.default.__init__",
    ],
)
def test_another_call_needs_trust(tmp_path, target):
    path = _file(tmp_path, **{"m/models/model.json": _program(target)})
    assert why_not_safe(path) == f"its program calls {target!r}"


@pytest.mark.parametrize(
    "size", ["__import__('os').system('x')", "s0.__class__", "Symbol('x; y')", "exec(s0)"]
)
def test_another_size_needs_trust(tmp_path, size):
    path = _file(tmp_path, **{"m/models/model.json": _program(size=size)})
    assert "its program holds the size" in why_not_safe(path)


@pytest.mark.parametrize(
    "name", ["m/data/aotinductor/model/x.cpp", "m/data/lib.SO", "m/data/constants/custom_obj_0"]
)
def test_compiled_code_and_objects_need_trust(tmp_path, name):
    assert "its file holds" in why_not_safe(_file(tmp_path, **{name: b""}))


def test_what_is_no_archive(tmp_path):
    (tmp_path / "model.pt2").write_bytes(b"no archive")
    with pytest.raises(ModelError, match=r"must be an archive of torch\.export\.save"):
        why_not_safe(tmp_path / "model.pt2")
