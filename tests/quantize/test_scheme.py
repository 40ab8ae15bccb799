"""Tests of the quantization scheme and of the modelled gain of each dtype."""

import pytest

from tvmopt.errors import ConfigError
from tvmopt.quantize import Bar, Scheme
from tvmopt.quantize.roofline import LayerWork, roofline


def test_round_trip():
    scheme = Scheme("s8s8", "percentile", 99.9, per_channel=False, symmetric=True)
    assert Scheme.from_dict(scheme.to_dict()) == scheme


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"types": "u8u8"}, "must be one of u8s8, s8s8, u8s8-pairs .*, but got 'u8u8'"),
        ({"method": "mse"}, "must be one of minmax, entropy, percentile, but got 'mse'"),
        ({"percentile": 50}, "percentile must be above 50 and at most 100, but got 50"),
        ({"percentile": 100.5}, "but got 100.5"),
        ({"percentile": True}, "but got True"),
        ({"per_channel": 1}, "per_channel must be true or false, but got 1"),
    ],
)
def test_wrong_values(values, message):
    with pytest.raises(ConfigError, match=message):
        Scheme(**values)


@pytest.mark.parametrize("name", ["margin", "tail_margin"])
def test_wrong_bar(name):
    with pytest.raises(ConfigError, match=f"{name} must be above 0 and at most 1, but got 0"):
        Bar(**{name: 0})


def test_features_decide_what_a_type_gains():
    plain, vnni, amx = (
        roofline(flags, 2)
        for flags in ({"avx512f"}, {"avx512f", "avx512_vnni"}, {"avx512f", "amx_bf16"})
    )
    heavy = LayerWork(flops=1e12, elements=1e3)
    assert plain.seconds(heavy, "int8") == plain.seconds(heavy, "float32")
    assert vnni.seconds(heavy, "int8") == vnni.seconds(heavy, "float32") / 4
    assert amx.seconds(heavy, "bfloat16") == amx.seconds(heavy, "float32") / 16
    light = LayerWork(flops=1, elements=1e9)  # memory-bound: only bytes count
    assert plain.seconds(light, "int8") == plain.seconds(light, "float32") / 4
    assert plain.seconds(light, "float16") == plain.seconds(light, "float32") / 2


def test_wider_vectors_and_more_cores_are_faster():
    peaks = [roofline(f, c).flops for f, c in (({"sse"}, 1), ({"avx2"}, 1), ({"avx512f"}, 2))]
    assert peaks == [peaks[0], 2 * peaks[0], 8 * peaks[0]]
