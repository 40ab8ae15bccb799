"""Activation functions of recurrent layers, as ONNX defines them."""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx
from tvm.ir import Expr

from tvmopt.kernels.recurrence.layer import Activation


def _const(value: float) -> Expr:
    return tirx.const(value, "float32")


def _sigmoid(x: Expr) -> Expr:
    return tirx.sigmoid(x)


def _softplus(x: Expr) -> Expr:
    return tirx.max(x, _const(0)) + tirx.log(_const(1) + tirx.exp(-tirx.abs(x)))


def _elu(x: Expr, alpha: float) -> Expr:
    negative = _const(alpha) * (tirx.exp(tirx.min(x, _const(0))) - _const(1))
    return tirx.Select(x < _const(0), negative, x)


_FUNCTIONS: dict[str, Callable[[Expr, float, float], Expr]] = {
    "Affine": lambda x, alpha, beta: _const(alpha) * x + _const(beta),
    "Elu": lambda x, alpha, beta: _elu(x, alpha),
    "HardSigmoid": lambda x, alpha, beta: tirx.max(
        _const(0), tirx.min(_const(1), _const(alpha) * x + _const(beta))
    ),
    "LeakyRelu": lambda x, alpha, beta: tirx.Select(x < _const(0), _const(alpha) * x, x),
    "Relu": lambda x, alpha, beta: tirx.max(x, _const(0)),
    "ScaledTanh": lambda x, alpha, beta: _const(alpha) * tirx.tanh(_const(beta) * x),
    "Sigmoid": lambda x, alpha, beta: _sigmoid(x),
    "Softplus": lambda x, alpha, beta: _softplus(x),
    "Softsign": lambda x, alpha, beta: x / (_const(1) + tirx.abs(x)),
    "Tanh": lambda x, alpha, beta: tirx.tanh(x),
    "ThresholdedRelu": lambda x, alpha, beta: tirx.Select(x >= _const(alpha), x, _const(0)),
}
#: Names of the functions.
ACTIVATIONS = tuple(_FUNCTIONS)


def activated(activation: Activation, x: Expr) -> Expr:
    """Return the activation of ``x``, float32."""
    return _FUNCTIONS[activation.name](x, activation.alpha, activation.beta)
