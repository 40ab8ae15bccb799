"""A digest depends on every part of a request, and on nothing else."""

from __future__ import annotations

import hashlib
import shutil

import pytest

from tvmopt import digest
from tvmopt.digest import canonical_json, sha256_file, sha256_text, stage_digest

CONFIG = {"target": {"mcpu": "haswell"}, "trials": 4}
INPUTS = {"model": "aa", "data": "bb"}


def test_order_of_keys_does_not_matter():
    assert stage_digest("tune", CONFIG, INPUTS) == stage_digest(
        "tune", dict(reversed(CONFIG.items())), dict(reversed(INPUTS.items()))
    )


@pytest.mark.parametrize(
    ("stage", "config", "inputs"),
    [
        ("build", CONFIG, INPUTS),
        ("tune", {**CONFIG, "trials": 5}, INPUTS),
        ("tune", {**CONFIG, "target": {"mcpu": "znver4"}}, INPUTS),
        ("tune", CONFIG, {**INPUTS, "model": "ab"}),
        ("tune", CONFIG, {"model": "bb", "data": "aa"}),
        ("tune", CONFIG, {"model": "aa"}),
        ("tune", {**CONFIG, **INPUTS}, {}),
    ],
)
def test_anything_else_matters(stage, config, inputs):
    assert stage_digest(stage, config, inputs) != stage_digest("tune", CONFIG, INPUTS)


def test_versions_and_code_matter(monkeypatch):
    before = stage_digest("tune", CONFIG, INPUTS)
    with monkeypatch.context() as patch:
        patch.setattr(digest, "installed", lambda name: "0.0")
        assert stage_digest("tune", CONFIG, INPUTS) != before
    monkeypatch.setattr(digest, "code_digest", lambda: "other")
    assert stage_digest("tune", CONFIG, INPUTS) != before


def test_code_digest_sees_content_and_names(monkeypatch, tmp_path):
    root = tmp_path / "tvmopt"
    shutil.copytree(
        digest.Path(digest.__file__).parent, root, ignore=shutil.ignore_patterns("__pycache__")
    )
    monkeypatch.setattr(digest, "__file__", str(root / "digest.py"))
    seen = [digest.code_digest.__wrapped__()]
    assert seen == [digest.code_digest()]
    (root / "compare.py").write_text((root / "compare.py").read_text() + "\n")
    seen.append(digest.code_digest.__wrapped__())
    (root / "compare.py").rename(root / "compared.py")
    seen.append(digest.code_digest.__wrapped__())
    assert len(set(seen)) == 3


def test_nan_has_no_canonical_form():
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json({"x": float("nan")})


def test_hashes_are_sha256(tmp_path):
    (tmp_path / "f").write_bytes(b"abc")
    assert sha256_file(tmp_path / "f") == hashlib.sha256(b"abc").hexdigest() == sha256_text("abc")
