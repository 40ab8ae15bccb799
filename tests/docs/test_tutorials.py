"""The tutorials run as they are printed, and print what they show."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.tutorials import (
    FOLDER,
    NAMES,
    SHOWN_WIDTH,
    Block,
    Ran,
    Tutorial,
    likeness,
    read_blocks,
    shortened,
    taken_ports,
    with_outputs,
)

_PAGE = """Text.

```sh
echo one
```

```text
one
```

% until: two
% after: port 5001
```python
print("two")
```

Text between.

```text
not an output
```
"""


def test_blocks_have_options_and_outputs():
    first, second = read_blocks(_PAGE)
    assert (first.kind, first.line, first.text, first.output) == ("sh", 3, "echo one", "one")
    assert second.options == {"until": "two", "after": "port 5001"}
    assert second.output is None


def test_an_open_fence_is_refused():
    with pytest.raises(ValueError, match="the fence of line 1 must be closed"):
        read_blocks("```sh\necho\n")


def test_outputs_are_replaced():
    first, second = read_blocks(_PAGE)
    text = with_outputs(_PAGE, [Ran(first, "1\n2"), Ran(second, "two")])
    assert "```text\n1\n2\n```" in text
    assert "not an output" in text


def test_long_lines_are_cut_between_words():
    assert shortened("short") == "short"
    line = shortened("word " * 50)
    assert line.endswith("word ...")
    assert len(line) <= SHOWN_WIDTH


def test_likeness_ignores_numbers():
    assert likeness("tune 49.9 s, 11 tasks", "tune 7.1 s, 9 tasks") == 1
    assert likeness("tune 49.9 s, 11 tasks", "error: no such model") < 0.5


def test_every_page_is_run_and_shows_output():
    pages = {path.stem for path in FOLDER.glob("*.md")} - {"index"}
    assert pages == set(NAMES)
    for name in NAMES:
        shown = [
            b for b in read_blocks((FOLDER / f"{name}.md").read_text()) if b.output is not None
        ]
        assert shown
        assert all(block.output.strip() for block in shown), f"{name}: an output is empty"


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", NAMES)
def test_tutorial(name: str, tmp_path: Path):
    tutorial = Tutorial(name, tmp_path)
    if taken := taken_ports(tutorial.blocks):
        pytest.skip(f"something else listens at port {taken[0]}")
    not_run: list[Block] = []
    for ran in tutorial.run():
        if ran.printed is None:
            not_run.append(ran.block)
        elif ran.block.output is not None:
            assert likeness(ran.block.output, ran.printed) > 0.6, (
                f"{name}.md, line {ran.block.line} shows\n{ran.block.output}\nbut it printed\n"
                f"{ran.printed}\nupdate the page: python -m tests.docs.tutorials --write {name}"
            )
    assert len(not_run) < len(tutorial.blocks) / 2 or name == "gpu"
