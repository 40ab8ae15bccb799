"""Regressors of trees for benchmarks: trained once by each library, as ONNX and for their peers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx

FEATURES = 30
LIBRARIES = ("lightgbm", "xgboost", "sklearn")
_ROWS = {"lightgbm": 20_000, "xgboost": 20_000, "sklearn": 5_000}  # a forest trains slowly

Predict = Callable[[np.ndarray], Any]


@dataclasses.dataclass(frozen=True)
class TreeModel:
    """One trained ensemble.

    Attributes:
        onnx: As ONNX.
        peers: Functions from rows to predictions, by name.
        left_out: Why other peers are not there, by name.
    """

    onnx: onnx.ModelProto
    peers: dict[str, Predict]
    left_out: dict[str, str]


def sample(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return features (rows, FEATURES) and targets of a function with interactions and noise."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, FEATURES)).astype("float32")
    y = x[:, 0] * x[:, 1] + np.sin(3 * x[:, 2]) + x[:, 3:10].sum(1) * 0.3
    return x, (y + rng.normal(size=rows) * 0.1).astype("float32")


def tree_model(
    library: str, trees: int, depth: int, threads: int, folder: Path, lleaves_trees: int
) -> TreeModel:
    """Return an ensemble, trained now unless ``folder`` holds it.

    Args:
        library: Of ``LIBRARIES``.
        trees: Number of trees.
        depth: Most levels of a tree.
        threads: Threads of each peer.
        folder: Folder of trained models.
        lleaves_trees: Most trees of depth 6 that lleaves compiles; it takes minutes for more.
    """
    path = folder / f"{library}-{depth}-{trees}"
    made = {"lightgbm": _lightgbm, "xgboost": _xgboost, "sklearn": _sklearn}[library]
    model = made(path, trees, depth, threads)
    if library != "lightgbm":
        model.left_out["lleaves"] = "reads LightGBM's models only"
    elif trees * 2**depth > lleaves_trees * 2**6:
        model.left_out["lleaves"] = f"compiles for minutes; limit {lleaves_trees} trees of depth 6"
    else:
        model.peers["lleaves"] = _lleaves(path.with_suffix(".txt"), threads)
    return model


def _lightgbm(path: Path, trees: int, depth: int, threads: int) -> TreeModel:
    import lightgbm
    import treelite
    from onnxmltools import convert_lightgbm

    file = path.with_suffix(".txt")
    if not file.exists():
        model = lightgbm.LGBMRegressor(
            n_estimators=trees, max_depth=depth, num_leaves=2**depth, min_child_samples=5,
            learning_rate=0.05, n_jobs=threads, verbose=-1,
        )  # fmt: skip
        model.fit(*sample(_ROWS["lightgbm"], 0))
        model.booster_.save_model(file)
    booster = lightgbm.Booster(model_file=str(file))
    lite = treelite.frontend.load_lightgbm_model(str(file))
    return TreeModel(
        convert_lightgbm(booster, initial_types=_types(), zipmap=False),
        {
            "library": partial(booster.predict, num_threads=threads),
            "GTIL": lambda x: treelite.gtil.predict(lite, x, nthread=threads),
        },
        {},
    )


def _xgboost(path: Path, trees: int, depth: int, threads: int) -> TreeModel:
    import treelite
    import xgboost
    from onnxmltools import convert_xgboost

    file = path.with_suffix(".json")
    model = xgboost.XGBRegressor(
        n_estimators=trees, max_depth=depth, learning_rate=0.05, n_jobs=threads
    )
    if file.exists():
        model.load_model(file)
        model.set_params(n_jobs=threads)
    else:
        model.fit(*sample(_ROWS["xgboost"], 0))
        model.save_model(file)
    lite = treelite.frontend.load_xgboost_model(str(file))
    return TreeModel(
        convert_xgboost(model, initial_types=_types()),
        {
            "library": model.predict,
            "GTIL": lambda x: treelite.gtil.predict(lite, x, nthread=threads),
        },
        {},
    )


def _sklearn(path: Path, trees: int, depth: int, threads: int) -> TreeModel:
    import treelite
    from skl2onnx import to_onnx
    from sklearn.ensemble import RandomForestRegressor

    del path  # scikit-learn's only format on disk is a pickle
    model = RandomForestRegressor(trees, max_depth=depth, n_jobs=threads, random_state=0)
    x, y = sample(_ROWS["sklearn"], 0)
    model.fit(x, y)
    lite = treelite.sklearn.import_model(model)
    return TreeModel(
        to_onnx(model, x[:1]),
        {
            "library": model.predict,
            # treelite keeps scikit-learn's double thresholds, which want double features.
            "GTIL": lambda x: treelite.gtil.predict(lite, x.astype("float64"), nthread=threads),
        },
        {},
    )


def _types() -> list[tuple[str, Any]]:
    from onnxmltools.convert.common.data_types import FloatTensorType

    return [("x", FloatTensorType([None, FEATURES]))]


def _lleaves(file: Path, threads: int) -> Predict:
    import lleaves
    import lleaves.compiler.tree_compiler as compiler
    import lleaves.llvm_binding as binding
    import llvmlite.binding as llvm

    if not hasattr(llvm, "PassManagerBuilder"):
        compiler.llvm = binding.llvm = _OldBinding(llvm)
    model = lleaves.Model(model_file=str(file))
    model.compile()
    return partial(model.predict, n_jobs=threads)


class _OldBinding:
    """llvmlite with the functions that lleaves 1.3 calls and newer versions dropped.

    Args:
        llvm: ``llvmlite.binding``.
    """

    def __init__(self, llvm: Any) -> None:
        self._llvm = llvm

    def __getattr__(self, name: str) -> Any:
        return getattr(self._llvm, name)

    def initialize(self) -> None:
        """Do nothing: LLVM initialises itself."""

    def PassManagerBuilder(self) -> Any:  # noqa: N802, lleaves calls it
        """Return options of a pipeline with the method ``populate``."""
        return _Options()

    def ModulePassManager(self) -> Any:  # noqa: N802, lleaves calls it
        """Return a pass manager that runs LLVM's default pipeline."""
        return _Passes(self._llvm)


class _Options:
    opt_level = 3

    def populate(self, passes: Any) -> None:
        """Do nothing: the pipeline is LLVM's default one."""


class _Passes:
    def __init__(self, llvm: Any) -> None:
        self._llvm = llvm

    def run(self, module: Any) -> None:
        """Optimise a module."""
        self._llvm.initialize_native_target()
        self._llvm.initialize_native_asmprinter()
        machine = self._llvm.Target.from_default_triple().create_target_machine(opt=3)
        options = self._llvm.create_pipeline_tuning_options(speed_level=3)
        passes = self._llvm.create_pass_builder(machine, options)
        passes.getModulePassManager().run(module, passes)
