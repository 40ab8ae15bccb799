"""The site builds without a warning, and what scripts write into it is up to date."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs import make_benchmark_pages, make_drawings
from tvmopt.parameters import ENTRY_POINTS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
_NEEDED = ("sphinx", "myst_parser", "furo", "sphinx_copybutton")
_LACKING = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
_BUILD = (sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html")
_LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)|src=\"([^\"]+)\"")
_MOST_README_LINES = 150
_MOST_PNG_BYTES = 200_000


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site with warnings as errors."""
    if _LACKING:
        pytest.skip(f'{", ".join(_LACKING)} not installed: pip install -e ".[docs]"')
    out = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [*_BUILD, "-d", out / "trees", DOCS, out / "html"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return out / "html"


def test_site_builds_without_a_warning(site: Path):
    assert (site / "index.html").is_file()


def test_every_page_is_in_the_site(site: Path):
    sources = {path.relative_to(DOCS).with_suffix("") for path in DOCS.rglob("*.md")}
    built = {path.relative_to(site).with_suffix("") for path in site.rglob("*.html")}
    assert sources <= built


@pytest.mark.parametrize("entry", ENTRY_POINTS)
def test_parameter_tables_list_every_parameter(site: Path, entry: str):
    text = (site / "reference" / "parameters.html").read_text()
    section = text.split(f'<section id="{entry}">')[1].split("</section>")[0]
    shown = re.findall(r'<td><p><code[^>]*><span class="pre">(\w+)</span></code></p></td>', section)
    assert shown == [parameter.name for parameter in ENTRY_POINTS[entry]]


def test_benchmark_pages_are_up_to_date():
    for path, text in make_benchmark_pages.files().items():
        assert path.read_text() == text, f"{path.name}: run python -m docs.make_benchmark_pages"


def test_a_row_of_another_length_is_refused(tmp_path: Path):
    (tmp_path / "one.json").write_text(
        '{"title": "t", "date": "d", "machine": "m", "versions": {}, "about": [], "record": "r",'
        ' "headlines": [], "tables": [{"title": "x", "command": "", "commit": "", "notes": [],'
        ' "columns": ["a", "b"], "rows": [["1"]]}]}'
    )
    with pytest.raises(ValueError, match=r"must have 2 cells, but one of 'x' in one.json has 1"):
        make_benchmark_pages.read_results(tmp_path)


def test_every_table_cell_stands_in_its_record():
    """No number of a page is invented: the dated record holds each cell."""
    for result in make_benchmark_pages.read_results():
        record = (ROOT / result.record).read_text()
        for table in result.tables:
            missing = [cell for row in table.rows for cell in row if cell not in record]
            assert not missing, f"{result.stem}, {table.title}: {missing}"


def test_drawings_are_up_to_date():
    drawn = {draw.__name__: draw().svg() for draw in make_drawings.DRAWINGS}
    assert {p.stem: p.read_text() for p in make_drawings.FOLDER.glob("*.svg")} == drawn


def test_readme_is_short_and_keeps_the_commands_of_ci():
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= _MOST_README_LINES
    for mark, word in (("main", "mlflow run ."), ("test", "pytest")):
        at = lines.index(f"<!-- ci:{mark} -->")
        assert lines[at + 1].startswith("```")
        assert word in lines[at + 2]
        assert lines[at + 3] == "```"


def test_links_of_the_readme_lead_to_files():
    found = [a or b for a, b in _LINK.findall((ROOT / "README.md").read_text())]
    assert len(found) > 20
    assert [link for link in found if not (ROOT / link).exists()] == []


def test_pictures_are_small():
    sizes = {path.name: path.stat().st_size for path in (DOCS / "images").glob("*.png")}
    assert sizes
    assert max(sizes.values()) < _MOST_PNG_BYTES, sizes
