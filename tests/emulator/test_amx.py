"""The AMX emulator against NumPy: every instruction, addressing mode and fault."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tests.emulator import amx
from tvmopt import host

pytestmark = [
    pytest.mark.skipif(
        not {"avx2", "fma"} <= host.cpu_flags(), reason="the emulator is x86_64 code"
    ),
    pytest.mark.skipif(
        "amx_tile" in host.cpu_flags(), reason="this CPU has AMX: there is nothing to emulate"
    ),
]

_ROOT = Path(__file__).parents[2]
# One function per instruction, with all addressing modes of ModRM and SIB.
_SOURCE = r"""
#include <stdint.h>
unsigned char settings[64] __attribute__((aligned(64)));
void configure(const void *p) { asm volatile("ldtilecfg (%0)" :: "r"(p) : "memory"); }
void configure_global(void) { asm volatile("ldtilecfg settings(%%rip)" ::: "memory"); }
void configure_indexed(const char *p, int64_t i) {
    asm volatile("ldtilecfg 16(%0,%1,4)" :: "r"(p), "r"(i) : "memory");
}
void configuration(void *p) { asm volatile("sttilecfg (%0)" :: "r"(p) : "memory"); }
void release(void) { asm volatile("tilerelease"); }
void clear(void) { asm volatile("tilezero %tmm0"); }
void store(void *p, int64_t s) {
    asm volatile("tilestored %%tmm0, (%0,%1)" :: "r"(p), "r"(s) : "memory");
}
void store5(void *p, int64_t s) {
    asm volatile("tilestored %%tmm5, (%0,%1)" :: "r"(p), "r"(s) : "memory");
}
void load(const void *p, int64_t s) {
    asm volatile("tileloadd (%0,%1), %%tmm0" :: "r"(p), "r"(s) : "memory");
}
void load_left(const void *p, int64_t s) {
    asm volatile("tileloadd (%0,%1), %%tmm4" :: "r"(p), "r"(s) : "memory");
}
void load_right(const void *p, int64_t s) {
    asm volatile("tileloaddt1 (%0,%1), %%tmm6" :: "r"(p), "r"(s) : "memory");
}
#define FORM(name, text, ...) void name(const void *p, int64_t s) { \
    asm volatile("push %%rbp; push %%rbx; " text "; pop %%rbx; pop %%rbp" \
        :: "D"((const char *)p), "S"(s) : "memory", __VA_ARGS__); }
FORM(form_0, "mov %%rdi, %%r8; mov %%rsi, %%r9; tileloadd (%%r8,%%r9), %%tmm5", "r8", "r9")
FORM(form_1, "mov %%rdi, %%r13; mov %%rsi, %%r12; tileloadd (%%r13,%%r12,1), %%tmm5", "r13", "r12")
FORM(form_2, "lea -8(%%rdi), %%rax; shr $1, %%rsi; "
     "tileloadd 8(%%rax,%%rsi,2), %%tmm5", "rax", "cc")
FORM(form_3, "lea 4096(%%rdi), %%rbp; shr $2, %%rsi; mov %%rsi, %%r15;"
     "tileloadd -4096(%%rbp,%%r15,4), %%tmm5", "r15", "cc")
FORM(form_4, "lea -127(%%rdi), %%r14; shr $3, %%rsi; mov %%rsi, %%rbx;"
     "tileloadd 127(%%r14,%%rbx,8), %%tmm5", "r14", "cc")
