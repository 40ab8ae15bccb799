"""A served model beside ``mlflow.onnx``: ``python -m benchmarks.serving``.

The bundled example, or another model of one input, behind the entry point ``serve`` and behind
``mlflow models serve``, and the same ONNX model in ``mlflow.onnx`` behind ``mlflow models serve``.
All servers run on this machine, and only one is asked at a time, in turns. The clients are
connections of one process that wait for nothing but the answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks import zoo
from benchmarks.options import begin_table, table_parser

_OWN, _OURS, _THEIRS = "serve", "mlflow models serve", "mlflow.onnx"
_EXAMPLE = "digits_cnn"
_TOLERANCE = 1e-3


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return the number of wrong answers."""
    parser = table_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="time of each turn")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--clients", default="1,8,32", help="numbers, separated by commas")
    parser.add_argument("--model", default=_EXAMPLE, help=f"{_EXAMPLE}, or a name of the zoo")
    given = begin_table(parser, arguments)
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="tvmopt-") as folder:
        body, expected = _prepare(Path(folder), given.model, given.threads)
        with _servers(Path(folder)) as (ports, groups):
            print(
                "| clients | server | requests a second | p50, ms | p99, ms | answers | wrong"
                " | memory before, MiB | after |"
            )
            print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
            for clients in map(int, given.clients.split(",")):
                found: dict[str, list[_Turn]] = {name: [] for name in ports}
                memory: dict[str, list[float]] = {name: [] for name in ports}
                for _ in range(given.turns):
                    for name, port in ports.items():
                        _ask(port, clients, given.seconds / 10, body, expected)
                        memory[name].append(_resident_mib(groups[name]))
                        found[name].append(_ask(port, clients, given.seconds, body, expected))
                        memory[name].append(_resident_mib(groups[name]))
                for name, turns in found.items():
                    rate, p50, p99, _, _ = (median(column) for column in zip(*turns, strict=True))
                    answers, bad = (int(sum(turn[at] for turn in turns)) for at in (3, 4))
                    wrong += bad
                    print(
                        f"| {clients} | {name} | {rate:.0f} | {p50:.2f} | {p99:.1f} | {answers}"
                        f" | {bad} | {memory[name][0]:.1f} | {memory[name][-1]:.1f} |",
                        flush=True,
                    )
    return int(wrong)


def _prepare(folder: Path, name: str, threads: int) -> tuple[bytes, np.ndarray]:
    """Compile and save the model in both flavors; return a request and its answer."""
    import mlflow.onnx
    import onnx
    import onnxruntime as ort

    import tvmopt
    from tvmopt.tracking import flavor

    if name == _EXAMPLE:
        path, shapes = Path(tvmopt.__file__).parent / f"examples/{name}.onnx", "image:1x1x8x8"
    else:
        path, shapes = zoo.path(name), zoo.entry(name).input_shapes
    compiled = tvmopt.compile(path, shapes, threads=threads, output=folder / "bundle")
    flavor.save_model(folder / "bundle", folder / "ours")
    mlflow.onnx.save_model(onnx.load(path), str(folder / "onnx"))
    [spec] = compiled.metadata.inputs
    x = np.random.default_rng(0).random(spec.shape).round(3).astype(spec.dtype)
    expected = ort.InferenceSession(str(path)).run(None, {spec.name: x})[0]
    return json.dumps({"inputs": {spec.name: x.tolist()}}).encode(), expected


@contextlib.contextmanager
def _servers(folder: Path) -> Iterator[tuple[dict[str, int], dict[str, int]]]:
    """Start the servers; yield the port and the process group of each."""
    mlflow = [sys.executable, "-m", "mlflow", "models", "serve", "--env-manager", "local"]
    ports = dict(zip((_OWN, _OURS, _THEIRS), map(_free_port, range(3)), strict=True))
    commands = {
        _OWN: [sys.executable, "-c", _OWN_SERVER, str(folder / "bundle"), str(ports[_OWN])],
        _OURS: [*mlflow, "-m", str(folder / "ours"), "-p", str(ports[_OURS])],
        _THEIRS: [*mlflow, "-m", str(folder / "onnx"), "-p", str(ports[_THEIRS])],
    }
    quiet = subprocess.DEVNULL
    processes = [
        subprocess.Popen(command, stdout=quiet, stderr=quiet, start_new_session=True)
        for command in commands.values()
    ]
    try:
        for port in ports.values():
            _wait_for(port)
        yield ports, {name: process.pid for name, process in zip(commands, processes, strict=True)}
    finally:
        for process in processes:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()


# The server of the entry point ``serve``, without a registry.
_OWN_SERVER = """
import sys
from tvmopt.parameters.groups import ServerParameters
from tvmopt.runtime import load
from tvmopt.tracking.serving import serve
with serve._listen("127.0.0.1", int(sys.argv[2])) as listener:
    serve._run_until_ended(serve.scoring_app(load(sys.argv[1]), ServerParameters()), listener)
"""


def _free_port(_: int) -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def _wait_for(port: int) -> None:
    for _ in range(240):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.5)
    raise TimeoutError(f"no server listens on port {port}")


def _resident_mib(group: int) -> float:
    """Resident memory of the processes of a group in MiB (Linux's /proc)."""
    pages = 0
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            if os.getpgid(int(folder.name)) == group:
                pages += int((folder / "statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


# Requests a second, p50 and p99 in milliseconds, answers, wrong answers.
_Turn = tuple[float, float, float, int, int]


def _ask(port: int, clients: int, seconds: float, body: bytes, expected: np.ndarray) -> _Turn:
    times: list[float] = []
    wrong = 0
    request = (
        b"POST /invocations HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    )

    right: set[bytes] = set()  # contents that were compared: the same bytes are right again

    async def client(end: float) -> None:
        nonlocal wrong
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while (start := time.perf_counter()) < end:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            size = int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0])
            content = await reader.readexactly(size)
            times.append(time.perf_counter() - start)
            if b" 200 " not in head or content not in right:
                is_right = _is_right(head, content, expected)
                wrong += not is_right
                if is_right:
                    right.add(content)
        writer.close()

    async def all_clients() -> None:
        end = time.perf_counter() + seconds
        await asyncio.gather(*(client(end) for _ in range(clients)))

    asyncio.run(all_clients())
    times.sort()
    milliseconds = (times[len(times) * part // 100] * 1e3 for part in (50, 99))
    return (len(times) / seconds, *milliseconds, len(times), wrong)  # type: ignore[return-value]


def _is_right(head: bytes, content: bytes, expected: np.ndarray) -> bool:
    if b" 200 " not in head:
        return False
    found = json.loads(content)["predictions"]
    if isinstance(found, dict):  # mlflow.onnx names its outputs
        found = next(iter(found.values()))
    return bool(np.allclose(found, expected, atol=_TOLERANCE))


if __name__ == "__main__":
    raise SystemExit(main())
