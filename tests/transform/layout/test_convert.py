"""Layout conversion of small graphs: the module before and after."""
# ruff: noqa: N805 (a function of a module class has no self)

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import ir as I  # noqa: N812
from tvm.script import relax as R  # noqa: N812

from tvmopt.errors import ConfigError
from tvmopt.transform.anchors import anchors
from tvmopt.transform.count_layers import count_layers
from tvmopt.transform.layout import LayoutConfig, convert_layout, convert_layout_with_report

RNG = np.random.default_rng(0)
W = RNG.standard_normal((16, 16, 3, 3), np.float32)
POINT = RNG.standard_normal((16, 16, 1, 1), np.float32)
BIAS = RNG.standard_normal((16, 1, 1), np.float32)
DENSE = RNG.standard_normal((16, 5), np.float32)
HWIO, OIHW4I4O = (2, 3, 1, 0), (0, 2, 4, 5, 3, 1)


def blocked(w, c=4):
    o, i, h, k = w.shape
    return np.ascontiguousarray(w.reshape(o // c, c, i // c, c, h, k).transpose(OIHW4I4O))


def hwio(w):
    return np.ascontiguousarray(w.transpose(HWIO))


def check(result, want):
    got = result.mod if hasattr(result, "mod") else result
    tvm.ir.assert_structural_equal(got, want, map_free_vars=True)


@I.ir_module
class Block:
    """Convolution, bias, activation, residual, and a head."""

    @R.function
    def main(
        x: R.Tensor((1, 16, 8, 8), "float32"),
        w: R.Tensor((16, 16, 3, 3), "float32"),
        b: R.Tensor((16, 1, 1), "float32"),
        d: R.Tensor((16, 5), "float32"),
    ):
        with R.dataflow():
            c = R.nn.conv2d(x, w, padding=[1, 1, 1, 1])
            biased = R.add(c, b)
            r = R.nn.relu(biased)
            s = R.add(r, x)
            m = R.mean(s, axis=[2, 3], keepdims=True)
            f = R.reshape(m, R.shape([1, 16]))
            out = R.matmul(f, d)
            R.output(out)
        return out


@I.ir_module
class BlockNHWC:
    @R.function
    def main(
        x: R.Tensor((1, 16, 8, 8), "float32"),
        w: R.Tensor((3, 3, 16, 16), "float32"),
        b: R.Tensor((1, 1, 1, 16), "float32"),
        d: R.Tensor((16, 5), "float32"),
    ):
        with R.dataflow():
            t = R.permute_dims(x, axes=[0, 2, 3, 1])
            c = R.nn.conv2d(t, w, padding=[1, 1, 1, 1], data_layout="NHWC", kernel_layout="HWIO")
            biased = R.add(c, b)
            r = R.nn.relu(biased)
            s = R.add(r, t)
            m = R.mean(s, axis=[1, 2], keepdims=True)
            f = R.reshape(m, R.shape([1, 16]))
            out = R.matmul(f, d)
            R.output(out)
        return out


@I.ir_module
class BlockNCHW4c:
    @R.function
    def main(
        x: R.Tensor((1, 16, 8, 8), "float32"),
        w: R.Tensor((4, 4, 3, 3, 4, 4), "float32"),
        b: R.Tensor((1, 4, 1, 1, 4), "float32"),
        d: R.Tensor((16, 5), "float32"),
    ):
        with R.dataflow():
            cut = R.reshape(x, R.shape([1, 4, 4, 8, 8]))
            t = R.permute_dims(cut, axes=[0, 1, 3, 4, 2])
            c = R.nn.conv2d(
                t, w, padding=[1, 1, 1, 1], data_layout="NCHW4c", kernel_layout="OIHW4i4o"
            )
            biased = R.add(c, b)
            r = R.nn.relu(biased)
            s = R.add(r, t)
            m = R.mean(s, axis=[2, 3], keepdims=True)
            f = R.reshape(m, R.shape([1, 16]))
            out = R.matmul(f, d)
            R.output(out)
        return out


def test_block_in_nhwc(bound):
    result = convert_layout_with_report(bound(Block, w=W, b=BIAS, d=DENSE), {"nn.conv2d": "NHWC"})
    want = bound(BlockNHWC, w=hwio(W), b=BIAS.reshape(1, 1, 1, 16), d=DENSE)
    check(result, want)
    [change] = result.changes
    assert str(change) == "x (1x16x8x8 float32): NCHW -> NHWC"
    assert (result.count, result.bytes) == (1, 4 * 16 * 64)
    assert result.skipped == {}


def test_block_in_blocks_of_four(bound):
    result = convert_layout_with_report(
        bound(Block, w=W, b=BIAS, d=DENSE), {"relax.nn.conv2d": ["NCHW4c", "default"]}
    )
    want = bound(BlockNCHW4c, w=blocked(W), b=BIAS.reshape(1, 4, 1, 1, 4), d=DENSE)
    check(result, want)
    assert [c.target for c in result.changes] == ["NCHW4c"]


def test_nchw_changes_nothing(bound):
    mod = bound(Block, w=W, b=BIAS, d=DENSE)
    result = convert_layout_with_report(mod, {"nn.conv2d": "NCHW"})
    check(result, mod)
    assert result.count == 0


def test_there_and_back(bound):
    mod = bound(Block, w=W, b=BIAS, d=DENSE)
    there = convert_layout(mod, {"nn.conv2d": "NHWC"})
    back = convert_layout_with_report(there, {"nn.conv2d": "NCHW"})
    assert back.count == 0
    assert _ops(back.mod) == _ops(mod)
    [conv] = [a.call for a in anchors(back.mod) if a.op == "nn.conv2d"]
    np.testing.assert_array_equal(conv.args[1].value.numpy(), W)


def test_hwnc(bound):
    mod = convert_layout(bound(Block, w=W, b=BIAS, d=DENSE), {"nn.conv2d": ["HWNC", "HWOI"]})
    [conv] = [a.call for a in anchors(mod) if a.op == "nn.conv2d"]
    assert (conv.attrs.data_layout, conv.attrs.kernel_layout) == ("HWNC", "HWOI")
    np.testing.assert_array_equal(conv.args[1].value.numpy(), W.transpose(2, 3, 0, 1))
    assert tuple(map(int, conv.ty.shape)) == (8, 8, 1, 16)


def test_a_weight_that_is_no_constant_changes_at_run_time():
    @I.ir_module
    class After:
        @R.function
        def main(
            x: R.Tensor((1, 4, 5, 5), "float32"), w: R.Tensor((2, 4, 3, 3), "float32")
        ) -> R.Tensor((1, 2, 3, 3), "float32"):
            with R.dataflow():
                t = R.permute_dims(x, axes=[0, 2, 3, 1])
                u = R.permute_dims(w, axes=[2, 3, 1, 0])
                c = R.nn.conv2d(t, u, data_layout="NHWC", kernel_layout="HWIO")
                out = R.permute_dims(c, axes=[0, 3, 1, 2])
                R.output(out)
            return out

    result = convert_layout_with_report(One, {"nn.conv2d": "NHWC"})
    check(result, After)
    assert [c.where for c in result.changes] == ["x", "w", "out"]


@I.ir_module
class One:
    @R.function
    def main(x: R.Tensor((1, 4, 5, 5), "float32"), w: R.Tensor((2, 4, 3, 3), "float32")):
        with R.dataflow():
            out = R.nn.conv2d(x, w)
            R.output(out)
        return out


def test_pad_concat_split_follow(bound):
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((1, 16, 8, 8), "float32"), w: R.Tensor((16, 16, 1, 1), "float32")):
            with R.dataflow():
                a = R.nn.conv2d(x, w)
                p = R.nn.pad(a, [0, 0, 0, 0, 1, 2, 3, 4])
                q = R.concat((p, p), axis=1)
                parts = R.split(q, [8], axis=1)
                h = parts[0]
                k = parts[1]
                out = R.max(h, axis=[1, 2, 3]), R.max(k, axis=[1, 2, 3])
                R.output(out)
            return out

    @I.ir_module
    class After:
        @R.function
        def main(x: R.Tensor((1, 16, 8, 8), "float32"), w: R.Tensor((1, 1, 16, 16), "float32")):
            with R.dataflow():
                t = R.permute_dims(x, axes=[0, 2, 3, 1])
                a = R.nn.conv2d(t, w, data_layout="NHWC", kernel_layout="HWIO")
                p = R.nn.pad(a, [0, 0, 1, 2, 3, 4, 0, 0])
                q = R.concat((p, p), axis=3)
                parts = R.split(q, [8], axis=3)
                h = parts[0]
                k = parts[1]
                u = R.max(h, axis=[1, 2, 3])
                v = R.max(k, axis=[1, 2, 3])
                out = u, v
                R.output(out)
            return out

    check(
        convert_layout(bound(Before, w=POINT), {"nn.conv2d": "NHWC"}), bound(After, w=hwio(POINT))
    )


def test_transposes_merge(bound):
    """The model is channels-last, as TensorFlow exports it: no transpose is left."""

    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((1, 8, 8, 16), "float32"), w: R.Tensor((16, 16, 1, 1), "float32")):
            with R.dataflow():
                t = R.permute_dims(x, axes=[0, 3, 1, 2])
                r = R.nn.relu(t)
                c = R.nn.conv2d(r, w)
                out = R.permute_dims(c, axes=[0, 2, 3, 1])
                R.output(out)
            return out

    @I.ir_module
    class After:
        @R.function
        def main(x: R.Tensor((1, 8, 8, 16), "float32"), w: R.Tensor((1, 1, 16, 16), "float32")):
            with R.dataflow():
                r = R.nn.relu(x)
                out = R.nn.conv2d(r, w, data_layout="NHWC", kernel_layout="HWIO")
                R.output(out)
            return out

    result = convert_layout_with_report(bound(Before, w=POINT), {"nn.conv2d": "NHWC"})
    check(result, bound(After, w=hwio(POINT)))
    assert result.count == 0


