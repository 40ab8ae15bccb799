"""The quickstart notebook runs from top to bottom, and prints what its text promises."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "quickstart.ipynb"


@pytest.fixture(
    scope="module",
    # Without a search, ``main`` runs the same stages in a third of the time.
    params=['main(threads=1, strategy="default")', pytest.param("main()", marks=pytest.mark.slow)],
)
def executed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> nbformat.NotebookNode:
    """Execute the notebook in its own folder and store."""
    folder = tmp_path_factory.mktemp("quickstart")
    with pytest.MonkeyPatch.context() as patch:
        for name in [n for n in os.environ if n.startswith(("MLFLOW_", "TVM_"))]:
            patch.delenv(name)
        patch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
        for name in ("TMPDIR", "IPYTHONDIR", "JUPYTER_DATA_DIR"):
            patch.setenv(name, str(folder))
        notebook = nbformat.read(NOTEBOOK, as_version=4)
        cell = _cell(notebook, "result = main()")
        cell.source = cell.source.replace("main()", request.param)
        client = NotebookClient(
            notebook,
            kernel_name="python3",
            timeout=None,
            resources={"metadata": {"path": str(folder)}},
        )
        return client.execute()


def _cell(notebook: nbformat.NotebookNode, word: str) -> nbformat.NotebookNode:
    (cell,) = (c for c in notebook.cells if c.cell_type == "code" and word in c.source)
    return cell


def _printed(cell: nbformat.NotebookNode) -> str:
    return "".join(o.text for o in cell.outputs if o.get("name") == "stdout")


def test_stored_without_outputs() -> None:
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    assert not any(c.outputs or c.execution_count for c in cells if c.cell_type == "code")


def test_main_prints_the_table_and_promotes(executed: nbformat.NotebookNode) -> None:
    printed = _printed(_cell(executed, "result = main("))
    assert "ONNX Runtime fp32" in printed
    assert "version 1 has alias champion" in printed


def test_runs_are_finished(executed: nbformat.NotebookNode) -> None:
    (output,) = _cell(executed, "search_runs").outputs
    assert output.data["text/plain"].count("FINISHED") == 6


def test_champion_equals_onnx_runtime(executed: nbformat.NotebookNode) -> None:
    (output,) = _cell(executed, "comparison =").outputs
    comparison = ast.literal_eval(output.data["text/plain"])
    assert comparison["largest deviation"] < 1e-3
    assert comparison["same digit"] == 1
    assert comparison["accuracy"] > 0.98


def test_contenders_are_measured(executed: nbformat.NotebookNode) -> None:
    lines = _printed(_cell(executed, "interleave")).splitlines()
    assert [line[:24].strip() for line in lines] == [
        "tvmopt",
        "tvmopt through predict",
        "ONNX Runtime",
    ]


def test_pulled_folder_has_a_sample(executed: nbformat.NotebookNode) -> None:
    assert "check_golden" in _printed(_cell(executed, "pull("))