FORM(form_5, "mov %%rdi, %%r12; tileloaddt1 (%%r12,%%rsi), %%tmm5", "r12", "cc")
void from_stack(const int64_t *p) {
    asm volatile("push (%0); xor %%esi, %%esi; tileloadd (%%rsp,%%rsi), %%tmm5; pop %%rsi"
        :: "r"(p) : "rsi", "memory");
}
void no_index(const void *p) {
    asm volatile(".byte 0xc4,0xe2,0x7b,0x4b,0x2c,0x27" :: "D"(p) : "memory");
}
#define PRODUCT(name) void name(void) { asm volatile(#name " %tmm6, %tmm4, %tmm0"); }
PRODUCT(tdpbssd) PRODUCT(tdpbsud) PRODUCT(tdpbusd) PRODUCT(tdpbuud) PRODUCT(tdpbf16ps)
void same_tile(void) { asm volatile(".byte 0xc4,0xe2,0x59,0x5e,0xc4"); }
void undefined(void) { asm volatile("ud2"); }
"""


@pytest.fixture(scope="module")
def code(tmp_path_factory):
    folder = tmp_path_factory.mktemp("amx")
    (folder / "code.c").write_text(_SOURCE)
    options = ["-O2", "-shared", "-fPIC", "-mno-red-zone", "-Wl,-Bsymbolic"]
    command = ["gcc", *options, "code.c", "-o", "code.so"]
    subprocess.run(command, cwd=folder, check=True)
    return str(folder / "code.so")


@pytest.fixture
def lib(code):
    return ctypes.CDLL(code)


def _configuration(rows, k_bytes, columns=16, palette=1, **bytes_at):
    """Configure tile 0 as accumulator, 4 as left and 6 as right operand, and 5 as a full tile."""
    config = np.zeros(64, np.uint8)
    config[0] = palette
    for tile, tile_rows, tile_bytes in (
        (0, rows, 4 * columns),
        (4, rows, k_bytes),
        (5, 16, 64),
        (6, k_bytes // 4, 4 * columns),
    ):
        config[16 + 2 * tile], config[48 + tile] = tile_bytes, tile_rows
    for place, value in bytes_at.items():
        config[int(place.removeprefix("at_"))] = value
    return config


def _address(array, offset=0):
    return ctypes.c_void_p(array.ctypes.data + offset)


def _multiply(lib, name, sums, left, right, rows, k_bytes, columns=16):
    """Compute ``sums + left @ right`` by one instruction; left is (rows, K), right is packed."""
    config, out = _configuration(rows, k_bytes, columns), np.full((16, 20), -1, sums.dtype)
    lib.configure(_address(config))
    lib.load(_address(sums), ctypes.c_int64(sums.strides[0]))
    lib.load_left(_address(left), ctypes.c_int64(left.strides[0]))
    lib.load_right(_address(right), ctypes.c_int64(right.strides[0]))
    getattr(lib, name)()
    lib.store(_address(out), ctypes.c_int64(out.strides[0]))
    lib.release()
    assert (out[rows:] == -1).all() and (out[:, columns:] == -1).all()
    return out[:rows, :columns]


_TYPES = {
    "tdpbssd": (np.int8, np.int8),
    "tdpbsud": (np.int8, np.uint8),
    "tdpbusd": (np.uint8, np.int8),
    "tdpbuud": (np.uint8, np.uint8),
}


def _random(rng, dtype, shape):
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    values = rng.integers(low, high, shape, dtype, endpoint=True)
    values.flat[0], values.flat[-1] = low, high
    return values


@pytest.mark.parametrize("name", _TYPES)
@pytest.mark.parametrize(
    ("rows", "k_bytes", "columns"), [(16, 64, 16), (1, 4, 1), (7, 24, 16), (14, 48, 5), (16, 4, 16)]
)
def test_int8_multiply(lib, name, rows, k_bytes, columns):
    rng = np.random.default_rng(rows * k_bytes)
    left = _random(rng, _TYPES[name][0], (rows, k_bytes + 3))[:, :k_bytes]
    right = _random(rng, _TYPES[name][1], (k_bytes, columns))
    sums = rng.integers(-(2**31), 2**31, (rows, columns)).astype(np.int32)
    packed = np.ascontiguousarray(right.reshape(-1, 4, columns).transpose(0, 2, 1))
    packed = packed.reshape(k_bytes // 4, 4 * columns)
    with amx.emulated() as counts:
        got = _multiply(lib, name, sums, left, packed, rows, k_bytes, columns)
    want = sums.astype(np.int64) + left.astype(np.int64) @ right.astype(np.int64)
    np.testing.assert_array_equal(got, want.astype(np.int32))  # wraps around
    assert counts[name] == counts["ldtilecfg"] == counts["tilerelease"] == 1
    assert counts["tileloadd"] == 2
    assert (counts["tileloaddt1"], counts["tilestored"], counts["tilezero"]) == (1, 1, 0)


def _dot_pairs(sums, left, right):
    """Return tdpbf16ps by Intel's pseudocode: accumulate even and odd K apart, in float32."""

    def fma(total, a, b):
        return (total.astype(np.float64) + a.astype(np.float64) * b).astype(np.float32)

    halves = [np.zeros_like(sums), np.zeros_like(sums)]
    for k in range(left.shape[1]):
        halves[k % 2] = fma(halves[k % 2], left[:, k, None], right[None, k])
    return sums + (halves[0] + halves[1])


