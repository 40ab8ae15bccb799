"""Random ensembles of trees as ONNX nodes, and inputs that hit their thresholds."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper, numpy_helper

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
# Thresholds and features come from one grid, so that they are often equal.
GRID = [-np.inf, -2.5, -1.0, -0.0, 0.0, 1e-40, 0.1, 0.5, 1.0, 3.0, np.inf]
ML = "ai.onnx.ml"


def inputs(rng, rows, features, dtype="float32"):
    """Return rows of features; some are NaN, and some lie between the values of the grid."""
    x = rng.choice([*GRID, np.nan], (rows, features)).astype(dtype)
    other = rng.random((rows, features)) < 0.3
    x[other] = rng.normal(size=np.count_nonzero(other)).astype(dtype)
    return x


def old_form(rng, prefix, *, trees, depth, features, ids, modes=MODES, missing=True, double=False):
    """Return attributes of TreeEnsembleRegressor or TreeEnsembleClassifier.

    Args:
        rng: Source of random numbers.
        prefix: ``"target"`` or ``"class"``.
        trees: Number of trees.
        depth: Most levels of a tree; 0 for single leaves.
        features: Number of features.
        ids: Targets that every leaf has weights for; or ``(count, some)`` for random ones.
        modes: Modes of nodes.
        missing: Whether nodes may send NaN to the true branch.
        double: Whether values are tensors of doubles.
    """
    names = (
        "treeids nodeids featureids values modes truenodeids falsenodeids missing_value_tracks_true"
    )
    nodes = {name: [] for name in names.split()}
    weights = {name: [] for name in ("treeids", "nodeids", "ids", "weights")}

    def grow(tree, level):
        number = counters[tree]
        counters[tree] += 1
        at = len(nodes["treeids"])
        inner = level < depth and rng.random() < 0.85
        for name, value in (
            ("treeids", tree), ("nodeids", number), ("truenodeids", 0), ("falsenodeids", 0),
            ("featureids", int(rng.integers(features)) if inner else 0),
            ("values", float(rng.choice(GRID)) if inner else 0.0),
            ("modes", str(rng.choice(modes)) if inner else "LEAF"),
            ("missing_value_tracks_true", int(inner and missing and rng.random() < 0.5)),
        ):  # fmt: skip
            nodes[name].append(value)
        if inner:
            nodes["truenodeids"][at] = grow(tree, level + 1)
            nodes["falsenodeids"][at] = grow(tree, level + 1)
            return number
        chosen = ids
        if isinstance(ids, tuple):
            chosen = sorted(rng.choice(ids[0], int(rng.integers(1, ids[1] + 1)), replace=False))
        for target in chosen:
            weights["treeids"].append(tree)
            weights["nodeids"].append(number)
            weights["ids"].append(int(target))
            weights["weights"].append(float(np.float32(rng.normal())))
        return number

    counters = [0] * trees
    for tree in range(trees):
        grow(tree, 0)
    attributes = {f"nodes_{name}": values for name, values in nodes.items()}
    attributes |= {f"{prefix}_{name}": values for name, values in weights.items()}
    if not missing:
        del attributes["nodes_missing_value_tracks_true"]
    if double:
        for name in ("nodes_values", f"{prefix}_weights"):
            array = np.array(attributes.pop(name), "float64")
            array += np.where(rng.random(array.shape) < 0.3, 1e-12, 0)
            attributes[f"{name}_as_tensor"] = numpy_helper.from_array(array, name)
    return attributes


def new_form(rng, *, trees, depth, features, targets, dtype="float32", members=True):
    """Return attributes of TreeEnsemble of ai.onnx.ml 5."""
    names = ("modes", "featureids", "splits", "truenodeids", "falsenodeids", "trueleafs",
             "falseleafs", "missing_value_tracks_true")  # fmt: skip
    nodes = {name: [] for name in names}
    sets, leaf_targets, leaf_weights, roots = {}, [], [], []

    def leaf():
        leaf_targets.append(int(rng.integers(targets)))
        leaf_weights.append(rng.normal())
        return len(leaf_weights) - 1

    def grow(level):
        at = len(nodes["modes"])
        mode = int(rng.integers(7 if members else 6))
        for name in names:
            nodes[name].append(0)
        nodes["modes"][at] = mode
        nodes["featureids"][at] = int(rng.integers(features))
        nodes["splits"][at] = float(rng.choice(GRID))
        nodes["missing_value_tracks_true"][at] = int(rng.random() < 0.5)
        if mode == 6:
            sets[at] = rng.choice([-1.0, 0.0, 1.0, 2.0, 3.0, 40.0], int(rng.integers(1, 5)))
        for side in ("true", "false"):
            inner = level + 1 < depth and rng.random() < 0.8
            nodes[f"{side}leafs"][at] = int(not inner)
            nodes[f"{side}nodeids"][at] = grow(level + 1) if inner else leaf()
        return at

    for _ in range(trees):
        if rng.random() < 0.15:  # a tree that is one leaf
            at = len(nodes["modes"])
            only = leaf()
            for name in names:
                nodes[name].append(only if name.endswith("nodeids") else int("leafs" in name))
            nodes["modes"][at], nodes["missing_value_tracks_true"][at] = 0, 0
            roots.append(at)
        else:
            roots.append(grow(0))
    attributes = {f"nodes_{name}": values for name, values in nodes.items()}
    attributes |= {"tree_roots": roots, "leaf_targetids": leaf_targets, "n_targets": targets}
    tensors = {"leaf_weights": leaf_weights, "nodes_splits": attributes.pop("nodes_splits")}
    if sets:
        values = [np.append(sets[at], np.nan) for at in sorted(sets)]
        tensors["membership_values"] = np.concatenate(values)
    attributes |= {
        name: numpy_helper.from_array(np.array(values, dtype), name)
        for name, values in tensors.items()
    }
    modes = np.array(attributes.pop("nodes_modes"), "uint8")
    return attributes | {"nodes_modes": numpy_helper.from_array(modes, "nodes_modes")}


def model(op, shape, dtype, outputs, attributes):
    """Return a model of one node.

    Args:
        op: Operator type.
        shape: Shape of the input.
        dtype: NumPy dtype of the input.
        outputs: Name, ONNX type and shape of each output.
        attributes: Attributes.
    """
    kinds = {"float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE,
             "int64": TensorProto.INT64, "int32": TensorProto.INT32}  # fmt: skip
    names = [name for name, _, _ in outputs]
    node = helper.make_node(op, ["x"], names, name="trees", domain=ML, **attributes)
    graph = helper.make_graph(
        [node],
        "trees",
        [helper.make_tensor_value_info("x", kinds[dtype], shape)],
        [helper.make_tensor_value_info(*output) for output in outputs],
    )
    sets = [helper.make_opsetid(ML, 5 if op == "TreeEnsemble" else 3), helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=sets, ir_version=8)


def joined(models):
    """Return one model with the nodes of all models, which have the same input."""
    nodes, outputs = [], []
    for at, each in enumerate(models):
        [node] = each.graph.node
        names = {name: f"{name}{at}" for name in node.output}
        node.name = f"trees{at}"
        node.output[:] = names.values()
        nodes.append(node)
        for output in each.graph.output:
            output.name = names[output.name]
            outputs.append(output)
    graph = helper.make_graph(nodes, "trees", models[0].graph.input, outputs)
    return helper.make_model(graph, opset_imports=models[0].opset_import, ir_version=8)
