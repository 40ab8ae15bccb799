"""Compare fused attention on a GPU with PyTorch's (cuDNN, FlashAttention), float16 forward.

Usage, in two steps, so that no time on the GPU is spent on nvcc::

    python -m benchmarks.cuda_attention build --out DIR [--sweep K] [--rows GLOB,..] [--decode]
        [--family NAME] [--device GPU] [--configs ..]
    python -m benchmarks.cuda_attention run --in DIR [--rows GLOB,..] [--decode] [--json FILE]

``build`` needs nvcc and no GPU; ``run`` needs a GPU and PyTorch, and no nvcc. Rows:
:mod:`benchmarks.attention_rows`; ``--decode`` stands for all rows of one query. ``--family
mma_attention`` builds the best kernels of one family only, ``--device nvidia-a100`` kernels for
another GPU than an H200. ``--configs`` adds configurations to the ``--sweep K`` best ones, each as
``consumer_warpgroups=2:tile_keys=176``, of the family or else of the first choice's. Contenders of
a row are timed interleaved, as CUDA graphs; calls of a row of one query take turns with copies of K
and V, which together exceed L2. A kernel that hangs or faults is reported, and the others go on.
"""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.attention_rows import rows
from benchmarks.prebuilt import build_libraries, export_configured
from benchmarks.report import markdown
from tvmopt.kernels.attention.problem import AttentionProblem, MaskedBy
from tvmopt.measure.workers import Job, WorkerPool

_DEVICE = "nvidia-h200"
_PEERS = ("cudnn", "flash", "efficient")
# Copies of K and V of a row of one query take at least this many bytes, several times L2.
_COLD_BYTES = 512 * 1024**2
# Timeouts in seconds: of building a kernel, of a row's measurement, of one kernel's own.
_BUILD_S, _ROW_S, _KERNEL_S = 120.0, 60.0, 30.0


def chosen(patterns: str) -> list[str]:
    """Return the names of the rows that match one of the patterns, separated by commas."""
    wanted = patterns.split(",")
    return [name for name in rows() if any(fnmatch.fnmatch(name, p) for p in wanted)]


def configs_of(
    problem: AttentionProblem, count: int, texts: Sequence[str], family: str, device: str
) -> list[Any]:
    """Return the ``count`` best configurations, and those that ``texts`` describe and that fit.

    Args:
        problem: The problem.
        count: Number of configurations that the cost models choose.
        texts: Fields of further ones.
        family: Name of the only family; all families if empty.
        device: The GPU.
    """
    from tvmopt.device.gpus import GPUS
    from tvmopt.kernels.attention.function import attention_function
    from tvmopt.kernels.families import by_name
    from tvmopt.kernels.policies import policy_of
    from tvmopt.kernels.ranked import spread

    gpu = GPUS[device]
    policy = policy_of(attention_function(problem), gpu)
    found: list[Any] = policy.emit_config(count)
    if family:
        own = [one for one in policy.ranked if one.hint.template == family]
        found = [one.hint for one in spread(own, count)]
    for text in texts:
        fields = dict(part.split("=") for part in text.split(":"))
        name = family or found[0].template
        config: Any = by_name()[name].config_type(
            name, gpu, **{key: json.loads(value.lower()) for key, value in fields.items()}
        )
        if config not in found and config.why_not(problem) is None:
            found.append(config)
    return found


def build_kernel(row: str, config: dict[str, Any], path: str) -> None:
    """Build the kernel of a row and a configuration, as ``main`` of the library ``path``."""
    from tvmopt.kernels.attention.function import attention_function

    export_configured(attention_function(rows()[row]), config, path)


def build(
    names: Sequence[str], count: int, texts: Sequence[str], folder: Path, family: str, device: str
) -> int:
    """Build all kernels into ``folder``, with an index; return the number of failures."""
    kernels = []
    for name in names:
        for config in configs_of(rows()[name], count, texts, family, device):
            library = f"{name}-{config.config_id}.so"
            shown = {"family": config.template, **config.shown()}
            entry = {"row": name, "library": library, "config": shown}
            kernels.append((entry, config.to_dict()))
    return build_libraries("benchmarks.cuda_attention:build_kernel", kernels, folder, _BUILD_S)


