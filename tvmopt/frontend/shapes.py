"""Input shapes: parse the user's, read the model's, and make the model static."""

from __future__ import annotations

import re

import onnx

from tvmopt.errors import ConfigError, ModelError

Shapes = dict[str, tuple[int, ...]]
# Parts between commas without a backslash before them.
_ENTRY = re.compile(r"(?:\\.|[^,\\])+")
_MOST_DIGITS = 9
_EXAMPLE = "for example input_shapes=image:1x3x224x224,mask:1x16"


def parse_input_shapes(text: str) -> Shapes:
    """Parse ``"image:1x3x224x224,mask:1x16"``; a scalar is written ``"rate:"``.

    In a name, a backslash escapes a comma, a final colon, a leading or trailing blank, and a
    backslash.

    Raises:
        ConfigError: When an entry is not ``name:AxBxC`` with positive integers.
    """
    shapes: Shapes = {}
    for entry in filter(None, (part.strip() for part in _ENTRY.findall(text))):
        name, colon, dims = entry.rpartition(":")
        name = re.sub(r"\\(.)", r"\1", name)
        if not colon or not name or not re.fullmatch(r"([0-9]+(x[0-9]+)*)?", dims):
            raise ConfigError(
                f"input_shapes must be name:AxBxC[,name:AxB...], {_EXAMPLE}; but got {entry!r}"
            )
        sizes = dims.split("x") if dims else []
        if any(len(d) > _MOST_DIGITS for d in sizes):
            raise ConfigError(
                f"input_shapes must hold dimensions of at most {_MOST_DIGITS} digits, but "
                f"got {entry[:100]!r}"
            )
        shape = tuple(map(int, sizes))
        if name in shapes:
            raise ConfigError(f"input_shapes must name each input once, but got {name!r} twice")
        shapes[name] = shape
    return shapes


def format_input_shapes(shapes: Shapes) -> str:
    """Format input shapes: the inverse of :func:`parse_input_shapes`."""
    return ",".join(
        f"{_escaped(name)}:{'x'.join(map(str, shape))}" for name, shape in shapes.items()
    )


def _escaped(name: str) -> str:
    return re.sub(r"[\\,:]|^\s|\s$", r"\\\g<0>", name)


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
        dim.dim_value if dim.HasField("dim_value") and dim.dim_value > 0 else (dim.dim_param or "?")
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
            f"give input_shapes, {_EXAMPLE}"
        )
    for value in inputs:
        shape = value.type.tensor_type.shape
        del shape.dim[:]
        for size in fixed[value.name]:
            shape.dim.add().dim_value = size
        value.type.tensor_type.shape.SetInParent()
    _forget_stale_shapes(model)
    return fixed


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
