"""Stage 4: measure accuracy and latency of compiled models.

On this machine's CPU or GPU, the models and ONNX Runtime run in one process
(:mod:`.evaluate_host`). A board runs the models alone, through TVM's RPC (:mod:`.evaluate_board`).
If neither can run them, tags give the reason.
"""

from __future__ import annotations

from pathlib import Path

from tvmopt.config import EvaluateConfig
from tvmopt.device.target import TargetSpec
from tvmopt.remote import Board
from tvmopt.runtime import ModelMetadata
from tvmopt.runtime.metadata import LIBRARY_FILE
from tvmopt.stages.comparison_table import CANDIDATE, table_row, write_table
from tvmopt.stages.evaluate_board import evaluate_on_board
from tvmopt.stages.evaluate_host import evaluate_on_host
from tvmopt.stages.evaluate_report import FRESH_PROCESS_METRICS, unmeasured_tag
from tvmopt.stages.result import Progress, StageResult


def evaluate(
    config: EvaluateConfig,
    convert_dir: Path,
    bundles: dict[str, Path],
    out_dir: Path,
    progress: Progress,
    data: Path | None = None,
    torch_source: Path | None = None,
) -> StageResult:
    """Measure compiled models against each other and against ONNX Runtime on the same threads.

    A model for a GPU is timed on this machine's GPU, and ONNX Runtime on the CPU.

    Args:
        config: What to measure, and the board, if any.
        convert_dir: Output of the convert stage; holds the float reference.
        bundles: Compiled models by label; must hold ``"candidate"``.
        out_dir: Directory for the comparison table and the latency samples.
        progress: Called after every round.
        data: ``.npz`` or ``.npy`` file; without it random inputs are used, for fidelity only.
        torch_source: How to load the source model of PyTorch, which torch.compile runs on the GPU;
            None for none.

    Raises:
        ConfigError: When the data does not fit the model or the metric, or there is no such board.
        AccuracyError: When the candidate's outputs do not follow the float model's, or, on a board,
            do not match the golden outputs.
        ArtifactError, LimitError: When the board refuses a library, or takes too long.
    """
    board = Board.parse(config.rpc_tracker, config.rpc_key)
    if board is not None:
        return evaluate_on_board(board, config, convert_dir, bundles, out_dir, progress, data)
    target = TargetSpec.from_dict(ModelMetadata.read(bundles[CANDIDATE]).target)
    on_gpu = target.gpu is not None
    if lacking := target.why_unmeasured():
        progress(100, 100, "nothing to measure")
        return _unmeasured(
            lacking,
            "evaluate it on a machine with that GPU"
            if on_gpu
            else "give rpc_tracker and rpc_key of a board",
            bundles,
            out_dir,
        )
    return evaluate_on_host(
        config, convert_dir, bundles, out_dir, progress, data, torch_source, on_gpu
    )


def _unmeasured(reason: str, cure: str, bundles: dict[str, Path], out_dir: Path) -> StageResult:
    """Return the result for libraries that cannot be run: their sizes, and the reason as tags."""
    sizes = {label: (path / LIBRARY_FILE).stat().st_size for label, path in bundles.items()}
    rows = [table_row(label, None, None, size, {}) for label, size in sizes.items()]
    write_table(out_dir, rows, {}, {})
    names = ("latency_ms_p50", "accuracy", "golden_max_deviation", *FRESH_PROCESS_METRICS)
    tags: dict[str, str] = {}
    for name in names:
        tags |= unmeasured_tag(name, reason)
    return StageResult(
        {"library_bytes": float(sizes[CANDIDATE])},
        tags,
        [f"not measured: {reason}; {cure}"],
    )
