"""The model, its data and its target."""

from __future__ import annotations

import dataclasses

from tvmopt.parameters.declare import Group, parameter


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelParameters(Group):
    """Which model, with which data, for which target."""

    model: str = parameter(
        "",
        "ONNX or .pt2 file, or MLflow URI (runs:/..., models:/...) of a model of the flavor onnx, "
        "sklearn, xgboost, lightgbm or pytorch; default: the bundled example",
    )
    name: str = parameter(
        "", "name of the experiment and the registered model; default: the file's"
    )
    input_shapes: str = parameter(
        "",
        "sizes of dynamic dimensions, e.g. batch=1,sequence=16, or shapes of inputs, e.g. "
        "image:1x3x224x224,mask:1x16; a size may be a set, e.g. batch=1,4,16 or ids:1x{16:128:16}; "
        "sequence=auto takes sizes that fit the samples in data",
    )
    data: str = parameter(
        "",
        ".npz with an array an input and optionally integer 'labels', or .npy; 20% calibrate, 50% "
        "evaluate, 30% are held out for promotion; of a model that is no ONNX model also .csv or "
        ".parquet, default: the data set of its run, or its input example",
    )
    label: str = parameter(
        "",
        "column of a .csv or .parquet table with the labels; default: labels, label, y, targets or "
        "target, if there is one",
    )
    trust: bool = parameter(
        False,
        "true: read the model's file even if it is a pickle, which can run any code of whoever "
        "logged it",
    )
    target: str = parameter(
        "host",
        "'host', a CPU (skylake-avx512, cortex-a76, graviton3), 'cuda' (this machine's GPU), a "
        "GPU (nvidia-h200, a100), or JSON with mcpu and mattr",
    )
    threads: int = parameter(
        0,
        "threads to compile for and measure with, for a GPU ONNX Runtime's; 0: all usable cores",
        least=0,
    )
