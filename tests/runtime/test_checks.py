"""A damaged or foreign bundle is rejected before its library is opened."""

from __future__ import annotations

import json
import shutil

import pytest

from tvmopt import host
from tvmopt.errors import ArtifactError
from tvmopt.runtime import ModelMetadata, callers, load
from tvmopt.runtime.metadata import GOLDEN_FILE, LIBRARY_FILE, METADATA_FILE


def _flip_bit(path, position):
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(bytes(data))


def _edit(folder, **changes):
    path = folder / METADATA_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def _refusal(folder):
    with pytest.raises(ArtifactError) as caught:
        load(folder)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_intact_bundle_is_opened(copied, monkeypatch):
    opened = []
    original = callers.library_path
    monkeypatch.setattr(
        callers, "library_path", lambda file: opened.append(file.read()) or original(file)
    )
    load(str(copied))
    assert opened == [(copied / LIBRARY_FILE).read_bytes()]


def _for_amx(folder, instructions):
    """Edit the metadata: a model for a CPU with AMX that uses ``instructions``."""
    target = ModelMetadata.read(folder).target
    flags = sorted({*target["cpu_flags"], "amx_tile", "amx_int8"})
    _edit(folder, target={**target, "cpu_flags": flags}, instructions=instructions)


def _without_amx(folder):
    """Edit the metadata: a model for this CPU without AMX; return the remaining features."""
    target = ModelMetadata.read(folder).target
    flags = [flag for flag in target["cpu_flags"] if not flag.startswith("amx_")]
    _edit(folder, target={**target, "cpu_flags": flags})
    return frozenset(flags)


@pytest.fixture
def linux(copied, monkeypatch):
    """Fake a CPU with AMX under a Linux with given answers to system calls; return the calls."""
    flags = {*ModelMetadata.read(copied).target["cpu_flags"], "amx_tile", "amx_int8"}
    asked = []

    def pretend(answer):
        monkeypatch.setattr(host, "cpu_flags", lambda: frozenset(flags))
        monkeypatch.setattr(host, "_syscall", lambda *number: asked.append(number) or answer)
        return asked

    host._amx_permission.cache_clear()
    yield pretend
    host._amx_permission.cache_clear()


def test_amx_is_asked_for_before_the_library_is_opened(copied, linux, monkeypatch):
    _for_amx(copied, ["tdpbusd"])
    asked, order = linux(0), []
    original = callers.library_path
    monkeypatch.setattr(
        callers, "library_path", lambda file: order.append(list(asked)) or original(file)
    )
    load(copied)
    load(copied)
    assert order == [[(158, 0x1023, 18)]] * 2  # before the open, and once


def test_a_library_without_amx_runs_where_linux_refuses_it(copied, linux):
    _for_amx(copied, ["vpdpbusd"])
    asked = linux(-1)
    load(copied)
    assert len(asked) == 1


def test_no_permission_is_asked_for_a_cpu_without_amx(copied, linux):
    _without_amx(copied)
    asked = linux(-1)
    load(copied)
    assert asked == []


