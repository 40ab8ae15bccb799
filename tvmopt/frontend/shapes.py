"""Shapes of a model's inputs: read them, and make them static."""

from __future__ import annotations

from collections.abc import Iterable

import onnx

from tvmopt.errors import ConfigError, ModelError

Shapes = dict[str, tuple[int, ...]]
#: Example of the parameter ``input_shapes``, for messages.
EXAMPLE = "for example input_shapes=image:1x3x224x224,mask:1x16"
#: Name of a dynamic dimension that has none.
UNNAMED = "?"


def graph_inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """Return the inputs that a caller must provide: graph inputs without an initializer."""
    constants = {i.name for i in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in constants]


def declared_dims(value: onnx.ValueInfoProto) -> list[int | str] | None:
    """Return declared dimensions: integers, or names of dynamic ones; None without a shape."""
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    return [
        dim.dim_value
        if dim.HasField("dim_value") and dim.dim_value > 0
        else (dim.dim_param or UNNAMED)
        for dim in tensor.shape.dim
    ]


def fix_input_shapes(model: onnx.ModelProto, shapes: Shapes) -> Shapes:
    """Give every input of ``model`` a static shape in place; return all input shapes.

    A static dimension may change as well, because some models declare sizes that they do not need.
    ONNX Runtime decides during preparation whether the model supports the shape.

    Args:
        model: The model to modify.
        shapes: Shapes by input name; static inputs may be omitted.

    Raises:
        ConfigError: When a name is not an input, or a shape has another rank than the model's.
        ModelError: When an input stays dynamic, or is not a tensor.
    """
    inputs = graph_inputs(model)
    names = [value.name for value in inputs]
    unknown = sorted(set(shapes) - set(names))
    if unknown:
        raise ConfigError(
            f"input_shapes must name inputs of the model ({', '.join(names)}), "
            f"but got {', '.join(map(repr, unknown))}"
        )
    fixed: Shapes = {}
    dynamic: list[str] = []
    for value in inputs:
        if not value.type.HasField("tensor_type"):
            raise ModelError(
                f"model inputs must be tensors, but {value.name!r} is a "
                f"{value.type.WhichOneof('value')}"
            )
        dims = declared_dims(value)
        wanted = shapes.get(value.name)
        if wanted is not None:
            _check_rank(value.name, dims, wanted)
            fixed[value.name] = wanted
        elif dims is None or any(isinstance(d, str) for d in dims):
            text = "unknown rank" if dims is None else "x".join(map(str, dims))
            dynamic.append(f"{value.name} ({text})")
        else:
            fixed[value.name] = tuple(int(d) for d in dims)
    if dynamic:
        raise ModelError(
            f"every input must have a static shape, but these are dynamic: {', '.join(dynamic)}; "
            f"give input_shapes, {_example(inputs)}"
        )
    for value in inputs:
        shape = value.type.tensor_type.shape
        del shape.dim[:]
        for size in fixed[value.name]:
            shape.dim.add().dim_value = size
        value.type.tensor_type.shape.SetInParent()
    _forget_stale_shapes(model)
    return fixed


def _example(inputs: Iterable[onnx.ValueInfoProto]) -> str:
    """Return an example that names the dimensions of a model, where it names all."""
    declared = [declared_dims(value) for value in inputs]
    dims = [dim for each in declared for dim in each or []]
    if None in declared or UNNAMED in dims:
        return EXAMPLE
    first, *others = dict.fromkeys(dim for dim in dims if isinstance(dim, str))
    sizes = [f"{first}=1", *(f"{dim}=16" for dim in others)]
    return f"for example input_shapes={','.join(sizes)}, or whole shapes as in image:1x3x224x224"


def _check_rank(name: str, dims: list[int | str] | None, wanted: tuple[int, ...]) -> None:
    if dims is None:
        return
    declared = "x".join(map(str, dims)) or "scalar"
    got = "x".join(map(str, wanted)) or "scalar"
    if len(dims) != len(wanted):
        raise ConfigError(
            f"input_shapes must have the model's rank: {name!r} is {declared}, but got {got}"
        )


def _forget_stale_shapes(model: onnx.ModelProto) -> None:
    # Shapes stored for the dynamic model may contradict the static ones. ONNX Runtime and shape
    # inference compute them again.
    del model.graph.value_info[:]
    for output in model.graph.output:
        if output.type.HasField("tensor_type"):
            output.type.tensor_type.ClearField("shape")
