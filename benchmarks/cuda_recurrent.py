"""Recurrent layers on a GPU against PyTorch: ``python -m benchmarks.cuda_recurrent FOLDER``.

``--build`` compiles the libraries into FOLDER; it needs onnx, and no GPU. Without it the libraries
are loaded, checked against PyTorch's layer with the same weights (cuDNN), and timed beside it. A
GRU that resets first does not exist in PyTorch. 100 steps; ours replays a CUDA graph, PyTorch's
layer is called as it is and from a CUDA graph. Neither uses TF32.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.recurrent_layers import GATES, Layer, layers

TARGET = "nvidia-h200"
_SIZES = ((1, (256, 512)), (16, (512,)), (64, (512,)))
# PyTorch's order of the gates, as places in ONNX's order.
_ORDER = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}


@dataclasses.dataclass(frozen=True)
class Case:
    """A layer in a dtype."""

    layer: Layer
    dtype: str

    @property
    def file(self) -> str:
        """Name of the library."""
        layer = self.layer
        return f"{layer.cell}-{layer.batch}-{layer.hidden}-{self.dtype}.so"


def cases() -> list[Case]:
    """Return the rows of the table: layers that PyTorch has."""
    found = []
    for batch, hidden in _SIZES:
        for layer in layers(hidden, batch):
            if layer.cell != "GRU" or layer.late_reset:
                found.append(Case(layer, "float32"))
                if layer.hidden == 512 and layer.cell == "LSTM":
                    found.append(Case(layer, "bfloat16"))
    return found


def build(folder: Path) -> None:
    """Compile every library."""
    from benchmarks.recurrent_layers import model
    from tvmopt.build import build_library
    from tvmopt.device.target import resolve_target
    from tvmopt.frontend import import_onnx, layer_table, prepare
    from tvmopt.transform.conversion import convert_module
    from tvmopt.transform.lower import lower

    target = resolve_target(TARGET)
    folder.mkdir(parents=True, exist_ok=True)
    for case in cases():
        prepared = prepare(model(case.layer), {}).model
        converted = convert_module(import_onnx(prepared, layer_table(prepared)), dtype=case.dtype)
        build_library(lower(converted.mod, target.to_tvm()), target, folder / case.file)


def torch_layer(case: Case) -> Any:
    """Return PyTorch's layer with the same weights, on the GPU."""
    import torch

    layer, weights = case.layer, case.layer.weights()
    made = getattr(torch.nn, layer.cell)(layer.hidden, layer.hidden).cuda()
    order, gates = _ORDER[layer.cell], GATES[layer.cell]

    def reordered(values: np.ndarray) -> Any:
        parts = values.reshape(gates, layer.hidden, *values.shape[1:])[list(order)]
        return torch.from_numpy(parts.reshape(values.shape).copy())

    b_input, b_state = np.split(weights["b"][0], 2)
    with torch.no_grad():
        made.weight_ih_l0.copy_(reordered(weights["w"][0]))
        made.weight_hh_l0.copy_(reordered(weights["r"][0]))
        made.bias_ih_l0.copy_(reordered(b_input))
        made.bias_hh_l0.copy_(reordered(b_state))
    made = made.to(getattr(torch, case.dtype))
    made.flatten_parameters()
    return made


def graph_of(run: Callable[[], Any]) -> Callable[[], Any]:
    """Return a replay of ``run``, captured in a CUDA graph."""
    import torch

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        run()
    return graph.replay


def measure(case: Case, folder: Path) -> str:
    """Return the row of a case."""
    import torch

    from benchmarks.cuda_networks import load_network
    from benchmarks.cuda_timing import burst_timer, error_of, tensor_of, time_interleaved

    x = torch.from_numpy(case.layer.input()).cuda()
    ours = load_network(str(folder / case.file), x)
    peer, given = torch_layer(case), x.to(getattr(torch, case.dtype))
    with torch.inference_mode():
        expected = peer(given)[0]
        error = error_of(torch, tensor_of(torch, ours()).float(), expected.float())
        runs = {
            "ours": ours,
            "PyTorch": lambda: peer(given),
            "its graph": graph_of(lambda: peer(given)),
        }
        times = time_interleaved({name: burst_timer(torch, run) for name, run in runs.items()})
    ms = {name: float(np.median(found)) for name, found in times.items()}
    ratio = min(ms["PyTorch"], ms["its graph"]) / ms["ours"]
    return (
        f"| {case.layer.name} | {case.layer.hidden} | {case.layer.batch} | {case.dtype} "
        f"| {ms['ours']:.3f} | {ms['PyTorch']:.3f} | {ms['its graph']:.3f} | {ratio:.2f} "
        f"| {error:.1e} |"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the libraries, or print the table; return 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--build", action="store_true", help="compile the libraries")
    given = parser.parse_args(arguments)
    if given.build:
        build(given.folder)
        return 0
    import torch

    torch.backends.cudnn.allow_tf32 = False
    print(torch.cuda.get_device_name(), "PyTorch", torch.__version__)
    columns = "ours, ms | PyTorch, ms | in a CUDA graph, ms | faster PyTorch / ours | error"
    print(f"| layer | hidden | batch | dtype | {columns} |")
    print("| --- " * 9 + "|")
    for case in cases():
        print(measure(case, given.folder), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
