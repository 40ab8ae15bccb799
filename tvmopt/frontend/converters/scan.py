"""Converters of operators along one axis."""

from __future__ import annotations

from tvm import relax, te, tirx

from tvmopt.frontend.converters.node import Attributes, Inputs, constant, static_shape


def cum_prod(builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes) -> relax.Expr:
    """Return the product of all values up to each one along an axis."""
    x = inputs[0]
    shape = static_shape(x)
    axis = int(constant(inputs[1], "axis").reshape(())) % len(shape)
    reverse = bool(attributes.get("reverse", 0))
    if reverse:
        x = relax.op.flip(x, axis)
    result = builder.emit(relax.op.cumprod(x, axis, exclusive=bool(attributes.get("exclusive", 0))))
    return builder.normalize(relax.op.flip(result, axis) if reverse else result)


def reverse_sequence(
    builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes
) -> relax.Expr:
    """Reverse the first ``sequence_lens[b]`` values of batch ``b`` along the axis of time."""
    x, lengths = inputs[0], inputs[1]
    time, batch = int(attributes.get("time_axis", 0)), int(attributes.get("batch_axis", 1))
    steps = static_shape(x)[time]

    def reversed_(data: te.Tensor, lens: te.Tensor) -> te.Tensor:
        def value(*at: tirx.Var) -> tirx.PrimExpr:
            # A length beyond the axis must not read beyond it.
            length = tirx.min(lens[at[batch]].astype("int64"), tirx.const(steps, "int64"))
            step = at[time]
            place = list(at)
            place[time] = tirx.if_then_else(
                step.astype("int64") < length, length - 1 - step, step.astype("int64")
            )
            return data[tuple(place)]

        return te.compute(data.shape, value, name="reverse_sequence")

    return builder.emit_te(reversed_, x, lengths)
