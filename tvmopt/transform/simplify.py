"""Simplify an imported module, before conversions and lowering."""

from __future__ import annotations

import tvm
from tvm import relax

from tvmopt.transform.attention.decompose import DecomposeAttention
from tvmopt.transform.fold_constant import FoldConstantIfAny
from tvmopt.transform.fold_numpy import FoldConstantNumpy
from tvmopt.transform.pairwise_inputs import PairwiseInputs
from tvmopt.transform.raise_softmax import RaiseSoftmax
from tvmopt.transform.raise_tensor_ir import RaiseTensorIR


def simplify_passes() -> list[tvm.transform.Pass]:
    """Return passes that raise TensorIR, decompose for inference, and fold constants."""
    return [
        RaiseTensorIR(),
        DecomposeAttention(),
        PairwiseInputs(),
        RaiseSoftmax(),
        relax.transform.DecomposeOpsForInference(),
        relax.transform.CanonicalizeBindings(),
        FoldConstantNumpy(),
        relax.transform.CanonicalizeBindings(),
        FoldConstantIfAny(),
        relax.transform.DeadCodeElimination(["main"]),
    ]


def simplify(mod: tvm.IRModule) -> tvm.IRModule:
    """Apply :func:`simplify_passes`; anchors keep their order and their layers.

    before -> after: ``add(conv2d(x, w), reshape(bias))`` -> ``add(conv2d(x, w), bias')``.
    """
    with tvm.transform.PassContext(opt_level=3):
        return tvm.transform.Sequential(simplify_passes())(mod)