def test_weights_after_flatten_are_reordered(bound, run):
    @I.ir_module
    class Before:
        @R.function
        def main(
            x: R.Tensor((2, 16, 3, 4), "float32"),
            w: R.Tensor((16, 16, 1, 1), "float32"),
            d: R.Tensor((192, 5), "float32"),
        ):
            with R.dataflow():
                c = R.nn.conv2d(x, w)
                f = R.reshape(c, R.shape([2, 192]))
                out = R.matmul(f, d)
                R.output(out)
            return out

    dense = RNG.standard_normal((192, 5), np.float32)
    mod = bound(Before, w=POINT, d=dense)
    result = convert_layout_with_report(mod, {"nn.conv2d": "NHWC"})
    assert [c.where for c in result.changes] == ["x"]
    [_, matmul] = anchors(result.mod)
    order = np.arange(192).reshape(16, 3, 4).transpose(1, 2, 0).ravel()
    np.testing.assert_array_equal(matmul.call.args[1].value.numpy(), dense[order])
    x = RNG.standard_normal((2, 16, 3, 4), np.float32)
    np.testing.assert_allclose(run(result.mod, x)[0], run(mod, x)[0], rtol=1e-4, atol=1e-4)


def test_squeeze_and_excite_adds_no_transpose(bound):
    """The scale (1, c, 1, 1) of a skipped layer changes layout as a view."""

    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((1, 16, 8, 8), "float32"), w: R.Tensor((16, 16, 1, 1), "float32")):
            with R.dataflow():
                c = R.nn.conv2d(x, w)
                m = R.mean(c, axis=[2, 3], keepdims=True)
                s = R.nn.conv2d(m, w)
                g = R.sigmoid(s)
                y = R.multiply(c, g)
                out = R.nn.conv2d(y, w)
                R.output(out)
            return out

    mod = bound(Before, w=POINT)
    for layout in ("NHWC", "NCHW8c", "HWNC"):
        result = convert_layout_with_report(mod, {"nn.conv2d": layout}, skip_layers=[1])
        assert [c.where for c in result.changes] == ["x", "out"]
        assert result.skipped == {1: "skip_layers: 1"}


