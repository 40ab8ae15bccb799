"""A compiled model that differs from its source is not promoted."""

from __future__ import annotations

import types

import numpy as np
import pytest

from tvmopt.errors import AccuracyError
from tvmopt.runtime.interface import SourceColumn, SourceInterface
from tvmopt.runtime.metadata import TensorSpec
from tvmopt.stages.heldout import check_source

_INTERFACE = SourceInterface(
    "sklearn", "models:/m/1", None, (SourceColumn("a", "x", 0),), "labels", "label",
    ("no", "yes"), "<U3",
)  # fmt: skip


class _Model:
    """A model that says yes above 0."""

    metadata = types.SimpleNamespace(
        interface=_INTERFACE, inputs=(TensorSpec("x", (4, 1), "float32"),)
    )

    def __call__(self, inputs):
        share = inputs["x"][:, 0]
        return {"probabilities": np.stack([1 - share, share], 1), "label": (share > 0).astype(int)}


def _rows(tmp_path, values, labels, shares):
    arrays = {"x": np.float32(values)[:, None], "source/": np.array(labels)}
    np.savez(tmp_path / "rows.npz", **arrays, **{"source/probabilities": shares})
    return tmp_path / "rows.npz"


def test_equal_answers_pass(tmp_path):
    values = np.array([-0.5, 0.25, 0.75])
    shares = np.stack([1 - values, values], 1)
    check_source(_Model(), _rows(tmp_path, values, ["no", "yes", "yes"], shares))


@pytest.mark.parametrize(
    ("labels", "shift", "message"),
    [(["no", "no"], 0.0, "2 rows, 1 labels differ"), (["no", "yes"], 2e-5, "difference 2e-05")],
)
def test_others_are_refused(tmp_path, labels, shift, message):
    values = np.array([-0.5, 0.25])
    shares = np.stack([1 - values, values], 1) + shift
    with pytest.raises(AccuracyError, match=rf"must equal its source models:/m/1.*{message}"):
        check_source(_Model(), _rows(tmp_path, values, labels, shares))


def test_data_of_the_user_has_no_predictions(tmp_path):
    np.savez(tmp_path / "rows.npz", x=np.zeros((2, 1), "float32"))
    check_source(_Model(), tmp_path / "rows.npz")
