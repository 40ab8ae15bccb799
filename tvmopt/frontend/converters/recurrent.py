"""Converters of LSTM, GRU and RNN: one matmul over all steps, then the recurrence."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax

from tvmopt.frontend.converters.node import (
    Attributes,
    Inputs,
    decoded,
    outputs,
    static_shape,
    text,
)  # fmt: skip
from tvmopt.kernels.recurrence import OPERANDS, Activation, Recurrence
from tvmopt.kernels.recurrence.activations import ACTIVATIONS
from tvmopt.transform.recurrence import recurrence_call

_DEFAULT = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
# Defaults of alpha and beta; None where a function has no such parameter. ONNX gives none to the
# functions with 0, for which ONNX Runtime takes 0.
_PARAMETERS: dict[str, tuple[float | None, float | None]] = {
    "Affine": (0.0, 0.0),
    "Elu": (1.0, None),
    "HardSigmoid": (0.2, 0.5),
    "LeakyRelu": (0.01, None),
    "ScaledTanh": (0.0, 0.0),
    "ThresholdedRelu": (0.0, None),
}
_REVERSE = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


def lstm(builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes) -> relax.Expr:
    """Return Y, Y_h and Y_c of an LSTM."""
    x, w, r, b, lengths, initial_h, initial_c, peepholes = [*inputs, *[None] * 8][:8]
    more = {"initial_c": initial_c, "peepholes": peepholes}
    return _Layer("LSTM", builder, attributes, x, w, r).convert(b, lengths, initial_h, more)


def gru(builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes) -> relax.Expr:
    """Return Y and Y_h of a GRU."""
    x, w, r, b, lengths, initial_h = [*inputs, *[None] * 6][:6]
    return _Layer("GRU", builder, attributes, x, w, r).convert(b, lengths, initial_h, {})


def rnn(builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes) -> relax.Expr:
    """Return Y and Y_h of a plain recurrent network."""
    x, w, r, b, lengths, initial_h = [*inputs, *[None] * 6][:6]
    return _Layer("RNN", builder, attributes, x, w, r).convert(b, lengths, initial_h, {})


class _Layer:
    def __init__(
        self,
        cell: str,
        builder: relax.BlockBuilder,
        attributes: Attributes,
        x: relax.Expr,
        w: relax.Expr,
        r: relax.Expr,
    ) -> None:
        self._cell, self._builder, self._attributes = cell, builder, attributes
        self._batch_first = bool(attributes.get("layout", 0))
        self._x = self._steps_first(x, [1, 0, 2])
        self._w, self._r = w, r
        self._steps, self._batch, self._features = static_shape(self._x)
        self._directions, rows, self._hidden = static_shape(r)
        self._gates = rows // self._hidden
        declared = int(attributes.get("hidden_size", self._hidden))
        if declared != self._hidden:
            raise ValueError(f"hidden_size must be {self._hidden}, as R has, but is {declared}")

    def convert(
        self,
        b: relax.Expr | None,
        lengths: relax.Expr | None,
        initial_h: relax.Expr | None,
        more: dict[str, relax.Expr | None],
    ) -> relax.Expr:
        """Return the outputs of the node."""
        late = self._cell == "GRU" and bool(self._attributes.get("linear_before_reset", 0))
        gates, bias = self._input_product(b, late)
        state = [1, 0, 2]
        initial_c, peepholes = more.get("initial_c"), more.get("peepholes")
        given = {
            "gates": gates,
            "weight": self._shaped(self._r, [self._gates, self._hidden, self._hidden]),
            "weight_scale": None,
            "bias": bias,
            "peepholes": None if peepholes is None else self._shaped(peepholes, [3, self._hidden]),
            "lengths": lengths,
            "initial_h": None if initial_h is None else self._steps_first(initial_h, state),
            "initial_c": None if initial_c is None else self._steps_first(initial_c, state),
        }
        present = tuple(name for name in OPERANDS if given[name] is not None)
        recurrence = Recurrence(
            cell=self._cell,
            steps=self._steps,
            batch=self._batch,
            hidden=self._hidden,
            reverse=_REVERSE[text(self._attributes, "direction", "forward")],
            activations=self._activations(),
            operands=present,
            clip=float(self._attributes.get("clip", 0.0)),
            linear_before_reset=late,
            input_forget=bool(self._attributes.get("input_forget", 0)),
        )
        made = self._builder.emit(recurrence_call(recurrence, [given[name] for name in present]))
        orders = [[2, 0, 1, 3], state, state]
        fields = [
            self._emit(self._batch_last(relax.TupleGetItem(made, n), orders[n]))
            for n in range(recurrence.outputs)
        ][: max(1, outputs(self._attributes))]
        return fields[0] if len(fields) == 1 else relax.Tuple(fields)

    def _emit(self, value: relax.Expr) -> relax.Expr:
        return self._builder.emit(value)

    def _steps_first(self, value: relax.Expr, order: Sequence[int]) -> relax.Expr:
        return self._emit(relax.op.permute_dims(value, order)) if self._batch_first else value

    def _batch_last(self, value: relax.Expr, order: Sequence[int]) -> relax.Expr:
        return relax.op.permute_dims(self._emit(value), order) if self._batch_first else value

    def _shaped(self, value: relax.Expr, shape: Sequence[int]) -> relax.Expr:
        return self._emit(relax.op.reshape(value, [self._directions, *shape]))

    def _input_product(
        self, b: relax.Expr | None, late: bool
    ) -> tuple[relax.Expr, relax.Expr | None]:
        """Return X W + bias of all steps, and the bias that the recurrence adds itself."""
        columns = self._directions * self._gates * self._hidden
        rows = relax.op.reshape(self._x, [self._steps * self._batch, self._features])
        weight = relax.op.reshape(self._w, [columns, self._features])
        product = relax.op.matmul(
            self._emit(rows), self._emit(relax.op.permute_dims(weight, [1, 0]))
        )
        product, own = self._emit(product), None
        if b is not None:
            bias, own = self._biases(b, late)
            product = self._emit(relax.op.add(product, relax.op.reshape(bias, [columns])))
        shape = [self._steps, self._batch, self._directions, self._gates, self._hidden]
        return self._emit(relax.op.reshape(product, shape)), own

    def _biases(self, b: relax.Expr, late: bool) -> tuple[relax.Expr, relax.Expr | None]:
        """Return the sum of both biases; apart, the one that a late reset gate multiplies."""
        both = self._shaped(b, [2, self._gates, self._hidden])

        def part(n: int, first: int, last: int) -> relax.Expr:
            end = [n + 1, last]
            return self._emit(relax.op.strided_slice(both, [1, 2], [n, first], end))

        gates, own = self._gates, None
        total = self._emit(relax.op.add(part(0, 0, gates), part(1, 0, gates)))
        if late:
            own = self._shaped(part(1, gates - 1, gates), [self._hidden])
            sums = [
                relax.op.add(part(0, 0, gates - 1), part(1, 0, gates - 1)),
                part(0, gates - 1, gates),
            ]
            total = self._emit(relax.op.concat(sums, 2))
        return total, own

    def _activations(self) -> tuple[tuple[Activation, ...], ...]:
        """Return the activations of each direction; parameters are given to those that have any."""
        count = len(_DEFAULT[self._cell])
        given = self._attributes.get("activations")
        names = [decoded(n) for n in given] if given else [*_DEFAULT[self._cell]] * self._directions
        if len(names) != count * self._directions:
            raise ValueError(
                f"activations must be {count * self._directions}, but are {len(names)}"
            )
        known = {name.lower(): name for name in ACTIVATIONS}
        lists = [iter(self._attributes.get(f"activation_{p}") or ()) for p in ("alpha", "beta")]
        found = []
        for name in names:
            if name.lower() not in known:
                raise ValueError(f"activation {name!r} is not one of {', '.join(ACTIVATIONS)}")
            name = known[name.lower()]
            values = [
                0.0 if default is None else float(next(numbers, default))
                for default, numbers in zip(_PARAMETERS.get(name, (None, None)), lists, strict=True)
            ]
            found.append(Activation(name, *values))
        return tuple(tuple(found[n : n + count]) for n in range(0, len(found), count))