@pytest.mark.parametrize("layout", ["NHWC", "NCHW8c"])
def test_call_of_a_clip_as_tensor_ir_follows(layout):
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 16, 8, 8), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            c = builder.emit(relax.op.nn.conv2d(x, relax.const(POINT)))
            low = builder.emit_te(tvm.topi.maximum, c, relax.const(np.zeros(1, "float32")))
            p = builder.emit_te(tvm.topi.nn.pad, low, [0, 0, 1, 1], [0, 0, 1, 1], 0.0)
            out = builder.emit_output(relax.op.nn.conv2d(p, relax.const(POINT)))
        builder.emit_func_output(out)
    result = convert_layout_with_report(builder.get(), {"nn.conv2d": layout})
    assert [c.where for c in result.changes] == ["x", "gv"]
    assert "relax.call_tir" not in _ops(result.mod)
    assert len(result.mod.functions) == 1


def test_branches_are_left_alone(bound, run):
    @I.ir_module
    class Before:
        @R.function
        def main(
            x: R.Tensor((1, 16, 8, 8), "float32"),
            w: R.Tensor((16, 16, 1, 1), "float32"),
            flag: R.Tensor((), "bool"),
        ) -> R.Tensor((1, 16, 8, 8), "float32"):
            a = R.nn.conv2d(x, w)
            if flag:
                b = R.nn.conv2d(a, w)
                c = R.nn.relu(b)
            else:
                c = R.nn.relu(a)
            out = R.add(R.nn.conv2d(c, w), a)
            return out

    mod = bound(Before, w=POINT)
    result = convert_layout_with_report(mod, {"nn.conv2d": "NHWC"})
    assert result.skipped == {1: "it is in a branch of an If"}
    assert [a.call.attrs.data_layout for a in anchors(result.mod)] == ["NHWC", "NCHW", "NHWC"]
    with pytest.raises(ConfigError, match="it is in a branch of an If; name it in skip_layers"):
        convert_layout_with_report(mod, {"nn.conv2d": "NHWC"}, auto_skip=False)
    x = RNG.standard_normal((1, 16, 8, 8), np.float32)

    # Not compared with the original module: memory planning of TVM 0.27 makes it crash.
    def point(a):
        return np.einsum("oi,nihw->nohw", POINT[:, :, 0, 0], a)

    for flag in (True, False):
        a = point(x)
        want = point(np.maximum(point(a) if flag else a, 0)) + a
        got = run(result.mod, x, np.array(flag))[0]
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_blocks_of_bindings(bound, run):
    """Only outputs of a dataflow block are visible after it."""

    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((1, 16, 8, 8), "float32"), w: R.Tensor((16, 16, 1, 1), "float32")):
            with R.dataflow():
                a = R.nn.conv2d(x, w)
                b = R.nn.relu(a)
                R.output(a, b)
            f = R.sigmoid(b)
            with R.dataflow():
                c = R.nn.conv2d(f, w)
                d = R.add(c, a)
                e = R.add(d, x)
                R.output(e)
            return e

    mod = bound(Before, w=POINT)
    result = convert_layout_with_report(mod, {"nn.conv2d": "NHWC"})
    x = RNG.standard_normal((1, 16, 8, 8), np.float32)
    np.testing.assert_allclose(run(result.mod, x)[0], run(mod, x)[0], rtol=1e-4, atol=1e-4)


