"""Word and character error rates of texts that an output spells."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvmopt.errors import ConfigError
from tvmopt.evaluate.accuracy import AccuracyMeter
from tvmopt.metrics.check import check_metric
from tvmopt.metrics.error_rates import decode, read_alphabet, require_jiwer, symbols_of
from tvmopt.metrics.metric import find_metric
from tvmopt.parameters.groups import MetricParameters
from tvmopt.stages.metric_files import digest_of_file, with_whole_paths

SYMBOLS = ["", "a", "b", " "]


def _spelt(*rows, classes=4):
    """Return scores (samples, steps, classes) with these classes."""
    return np.eye(classes, dtype=np.float32)[np.array(rows)]


@pytest.fixture
def alphabet(tmp_path):
    path = tmp_path / "symbols.txt"
    path.write_text("a\nb\n \n")
    return path


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ([1, 1, 0, 1, 2], "aab"),
        ([0, 0, 0, 0, 0], ""),
        ([1, 3, 3, 0, 2], "a b"),
        ([1, 2, 1, 2, 2], "abab"),
    ],
)
def test_best_path(row, text) -> None:
    assert decode(_spelt(row), SYMBOLS, 0).tolist() == [text]


@given(st.text("ab ", max_size=8), st.sampled_from([0, -1]), st.integers(1, 3))
def test_any_text_survives(text, blank, repeats) -> None:
    lines = ["a", "b", " "]
    symbols = symbols_of(lines, 4, blank)
    none = blank % 4
    steps = [one for char in text for one in (none, *[symbols.index(char)] * repeats)]
    assert decode(_spelt([*steps, none]), symbols, blank).tolist() == [text]


@pytest.mark.parametrize(
    ("lines", "blank", "symbols"),
    [
        (["a", "b", "c"], 0, ["", "a", "b", "c"]),
        (["a", "b", "c"], -1, ["a", "b", "c", ""]),
        (["a", "<blank>", "b", "c"], 1, ["a", "", "b", "c"]),
    ],
)
def test_symbols_with_and_without_the_blank(lines, blank, symbols) -> None:
    assert symbols_of(lines, 4, blank) == symbols


@pytest.mark.parametrize(
    ("classes", "blank", "message"),
    [
        (9, 0, "must have 9 lines, a symbol for each class of the output, or 8 .*, but has 3"),
        (4, 4, "metric_blank must be below 4, the classes, but got 4"),
    ],
)
def test_symbols_that_do_not_fit(classes, blank, message) -> None:
    with pytest.raises(ConfigError, match=message):
        symbols_of(["a", "b", "c"], classes, blank)


def test_lines_of_the_file(tmp_path) -> None:
    path = tmp_path / "symbols.txt"
    path.write_bytes("a\r\n \n\u00e9\n\nz".encode())
    assert read_alphabet(path) == ["a", " ", "\u00e9", "", "z"]
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="metric_alphabet must be a UTF-8 file"):
        read_alphabet(path)


def test_rates_against_counts(alphabet) -> None:
    """ "a b" is spelt "a a", one of three characters and one of two words; "ab" is right."""
    pytest.importorskip("jiwer")
    want = _spelt([1, 3, 2, 0], [1, 2, 0, 0])
    got = _spelt([1, 3, 1, 0], [1, 2, 0, 0])
    labels = np.array(["a b", "ab"])
    for name, rate in (("cer", 1 / 5), ("wer", 1 / 3)):
        metric = find_metric(f"{name}@y", "", ("x", "y"), str(alphabet))
        meter = AccuracyMeter(metric, has_labels=True)
        for at in range(2):
            rows = slice(at, at + 1)
            pair = ([np.zeros(1), side[rows]] for side in (got, want))
            meter.add(*pair, labels[rows], 1)
        found = meter.result()
        assert (found.accuracy, found.reference) == (pytest.approx(rate), 0)
        assert found.drop == pytest.approx(rate)
        assert not found.larger_is_better


@pytest.mark.parametrize(
    ("output", "labels", "message"),
    [
        (np.zeros((1, 2, 4)), np.array([1]), "labels must be strings for metric cer"),
        (np.zeros((1, 4)), np.array(["a"]), r"an output of scores .*got float64 \(1, 4\)"),
        (np.zeros((1, 2, 9)), np.array(["a"]), "metric_alphabet must have 9 lines"),
    ],
)
def test_outputs_and_labels_that_do_not_fit(alphabet, monkeypatch, output, labels, message) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    metric = find_metric("cer", "", ("y",), str(alphabet))
    with pytest.raises(ConfigError, match=message):
        metric.kept([output], labels)


def test_missing_library_is_one_line(monkeypatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r'needs jiwer.*run: pip install "tvmopt\[text\]"$'):
        require_jiwer("cer")


@pytest.mark.parametrize(("metric", "alphabet"), [("cer", ""), ("wer@y", ""), ("f1", "a.txt")])
def test_alphabet_goes_with_error_rates(metric, alphabet) -> None:
    with pytest.raises(ConfigError, match=r"metric_alphabet must name a file .* for wer and cer"):
        check_metric(metric, "", alphabet)


def test_changed_alphabet_is_another_evaluation(alphabet, monkeypatch) -> None:
    monkeypatch.chdir(alphabet.parent)
    asked = with_whole_paths(MetricParameters(metric="cer", metric_alphabet=alphabet.name))
    assert asked.metric_alphabet == str(alphabet)
    before = digest_of_file(asked)
    alphabet.write_text("a\nb\nc\n")
    assert before != digest_of_file(asked)
    assert digest_of_file(MetricParameters()) == ""
    alphabet.unlink()
    with pytest.raises(ConfigError, match="metric_alphabet must be an existing file"):
        with_whole_paths(asked)