# -- jobs on the GPU ---------------------------------------------------------------------------


def start() -> None:
    """Import PyTorch and create the CUDA context."""
    import torch
    import tvm  # noqa: F401

    torch.zeros(1, device="cuda")


def _reference(torch: Any, q: Any, k: Any, v: Any, causal: bool, scale: float) -> Any:
    """Attention in float32, a few heads at a time."""
    batch, heads, queries, _ = q.shape
    keys, shared = k.shape[2], heads // k.shape[1]
    out = torch.empty((batch * heads, queries, v.shape[-1]), device="cuda")
    flat = [x.reshape(-1, *x.shape[2:]) for x in (q, k, v)]
    step = max(1, min((1 << 28) // (queries * keys), (1 << 28) // (keys * k.shape[-1])))
    hidden = None
    if causal:
        hidden = torch.ones(queries, keys, dtype=torch.bool, device="cuda").triu(1)
    for first in range(0, out.shape[0], step):
        lines = torch.arange(first, min(first + step, out.shape[0]), device="cuda")
        one = flat[0][lines].float()
        two, three = (x[lines // shared].float() for x in flat[1:])
        scores = one @ two.transpose(1, 2) * scale
        if hidden is not None:
            scores.masked_fill_(hidden, float("-inf"))
        out[first : first + step] = torch.softmax(scores, -1) @ three
    return out.reshape(batch, heads, queries, -1)


def measure(row: str, libraries: dict[str, str], peers: bool = True) -> dict[str, Any]:
    """Check and time the kernels of a row, and PyTorch's; return errors, milliseconds, problems.

    Args:
        row: Name of the row.
        libraries: Library by contender.
        peers: Whether to time PyTorch too.
    """
    import statistics

    import torch
    import tvm
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    from benchmarks.cuda_timing import time_graphs
    from tvmopt.errors import last_line

    p = rows()[row]
    causal, grouped = p.causal is not MaskedBy.NOTHING, p.heads != p.kv_heads
    torch.backends.cuda.matmul.allow_tf32 = False
    generator = torch.Generator(device="cuda").manual_seed(0)
    dtype = getattr(torch, p.dtype)
    q, k, v = (
        torch.randn(shape, device="cuda", generator=generator).to(dtype)
        for shape, _ in p.shapes()[:3]
    )
    expected = _reference(torch, q, k, v, causal, p.scale)
    copies = [[k, v]]
    if p.queries == 1:  # decoding reads the cache from DRAM
        more = _COLD_BYTES // p.cache_bytes()
        copies += [[k.clone(), v.clone()] for _ in range(more)]
    device, stream = tvm.runtime.cuda(0), torch.cuda.Stream()
    torch.cuda.synchronize()
    device.set_raw_stream(stream.cuda_stream)
    given = [[tvm.runtime.from_dlpack(x) for x in (q, *copy)] for copy in copies]
    result: dict[str, Any] = {"errors": {}, "ms": {}, "problems": {}}
    runs: dict[str, Any] = {}

    def error(got: Any, expected: Any = expected) -> float:
        worst = float((got.float() - expected).abs().max())
        return worst if worst == worst else float("inf")

    for name, library in libraries.items():
        out = torch.full(p.shapes()[-1][0], float("nan"), device="cuda", dtype=dtype)
        target = tvm.runtime.from_dlpack(out)
        torch.cuda.synchronize()
        try:
            kernel = tvm.runtime.load_module(library)["main"]
            kernel(*given[0], target)
            torch.cuda.synchronize()
        except Exception as problem:
            result["problems"][name] = last_line(problem, 200)
            continue
        result["errors"][name] = error(out)
        turns = itertools.cycle(given)
        runs[name] = lambda kernel=kernel, target=target, turns=turns: kernel(*next(turns), target)
    backends = {
        "cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION,
        **({"efficient": SDPBackend.EFFICIENT_ATTENTION} if p.queries == 1 else {}),
    }  # fmt: skip
    for name, backend in backends.items() if peers else ():

        def peer(backend: Any = backend, turns: Any = itertools.cycle(copies)) -> Any:  # noqa: B008
            k, v = next(turns)
            with sdpa_kernel(backend):
                return scaled_dot_product_attention(
                    q, k, v, is_causal=causal, scale=p.scale, enable_gqa=grouped
                )

        try:
            result["errors"][name] = error(peer())
            runs[name] = peer
        except Exception as problem:
            result["problems"][name] = last_line(problem, 200)
    for name, times in time_graphs(torch, runs, stream).items():
        result["ms"][name] = statistics.median(times)
    result["gpu"] = f"{torch.cuda.get_device_name()}, torch {torch.__version__}, " + (
        f"cuDNN {torch.backends.cudnn.version()}"
    )
    return result


# -- report --------------------------------------------------------------------------------------


@dataclasses.dataclass
class AttentionRow:
    """Results of a row.

    Attributes:
        name: Name of the row.
        configs: Configuration by contender; the first one is the top-1.
        found: Result of :func:`measure`.
    """

    name: str
    configs: dict[str, dict[str, Any]]
    found: dict[str, Any] = dataclasses.field(default_factory=dict)

    def teraflops(self, contender: str) -> float:
        """Return TFLOP/s, half as many operations with a causal mask; 0 without a time."""
        ms = self.found.get("ms", {}).get(contender)
        problem = rows()[self.name]
        share = 0.5 if problem.causal is not MaskedBy.NOTHING else 1.0
        return 2 * problem.macs() * share / ms / 1e9 if ms else 0.0

    def gigabytes(self, contender: str) -> float:
        """Return GB/s of K and V; 0 without a time."""
        ms = self.found.get("ms", {}).get(contender)
        return rows()[self.name].cache_bytes() / ms / 1e6 if ms else 0.0

    @property
    def decodes(self) -> bool:
        """Whether it has one query, whose rate is GB/s."""
        return rows()[self.name].queries == 1

    def rate(self, contender: str) -> float:
        """Return TFLOP/s, or GB/s of one query."""
        return self.gigabytes(contender) if self.decodes else self.teraflops(contender)

    def cells(self) -> list[str]:
        """Return the cells of the table's line."""
        peers = max(self.rate(peer) for peer in _PEERS)
        first = next(iter(self.configs), "")
        best = max(self.configs, key=self.rate, default="")
        errors = self.found.get("errors", {})
        ratio = [f"{self.rate(one) / peers:.3f}" if peers else "-" for one in (first, best)]
        own = [f"{self.found.get('ms', {}).get(best, 0.0) * 1e3:.1f}"] if self.decodes else []
        shown = _PEERS if self.decodes else _PEERS[:2]
        return [
            self.name,
            *(f"{self.rate(one):.0f}" for one in (*shown, first, best)),
            *own,
            *ratio,
            f"{max((errors.get(one, 0.0) for one in self.configs), default=0.0):.1e}",
            f"{errors.get('cudnn', errors.get('flash', 0.0)):.1e}",
            _text(self.configs.get(best, {})),
        ]


def _text(config: dict[str, Any]) -> str:
    return ":".join(f"{key}={value}" for key, value in config.items()) or "default"


def run(folder: Path, names: Sequence[str], json_path: str) -> int:
    """Measure the rows that ``folder`` has kernels for; return the number of problems."""
    index = json.loads((folder / "index.json").read_text())
    found: list[AttentionRow] = []
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch, WorkerPool(1, 4, Path(scratch), "run") as pool:
        pool.run([Job("benchmarks.cuda_attention:start", {}, 120.0)])
        for name in names:
            entries = [entry for entry in index if entry["row"] == name]
            if not entries:
                continue
            row = AttentionRow(name, {f"ours{n}": e["config"] for n, e in enumerate(entries)})
            libraries = {
                f"ours{n}": str((folder / e["library"]).resolve()) for n, e in enumerate(entries)
            }
            row.found = _measured(pool, name, libraries)
            found.append(row)
            _print_row(row, time.perf_counter() - begin)
    tail = (
        "top-1 / theirs", "best / theirs", "max error", "their error", "best configuration",
    )  # fmt: skip
    print(next((row.found["gpu"] for row in found if "gpu" in row.found), "no GPU"))
    for decodes, head in (
        (False, ("row", "cuDNN TFLOP/s", "flash", "top-1", "best")),
        (True, ("row", "cuDNN GB/s", "flash", "efficient", "top-1", "best", "best us")),
    ):
        table = [row.cells() for row in found if row.decodes == decodes]
        if table:
            print(markdown((*head, *tail), table))
    if json_path:
        Path(json_path).write_text(json.dumps([dataclasses.asdict(r) for r in found], indent=1))
    return sum(len(row.found.get("problems", {})) for row in found)


def _measured(pool: WorkerPool, name: str, libraries: dict[str, str]) -> dict[str, Any]:
    """Measure a row at once; if that fails, each kernel by itself, to find which one fails."""
    function = "benchmarks.cuda_attention:measure"
    [outcome] = pool.run([Job(function, {"row": name, "libraries": libraries}, _ROW_S)])
    if outcome.error is None:
        value: dict[str, Any] = outcome.value
        return value
    problems, good = {}, {}
    for contender, library in libraries.items():
        one = {"row": name, "libraries": {contender: library}, "peers": False}
        [outcome] = pool.run([Job(function, one, _KERNEL_S)])
        if outcome.error is None and not outcome.value["problems"]:
            good[contender] = library
        else:
            problems[contender] = outcome.error or outcome.value["problems"][contender]
    [outcome] = pool.run([Job(function, {"row": name, "libraries": good}, _ROW_S)])
    value = outcome.value if outcome.error is None else {"problems": {"row": outcome.error}}
    value["problems"] = value.get("problems", {}) | problems
    return value


def _print_row(row: AttentionRow, seconds: float) -> None:
    """Print each configuration of a row, fastest first."""
    peers = ", ".join(f"{peer} {row.rate(peer):.0f}" for peer in _PEERS if row.rate(peer))
    unit = "GB/s" if row.decodes else "TFLOP/s"
    print(f"{seconds:.0f} s  {row.name}: {peers or 'no peer'} {unit}", flush=True)
    for contender in sorted(row.configs, key=row.rate, reverse=True):
        error = row.found.get("errors", {}).get(contender, float("nan"))
        print(f"    {row.rate(contender):5.0f}  error {error:.1e}  "
              f"{contender} {_text(row.configs[contender])}", flush=True)  # fmt: skip
    for contender, problem in row.found.get("problems", {}).items():
        print(f"    {contender} FAILED: {problem}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cuda_attention")
    parser.add_argument("step", choices=("build", "run"))
    parser.add_argument("--out", default="attention-kernels", help="folder that build writes")
    parser.add_argument("--in", dest="folder", default="attention-kernels", help="folder to run")
    parser.add_argument("--rows", default="h64-*,h128-*", help="patterns, separated by commas")
    parser.add_argument("--decode", action="store_true", help="all rows of one query")
    parser.add_argument("--family", default="", help="build kernels of this family only")
    parser.add_argument("--device", default=_DEVICE, help="GPU to build for")
    parser.add_argument("--sweep", type=int, default=1, help="best configurations of each row")
    parser.add_argument("--configs", default="", help="more configurations, separated by commas")
    parser.add_argument("--json", default="", help="file to write the results to")
    args = parser.parse_args(arguments)
    names = chosen("decode-*" if args.decode else args.rows)
    if not names:
        parser.error(f"rows must match one of {', '.join(rows())}, but got {args.rows!r}")
    if args.step == "build":
        texts = [text for text in args.configs.split(",") if text]
        return int(build(names, args.sweep, texts, Path(args.out), args.family, args.device) > 0)
    return int(run(Path(args.folder), names, args.json) > 0)


if __name__ == "__main__":
    sys.exit(main())