@pytest.mark.parametrize(("rows", "k_bytes", "columns"), [(16, 64, 16), (7, 24, 16), (3, 4, 5)])
def test_bfloat16_multiply(lib, rows, k_bytes, columns):
    rng = np.random.default_rng(k_bytes)
    depth = k_bytes // 2
    left = rng.standard_normal((rows, depth)).astype(ml_dtypes.bfloat16)
    right = rng.standard_normal((depth, columns)).astype(ml_dtypes.bfloat16)
    sums = rng.standard_normal((rows, columns)).astype(np.float32)
    packed = right.reshape(-1, 2, columns).transpose(0, 2, 1).reshape(depth // 2, 2 * columns)
    packed = np.ascontiguousarray(packed)
    with amx.emulated():
        got = _multiply(lib, "tdpbf16ps", sums, left, packed, rows, k_bytes, columns)
    want = _dot_pairs(sums, left.astype(np.float32), right.astype(np.float32))
    np.testing.assert_array_equal(got, want)


def test_bfloat16_flushes_denormals_to_zero(lib):
    tiny, one = np.float32(2.0**-126), np.float32(1)
    zero = np.float32(0)
    cases = [  # left, right, accumulator before and after
        (tiny / 2, 2.0**100, zero, zero),
        (2.0**100, tiny / 4, zero, zero),
        (tiny, -1.0, 1.5 * tiny, zero),
        (tiny, -1.0, 2 * tiny, tiny),
        (tiny, 0.5, zero, zero),
        (tiny, 1.0, zero, tiny),
        (0.0, 0.0, tiny / 2, zero),
        (np.inf, 1.0, one, np.float32(np.inf)),
        (np.inf, 0.0, one, np.float32(np.nan)),
    ]
    for left, right, before, after in cases:
        a = np.array([[left, 0]]).astype(ml_dtypes.bfloat16)
        b = np.array([[right, 0]]).astype(ml_dtypes.bfloat16)
        with amx.emulated():
            got = _multiply(lib, "tdpbf16ps", np.full((1, 1), before), a, b, 1, 4, 1)
        np.testing.assert_array_equal(got, [[after]])


def test_rounds_once_to_nearest_even(lib):
    ones, half = np.float32(1), np.float32(2.0**-24)  # half a ulp of 1
    for factor, want in ((1.0, ones), (1.0078125, np.nextafter(ones, np.float32(2)))):
        a = np.array([[factor, 0]]).astype(ml_dtypes.bfloat16)
        b = np.array([[half, 0]]).astype(ml_dtypes.bfloat16)
        with amx.emulated():
            got = _multiply(lib, "tdpbf16ps", np.full((1, 1), ones), a, b, 1, 4, 1)
        np.testing.assert_array_equal(got, [[want]])


@pytest.mark.parametrize("form", range(6))
@pytest.mark.parametrize("stride", [64, 72, 128])
def test_every_addressing_mode(lib, form, stride):
    data = np.random.default_rng(form).integers(0, 256, (16, stride), np.uint8)
    out = np.zeros((16, 64), np.uint8)
    with amx.emulated():
        lib.configure(_address(_configuration(16, 64)))
        getattr(lib, f"form_{form}")(_address(data), ctypes.c_int64(stride))
        lib.store5(_address(out), ctypes.c_int64(64))
        lib.release()
    np.testing.assert_array_equal(out, data[:, :64])


def test_negative_stride_and_no_index(lib):
    data = np.random.default_rng(1).integers(0, 256, (16, 64), np.uint8)
    out = np.zeros((16, 64), np.uint8)
    with amx.emulated():
        lib.configure(_address(_configuration(16, 64)))
        lib.form_0(_address(data, 15 * 64), ctypes.c_int64(-64))
        lib.store5(_address(out), ctypes.c_int64(64))
        np.testing.assert_array_equal(out, data[::-1])
        lib.no_index(_address(data))  # every row from one address
        lib.store5(_address(out), ctypes.c_int64(64))
        np.testing.assert_array_equal(out, np.repeat(data[:1], 16, 0))


def test_the_base_register_may_be_the_stack_pointer(lib):
    words = np.array([0x1122334455667788], np.int64)
    out = np.zeros((16, 64), np.uint8)
    with amx.emulated():
        lib.configure(_address(_configuration(16, 64)))
        lib.from_stack(_address(words))
        lib.store5(_address(out), ctypes.c_int64(64))
    np.testing.assert_array_equal(out[3, :8].view(np.int64), words)


def test_sttilecfg_returns_the_configuration(lib):
    config = _configuration(7, 24)
    held = np.frombuffer((ctypes.c_uint8 * 64).in_dll(lib, "settings"), np.uint8)
    padded = np.concatenate([np.zeros(28, np.uint8), config])
    with amx.emulated() as counts:
        for configure in (
            lambda: lib.configure(_address(config)),
            lambda: (np.copyto(held, config), lib.configure_global()),
            lambda: lib.configure_indexed(_address(padded), ctypes.c_int64(3)),
        ):
            configure()
            out = np.full(64, 9, np.uint8)
            lib.configuration(_address(out))
            np.testing.assert_array_equal(out, config)
            lib.release()
            lib.configuration(_address(out))
            assert not out.any()
    assert counts["ldtilecfg"] == 3 and counts["sttilecfg"] == 6


def test_tilezero_and_configuring_clear(lib):
    ones, out = np.ones((16, 16), np.int32), np.ones((16, 16), np.int32)
    config = _configuration(16, 64)
    with amx.emulated() as counts:
        for clear in (lib.clear, lambda: lib.configure(_address(config))):
            lib.configure(_address(config))
            lib.load(_address(ones), ctypes.c_int64(64))
            clear()
            lib.store(_address(out), ctypes.c_int64(64))
            assert not out.any()
    assert counts["tilezero"] == 1


def test_each_thread_has_its_own_tiles(lib):
    config, ones = _configuration(16, 64), np.ones((16, 16), np.int32)
    seen = []

    def other():
        out = np.full(64, 9, np.uint8)
        lib.configuration(_address(out))
        seen.append(out)

    with amx.emulated():
        lib.configure(_address(config))
        lib.load(_address(ones), ctypes.c_int64(64))
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        out = np.zeros((16, 16), np.int32)
        lib.store(_address(out), ctypes.c_int64(64))
    assert not seen[0].any()
    np.testing.assert_array_equal(out, ones)


_SPACE = np.zeros((16, 16), np.int32)
_WRONG = {
    "tileloadd: tiles must be configured first": lambda lib: lib.load(_address(_SPACE), 64),
    "tdpbusd: tiles must be configured first": lambda lib: lib.tdpbusd(),
    "tilezero: tiles must be configured first": lambda lib: lib.clear(),
    "tilestored: tiles must be configured first": lambda lib: (
        lib.configure(_address(_configuration(16, 64))),
        lib.release(),
        lib.store(_address(_SPACE), 64),
    ),
    "tileloadd: the configuration must give the tile rows": lambda lib: (
        lib.configure(_address(_configuration(16, 64, at_16=0, at_48=0))),
        lib.load(_address(_SPACE), 64),
    ),
    "tdpbusd: shapes of the three tiles must fit": lambda lib: (
        lib.configure(_address(_configuration(16, 64, at_48=8))),
        lib.tdpbusd(),
    ),
    "tdpbssd: shapes of the three tiles must fit": lambda lib: (
        lib.configure(_address(_configuration(16, 64, at_24=60))),
        lib.tdpbssd(),
    ),
    "tdpbf16ps: shapes of the three tiles must fit": lambda lib: (
        lib.configure(_address(_configuration(16, 64, at_28=32))),
        lib.tdpbf16ps(),
    ),
    "tdpbusd: bytes of a row must be a multiple of 4": lambda lib: (
        lib.configure(_address(_configuration(16, 64, at_24=62))),
        lib.tdpbusd(),
    ),
    "tdpbusd: the three tiles must differ": lambda lib: (
        lib.configure(_address(_configuration(16, 64))),
        lib.same_tile(),
    ),
    "ldtilecfg: palette must be 0 or 1": lambda lib: lib.configure(
        _address(_configuration(16, 64, palette=2))
    ),
    "ldtilecfg: reserved bytes": lambda lib: lib.configure(_address(_configuration(8, 8, at_60=1))),
    "ldtilecfg: a tile must have up to 16 rows": lambda lib: lib.configure(
        _address(_configuration(17, 8))
    ),
    "ldtilecfg: a tile must have up to 16 rows of up to 64": lambda lib: lib.configure(
        _address(_configuration(8, 64, at_24=68))
    ),
    "ldtilecfg: a tile must have up to 16 rows of up to 64 bytes, or neither": lambda lib: (
        lib.configure(_address(_configuration(8, 64, at_49=3)))
    ),
}


@pytest.mark.parametrize("message", _WRONG)
def test_illegal_use_is_an_error(lib, message):
    with (
        pytest.raises(amx.EmulationError, match=f"as Intel's manual says, but {message}"),
        amx.emulated(),
    ):
        _WRONG[message](lib)
    with amx.emulated():
        lib.release()  # a fault is not reported twice


def _child(code, body):
    """Run Python code with the library as ``lib``, without pytest's fault handler."""
    program = f"import ctypes; lib = ctypes.CDLL({code!r})\nfrom tests.emulator import amx\n{body}"
    return subprocess.run(
        [sys.executable, "-c", program], cwd=_ROOT, capture_output=True, text=True
    )


def test_illegal_use_aborts_when_installed(code):
    done = _child(code, "amx.install(); lib.tdpbusd(); print('went on')")
    assert done.returncode == -6
    assert "emulated AMX: tdpbusd: tiles must be configured first" in done.stderr
    assert done.stdout == ""


def test_after_uninstall_the_signal_kills_the_process(code):
    body = "amx.install(); amx.uninstall(); lib.clear()"
    assert _child(code, body).returncode == -4  # the child has no AMX permission


@pytest.mark.parametrize("handler", ["", "import faulthandler; faulthandler.enable()"])
def test_other_illegal_instructions_are_not_caught(code, handler):
    done = _child(code, f"{handler}\namx.install(); lib.undefined()")
    assert done.returncode == -4
    assert ("Illegal instruction" in done.stderr) == bool(handler)


def test_unknown_mnemonic():
    with amx.emulated() as counts, pytest.raises(KeyError, match="vpdpbusd"):
        counts["vpdpbusd"]


@pytest.mark.parametrize(("isa", "flags"), [("aarch64", {"avx2", "fma"}), ("x86_64", {"avx2"})])
def test_other_machines_are_refused(monkeypatch, isa, flags):
    monkeypatch.setattr(host, "isa", lambda: isa)
    monkeypatch.setattr(host, "cpu_flags", lambda: frozenset(flags))
    with pytest.raises(amx.EnvironmentSetupError, match="can be emulated on x86_64 with AVX2"):
        amx._library.__wrapped__()


def test_no_compiler(monkeypatch):
    monkeypatch.setattr(amx.shutil, "which", lambda name: None)
    with pytest.raises(amx.EnvironmentSetupError, match="gcc, g\\+\\+ and cc are not found"):
        amx._built()


def test_a_compile_error_is_reported(monkeypatch, tmp_path):
    source = tmp_path / "amx.c"
    source.write_text("int wrong(")
    monkeypatch.setattr(amx, "_SOURCE", source)
    with pytest.raises(amx.EnvironmentSetupError, match=r"must compile, but it does not: .*error"):
        amx._built()
    assert list(amx._built.__globals__["_SOURCE"].parent.iterdir()) == [source]
