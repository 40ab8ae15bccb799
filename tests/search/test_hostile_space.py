"""Damaged or malicious search-space files are rejected with a one-line error."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from tvmopt.choices import DTYPES, GRANULARITIES, STRATEGIES, is_layout
from tvmopt.errors import ConfigError
from tvmopt.printable import is_printable
from tvmopt.quantize.roofline import roofline
from tvmopt.search.choose import choose_dtypes, choose_efforts, choose_layouts
from tvmopt.search.declared import read_declared
from tvmopt.search.effort import Effort
from tvmopt.search.generate import generate_space

from ..fuzz.json_mutations import damaged, mutated

SPACE = {
    "dtypes": ["float32", "int8"],
    "skip_layers": {"int8": ["", "0,3", [1, 2], 4]},
    "layouts": ["NHWC", "NCHW16c"],
    "strategies": ["default", "fast"],
    "granularities": ["operator"],
    "topk": [5, 20],
    "metaschedule_trials": 32,
}
#: Texts that YAML parses as another type, or that a parser may fail on.
WORDS = [
    "*a", "&a [*a]", "!!binary x", "!!timestamp 2001-99-99", "2001-01-01 00:00:00 +99:99",
    "0001-01-01 00:00:00 +23:59", "!!int x", "!!int ''", "!!float x", "0x" + "f" * 5000, "0b",
    "0o9", "1_0", "190:20:30", ".inf", ".nan", "~", "on", "? [a]", "? {a: b}\n: c", "<<: [1]",
    "!!set {a}",
    "!!omap [1]", "!!pairs x", "!!python/object/apply:os.system [id]", "!<tag:x> y", "--- a",
    "%YAML 9.9",
    "{" * 30, "[" * 30, "\x00", "\ufeff", "\x85", "\u2028", '"\\x1b[31m"', "'a\n\n b'", "a: b: c",
    "- - - -", "|\n x", ">-\n x", "9" * 5000, "10000000000", "-5", "1e400", "float32", "int8",
]  # fmt: skip


def _written(chance: random.Random) -> bytes:
    text = yaml.safe_dump(SPACE)
    kind = chance.randrange(4)
    if kind == 0:
        return damaged(text, chance)
    if kind == 1:
        data: Any = mutated(SPACE, chance)
        try:
            return yaml.dump(data, allow_unicode=True).encode("utf-8", "surrogatepass")
        except (ValueError, yaml.YAMLError):  # more digits than Python prints
            return damaged(text, chance)
    for _ in range(chance.choice([1, 1, 2, 3])):
        lines = text.split("\n")
        at, word = chance.randrange(len(lines)), chance.choice(WORDS)
        head, colon, _ = lines[at].partition(chance.choice([": ", "- "]))
        lines[at] = f"{head}{colon}{word}" if kind == 2 else f"{word}: {lines[at]}"
        if chance.random() < 0.3:
            lines.insert(at, chance.choice([chance.choice(lines), word, f"topk: {word}"]))
        text = "\n".join(lines)
    return text.encode("utf-8", "surrogatepass")


@pytest.mark.timeout(10)
@pytest.mark.parametrize("seed", range(200))
def test_mutated_spaces_are_refused_or_valid(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "space.yaml"
    path.write_bytes(_written(random.Random(seed)))
    try:
        declared = read_declared(str(path), "", "", "", "", 20)
        dtypes = choose_dtypes(declared, roofline(("avx512_vnni",)), quantised=False)
        space = generate_space(declared, dtypes, convolutions=3, sensitivity=None)
    except ConfigError as error:
        assert is_printable(str(error))
        assert len(str(error)) < 1000
        return
    assert set(dtypes) <= set(DTYPES)
    assert all(map(is_layout, choose_layouts(declared, 3)))
    for effort in choose_efforts(declared):
        assert effort.strategy in STRATEGIES
        assert effort.granularity in GRANULARITIES
        assert 0 <= effort.size <= 1_000_000
        assert Effort.parse(str(effort)) == effort
    assert all(is_printable(s) for sets in declared.skip_layers.values() for s in sets)
    assert len(space) < 100_000


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("topk: 0x" + "f" * 5000, "topk"),
        ("topk: 9999999999999", "topk"),
        ("metaschedule_trials: 9999999999999", "metaschedule_trials"),
        ("skip_layers: {int8: [\"a\\x1b[31m\"]}", "skip_layers"),
        ("skip_layers: {int8: [0x" + "f" * 5000 + "]}", "skip_layers"),
        ("dtypes: [0x" + "f" * 5000 + "]", "dtypes"),
        ("dtypes: [" + "x" * 50_000 + "]", "dtypes"),
        ("skip_layers: " + "x" * 50_000, "skip_layers"),
        ("when: 0001-01-01 00:00:00 +23:59", "space must be a YAML file"),
    ],
)  # fmt: skip
def test_values_that_no_search_takes(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "space.yaml").write_text(text)
    with pytest.raises(ConfigError, match=words) as caught:
        read_declared(str(tmp_path / "space.yaml"), "", "", "", "", 20)
    assert is_printable(str(caught.value))
    assert len(str(caught.value)) < 1000