def test_the_example_of_the_seed(relax_resnet):
    """Use ``LayoutConfig`` and ``count_layers`` as in apache/tvm pull request 6748."""
    mod = relax_resnet
    with LayoutConfig(skip_layers=[0]):
        converted = convert_layout(mod, {"nn.conv2d": ["HWNC", "default"]})
    assert count_layers(converted, "nn.conv2d") == count_layers(mod, "nn.conv2d") == 20
    layouts = [str(a.call.attrs.data_layout) for a in anchors(converted) if a.op == "nn.conv2d"]
    assert layouts == ["NCHW"] + ["HWNC"] * 19
    assert [(a.index, a.name) for a in anchors(converted)] == [
        (a.index, a.name) for a in anchors(mod)
    ]
    # Without the scope, the report names the layer and the reason.
    result = convert_layout_with_report(mod, {"nn.conv2d": "HWNC"})
    check(result, converted)
    assert result.skipped == {
        0: "3 input channels are fewer than the 16 that one tensor-core multiply sums over"
    }
    assert result.count == 1
    assert convert_layout_with_report(mod, {"nn.conv2d": "NHWC"}).count == 1
    blocks = convert_layout_with_report(mod, {"nn.conv2d": "NCHW16c"})
    assert (blocks.count, blocks.skipped) == (1, {0: "3 input channels are not a multiple of 16"})


@pytest.fixture(scope="module")
def relax_resnet():
    """Import a ResNet-18 with narrow layers."""
    from benchmarks.zoo_topologies import resnet
    from tvmopt.frontend import import_onnx, prepare
    from tvmopt.transform.simplify import simplify

    model = resnet((2, 2, 2, 2), False, image_size=32, classes=10, width=16)
    return simplify(import_onnx(prepare(model, {"image": (1, 3, 32, 32)}).model))


def _ops(mod):
    return [
        binding.value.op.name
        for block in mod["main"].body.blocks
        for binding in block.bindings
        if isinstance(binding.value, relax.Call)
    ]
