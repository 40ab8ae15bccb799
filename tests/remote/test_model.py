"""A compiled model on a board computes what it computes here."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tvmopt.digest import sha256_file
from tvmopt.errors import AccuracyError, ArtifactError
from tvmopt.remote.model import RemoteModel, describe
from tvmopt.remote.session import open_session
from tvmopt.runtime import ModelMetadata, load
from tvmopt.runtime.bundle import copy_bundle, write_golden
from tvmopt.runtime.model import read_golden


@pytest.mark.parametrize("name", ["conv_bundle", "two_input_bundle"])
def test_same_numbers(board, request, name):
    bundle = request.getfixturevalue(name)
    inputs, _ = read_golden(bundle, ModelMetadata.read(bundle))
    here = load(bundle)
    with open_session(board) as session:
        there = RemoteModel(session, bundle)
        for scale in (1, 2):
            given = {n: a * scale if a.dtype.kind == "f" else a for n, a in inputs.items()}
            wanted, got = here(given), there(given)
            assert got.keys() == wanted.keys()
            for a, b in zip(got, wanted, strict=True):
                np.testing.assert_array_equal(a, b)
        assert there.check_golden(bundle) == here.check_golden(bundle)
        seconds = there.time(inputs, 7)
        assert len(seconds) == 7
        assert all(0 < s < 1 for s in seconds)
        assert "linux" in describe(session)


def test_wrong_numbers_are_refused(board, conv_bundle, tmp_path):
    metadata = ModelMetadata.read(conv_bundle)
    inputs, outputs = read_golden(conv_bundle, metadata)
    copy_bundle(conv_bundle, tmp_path)
    golden = write_golden(tmp_path, inputs, [outputs[0] + np.float32(0.1)])
    dataclasses.replace(metadata, golden_sha256=sha256_file(golden)).write(tmp_path)
    with open_session(board) as session:
        there = RemoteModel(session, tmp_path)
        with pytest.raises(AccuracyError, match="output 'y' must equal the golden output"):
            there.check_golden(tmp_path)


def test_library_that_the_board_refuses(board, broken_bundle):
    refused = r"board must load the library, but it refused it \(.*too short\); check that target"
    with pytest.raises(ArtifactError, match=refused), open_session(board) as session:
        RemoteModel(session, broken_bundle)


def test_damaged_library_is_not_uploaded(board, broken_bundle):
    (broken_bundle / "model.so").write_bytes(b"changed")
    with (
        open_session(board) as session,
        pytest.raises(ArtifactError, match=r"model\.so must have sha256"),
    ):
        RemoteModel(session, broken_bundle)
