"""Tests of requested layouts: supported ones, skipped layers with reasons, the scope."""

import threading

import numpy as np
import pytest
from tvm import relax

from tvmopt.errors import ConfigError
from tvmopt.transform.layout import LayoutConfig, convert_layout, convert_layout_with_report


def _conv(channels, outputs, groups=1, size=4):
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, channels, size, size), "float32"))
    weight = relax.const(np.zeros((outputs, channels // groups, 1, 1), np.float32))
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(relax.op.nn.conv2d(x, weight, groups=groups))
        builder.emit_func_output(out)
    return builder.get()


@pytest.mark.parametrize(
    ("channels", "outputs", "groups", "layout", "reason"),
    [
        (3, 16, 1, "NCHW16c", "3 input channels are not a multiple of 16"),
        (16, 10, 1, "NCHW16c", "10 output channels are not a multiple of 16"),
        (24, 24, 24, "NCHW16c", "24 channels are not a multiple of 16"),
        (24, 48, 2, "NCHW8c", "12 input channels per group are not a multiple of 8"),
        (32, 8, 2, "NCHW8c", "4 output channels per group are not a multiple of 8"),
        (3, 16, 1, "HWNC", "3 input channels are fewer than the 16 that one tensor-core "
                           "multiply sums over"),
        (32, 32, 32, "HWNC", "32 groups of 1 input channels are 32 small GEMMs, not one for "
                             "tensor cores"),
    ],
)  # fmt: skip
def test_reasons(channels, outputs, groups, layout, reason):
    mod = _conv(channels, outputs, groups)
    result = convert_layout_with_report(mod, {"nn.conv2d": layout})
    assert result.skipped == {0: reason}
    assert result.mod.same_as(mod)


def test_no_reason():
    for channels, outputs, groups, layout in (
        (16, 16, 1, "NCHW16c"),
        (32, 32, 32, "NCHW16c"),
        (32, 64, 2, "NCHW16c"),
        (16, 3, 1, "HWNC"),
        (3, 5, 1, "NHWC"),
    ):
        result = convert_layout_with_report(_conv(channels, outputs, groups), {"nn.conv2d": layout})
        assert result.skipped == {}


@pytest.mark.parametrize(
    ("attrs", "reason"),
    [
        ({"groups": 2}, "it has 2 groups"),
        ({"dilation": (1, 2)}, "it is dilated"),
        ({"padding": (2, 0)}, "it cuts off more than its kernel adds"),
    ],
)
def test_reasons_of_a_transposed_convolution(attrs, reason):
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 4, 5, 5), "float32"))
    weight = relax.const(np.zeros((4, 4, 2, 2), np.float32))
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(relax.op.nn.conv2d_transpose(x, weight, **attrs))
        builder.emit_func_output(out)
    mod = builder.get()
    result = convert_layout_with_report(mod, {"nn.conv2d_transpose": "NHWC"})
    assert result.skipped == {0: reason}
    assert convert_layout_with_report(mod, {"nn.conv2d_transpose": "NCHW"}).skipped == {}


def test_without_auto_skip_everything_possible_is_converted():
    mod = _conv(3, 5)
    assert convert_layout_with_report(mod, {"nn.conv2d": "HWNC"}, auto_skip=False).count == 2
    with pytest.raises(
        ConfigError,
        match=r"with auto_skip off every layer must be convertible to NCHW16c, but of layer 0 "
        r"\(gv\) 3 input channels are not a multiple of 16; name it in skip_layers",
    ):
        convert_layout_with_report(mod, {"nn.conv2d": "NCHW16c"}, auto_skip=False)


@pytest.mark.parametrize(
    ("desired", "message"),
    [
        ({"nn.dense": "NHWC"}, r"desired_layouts must be for nn.conv1d, .* but got 'nn.dense'"),
        ({"nn.conv2d": "NHCW"}, r"one of NCHW, NHWC, HWNC, NCHW\{c\}c \(NCHW16c\), but got 'NHCW'"),
        ({"nn.conv2d": "NCHW0c"}, "but got 'NCHW0c'"),
        ({"nn.conv2d": ["NHWC", "HWII"]}, "'default' or an order of HWIO, but got 'HWII'"),
        ({"nn.conv2d": ["NCHW8c", "OIHW4i4o"]}, "'default' or 'OIHW8i8o', but got 'OIHW4i4o'"),
        ({"nn.conv2d": ["NHWC", "HWIO", "x"]}, "one name, or two for data and weight"),
        ({"nn.conv2d_transpose": "NCHW4c"}, "one of NCHW, NHWC, but got 'NCHW4c'"),
        ({"nn.conv1d": ["NWC", "OIW"]}, "'default' or 'WIO', but got 'OIW'"),
    ],
)
def test_wrong_layouts(desired, message):
    with pytest.raises(ConfigError, match=message):
        convert_layout(_conv(3, 5), desired)


def test_wrong_layers():
    with pytest.raises(ConfigError, match=r"'fc\*' matches none"):
        convert_layout_with_report(_conv(3, 5), {"nn.conv2d": "NHWC"}, skip_layers="fc*")
    with pytest.raises(ConfigError, match="must hold indices"):
        LayoutConfig(skip_layers=[1.5])


def test_innermost_scope_counts():
    mod = _conv(3, 5)

    def converted(**settings):
        return convert_layout_with_report(mod, {"nn.conv2d": "NHWC"}, **settings).skipped == {}

    assert converted()
    with LayoutConfig(skip_layers=[0]) as outer:
        assert LayoutConfig.current() is outer
        assert not converted()
        with LayoutConfig():
            assert converted()
        assert converted(skip_layers=[])
        assert not converted()
    assert converted()


def test_scope_has_auto_skip():
    with LayoutConfig(auto_skip=False):
        assert convert_layout_with_report(_conv(3, 5), {"nn.conv2d": "HWNC"}).skipped == {}
        again = convert_layout_with_report(_conv(3, 5), {"nn.conv2d": "HWNC"}, auto_skip=True)
    assert 0 in again.skipped


def test_scope_ends_with_an_error_and_at_the_thread():
    with pytest.raises(RuntimeError), LayoutConfig(skip_layers=[0]):
        raise RuntimeError
    assert LayoutConfig.current() == LayoutConfig()
    seen = []
    with LayoutConfig(skip_layers=[0]):
        thread = threading.Thread(target=lambda: seen.append(LayoutConfig.current()))
        thread.start()
        thread.join()
    assert seen == [LayoutConfig()]