@pytest.mark.usefixtures("never_opened")
class TestNotOpened:
    @pytest.mark.parametrize("name", [LIBRARY_FILE, GOLDEN_FILE])
    @pytest.mark.parametrize("position", [0, 1000, -1])
    def test_one_bit_changed(self, copied, name, position):
        _flip_bit(copied / name, position)
        message = _refusal(copied)
        assert message.startswith(f"{name} must have sha256")
        assert "changed or damaged after it was built" in message

    def test_truncated_library(self, copied):
        path = copied / LIBRARY_FILE
        path.write_bytes(path.read_bytes()[:-1])
        assert f"{LIBRARY_FILE} must have sha256" in _refusal(copied)

    @pytest.mark.parametrize("name", [LIBRARY_FILE, GOLDEN_FILE])
    def test_missing_file(self, copied, name):
        (copied / name).unlink()
        assert f"must hold {name}, but" in _refusal(copied)

    def test_missing_metadata(self, copied):
        (copied / METADATA_FILE).unlink()
        assert "must be a folder with model.json" in _refusal(copied)

    def test_missing_folder(self, tmp_path):
        assert "must be a folder with model.json" in _refusal(tmp_path / "none")

    def test_other_tvm(self, copied, monkeypatch):
        _edit(copied, native=False)
        monkeypatch.setattr("tvmopt.runtime.checks.tvm_version", lambda: "0.26.0")
        message = _refusal(copied)
        assert "that built it, 0.27.0.post1, but got 0.26.0" in message
        assert 'pip install "apache-tvm==0.27.0.post1"' in message

    def test_other_instruction_set(self, copied, monkeypatch):
        monkeypatch.setattr(host, "isa", lambda: "riscv64")
        assert f"was built for {host.platform.machine()}" in _refusal(copied)
        assert "but this machine is riscv64" in _refusal(copied)

    def test_missing_cpu_features_are_listed(self, copied, monkeypatch):
        flags = frozenset(ModelMetadata.read(copied).target["cpu_flags"])
        gone = sorted(flags)[:2]
        monkeypatch.setattr(host, "cpu_flags", lambda: flags - set(gone))
        assert f"lacks {', '.join(gone)}; build it again with target=host" in _refusal(copied)

    @pytest.mark.parametrize("instructions", [[], ["tdpbusd"]])
    def test_a_cpu_without_amx(self, copied, monkeypatch, instructions):
        flags = _without_amx(copied)
        _for_amx(copied, instructions)
        monkeypatch.setattr(host, "cpu_flags", lambda: flags)
        monkeypatch.setattr(host, "_syscall", lambda *arguments: pytest.fail("Linux was asked"))
        assert "lacks amx_int8, amx_tile; build it again with target=host" in _refusal(copied)

    @pytest.mark.parametrize("instruction", ["tdpbusd", "tileloadd", "ldtilecfg"])
    def test_linux_refuses_amx(self, copied, linux, instruction):
        _for_amx(copied, ["vpdpbusd", instruction])
        asked = linux(-1)
        message = _refusal(copied)
        assert message.startswith(f"the model uses AMX ({instruction}), which Linux must permit")
        assert "but it refused; run it on Linux 5.16 or newer" in message
        assert asked == [(158, 0x1023, 18)]

    @pytest.mark.parametrize(
        "text", ["", "{", "[]", "null", '"text"', "{}", '{"format": 1}', "\x00\xff", "[1]", "7"]
    )
    def test_damaged_metadata(self, copied, text):
        (copied / METADATA_FILE).write_text(text)
        assert "must be the metadata of a compiled model, but it is damaged" in _refusal(copied)

    def test_metadata_that_is_no_text(self, copied):
        (copied / METADATA_FILE).write_bytes(b"\xff\xfe\x00{}")
        assert "it is damaged" in _refusal(copied)

    def test_other_format(self, copied):
        _edit(copied, format=3)
        assert "it is damaged (format must be 1 or 2)" in _refusal(copied)

    @pytest.mark.parametrize(
        "changes",
        [
            {"surprise": 1},
            {"inputs": None},
            {"inputs": [{"name": "x"}]},
            {"inputs": [3]},
            {"target": {}},
            {"target": None},
            {"target": {"isa": "x86_64", "mcpu": "haswell", "cpu_flags": None}},
            {"library_sha256": None},
            {"threads": "two"},
            {"tolerance": None},
            {"instructions": None},
            {"instructions": "tdpbusd"},
            {"instructions": [1]},
            {"library_parts": "f0"},
            {"library_parts": ["f0"]},
        ],
        ids=str,
    )
    def test_metadata_of_another_shape(self, copied, changes):
        _edit(copied, **changes)
        assert "fetch or build the model again" in _refusal(copied)

    def test_library_of_another_model(self, copied, two_input_bundle):
        shutil.copyfile(two_input_bundle / LIBRARY_FILE, copied / LIBRARY_FILE)
        assert f"{LIBRARY_FILE} must have sha256" in _refusal(copied)


def test_metadata_round_trip(copied, tmp_path):
    metadata = ModelMetadata.read(copied)
    metadata.write(tmp_path)
    assert ModelMetadata.read(tmp_path) == metadata


def test_metadata_says_which_instructions_are_used(copied, tmp_path):
    assert ModelMetadata.read(copied).instructions == ()
    _edit(copied, instructions=["vpdpbusd", "tdpbusd"])
    metadata = ModelMetadata.read(copied)
    assert metadata.instructions == ("vpdpbusd", "tdpbusd")
    metadata.write(tmp_path)
    assert ModelMetadata.read(tmp_path) == metadata


def test_metadata_of_an_older_version(copied):
    path = copied / METADATA_FILE
    data = json.loads(path.read_text())
    assert data.pop("instructions") == []
    path.write_text(json.dumps(data))
    assert ModelMetadata.read(copied).instructions == ()
    load(copied)


def test_wrong_tvm_pair_is_refused(copied, monkeypatch, never_opened):
    from tvmopt.errors import EnvironmentSetupError

    _edit(copied, native=False)
    versions = {"apache-tvm": "0.27.0.post1", "apache-tvm-ffi": "0.1.15"}
    monkeypatch.setattr("tvmopt.versions.installed", versions.get)
    with pytest.raises(EnvironmentSetupError, match=r"must be .*, but got 0\.1\.15"):
        load(copied)
