"""Worker jobs: build the candidates of a function; check and time candidates; create inputs.

One protocol for all devices and strategies. The candidates of a function share libraries, because
linking takes as long as compiling one candidate.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from tvm import tirx

from tvmopt.kernels.emit import emit_kernel, hint_from_dict
from tvmopt.kernels.saved import load_saved
from tvmopt.measure.device import Device, Inputs
from tvmopt.measure.devices import device_from_dict
from tvmopt.measure.interleave import Timing
from tvmopt.measure.split import split_packing
from tvmopt.measure.worker import one_line


def build(
    device: dict[str, Any],
    func: str,
    candidates: list[dict[str, Any] | str],
    path: str,
    base: bool = True,
) -> dict[str, Any]:
    """Schedule ``func`` as each candidate says and build all successful ones into ``path``.

    Args:
        device: :meth:`Device.to_dict` of the device.
        func: The function, serialised with :func:`tvm.ir.save_json`.
        candidates: :meth:`Hint.to_dict` of a configuration, or a scheduled function, serialised.
        path: Library to write.
        base: Also build the functions that all candidates share (:meth:`Device.shared_functions`).
            The first library of a function needs them.

    Returns:
        ``errors``: for each candidate None, or its error. ``packed``: for each candidate the
        indices of the parameters that it packs, and shapes and dtypes of the packed tensors.
    """
    on, original = device_from_dict(device), load_saved(func)
    functions: dict[int, dict[str, tirx.PrimFunc]] = {}
    errors: list[str | None] = []
    packed: list[list[Any]] = []
    for index, candidate in enumerate(candidates):
        try:
            parts = split_packing(_scheduled(original, candidate))
        except Exception as error:  # any failure belongs to this candidate
            errors.append(f"schedule: {one_line(error)}")
            packed.append([[], []])
            continue
        functions[index] = {f"candidate{index}": parts.compute}
        if parts.packer is not None:
            functions[index][f"pack{index}"] = parts.packer
        errors.append(None)
        packed.append([parts.packed, parts.outputs])
    shared = on.shared_functions(original) if base else {}
    _build_working(on, shared, functions, errors, path)
    return {"errors": errors, "packed": packed}


def _scheduled(func: tirx.PrimFunc, candidate: dict[str, Any] | str) -> tirx.PrimFunc:
    if isinstance(candidate, str):
        return load_saved(candidate)
    return emit_kernel(func, hint_from_dict(candidate))


def _build_working(
    device: Device,
    shared: dict[str, tirx.PrimFunc],
    candidates: Mapping[int, dict[str, tirx.PrimFunc]],
    errors: list[str | None],
    path: str,
) -> None:
    """Build the shared functions and all candidates that compile into one library.

    Args:
        device: The device.
        shared: Functions that are always part of the library.
        candidates: Functions of each candidate, by index.
        errors: Error of each candidate, by index; build errors are added.
        path: Library to write.
    """
    functions = shared | {k: f for named in candidates.values() for k, f in named.items()}
    if not functions:
        return
    try:
        device.build(functions, path)
    except Exception:  # of whatever compiler
        # Build the candidates one at a time to find the failing ones.
        good = dict(shared)
        for index, named in candidates.items():
            try:
                device.build(named, None)
                good |= named
            except Exception as error:  # any failure belongs to this candidate
                errors[index] = f"build: {one_line(error)}"
        if good:
            device.build(good, path)


def run(device: dict[str, Any], groups: list[dict[str, Any]], rounds: int) -> list[dict[str, Any]]:
    """Check candidates against their references, then time the correct ones together.

    Args:
        device: :meth:`Device.to_dict` of the device.
        groups: For each function: ``libraries`` from :func:`build`, the first with the shared
            functions; ``inputs``, the fields of :class:`Inputs`; and ``candidates``, for each
            ``[library, index, packed parameters, packed shapes and dtypes]``.
        rounds: Maximum number of timing rounds.

    Returns:
        For each candidate of all groups, in order: ``latency_us`` or None, number of timing
        ``rounds``, and ``error`` or None.
    """
    on = device_from_dict(device)
    results: list[dict[str, Any]] = []
    kernels: dict[int, Timing] = {}
    with contextlib.ExitStack() as stack:
        for group in groups:
            candidates = group["candidates"]
            bench = stack.enter_context(
                on.bench(group["libraries"], Inputs(**group["inputs"]), len(candidates))
            )
            for candidate in candidates:
                result: dict[str, Any] = {"latency_us": None, "rounds": 0, "error": None}
                try:
                    kernels[len(results)] = bench(*candidate)
                except Exception as error:  # as above
                    result["error"] = f"run: {one_line(error)}"
                results.append(result)
        for place, (latency_us, timed) in on.time(kernels, rounds).items():
            results[place] |= {"latency_us": latency_us, "rounds": timed}
    return results


def prepare(device: dict[str, Any], inputs: dict[str, Any]) -> None:
    """Create the inputs of a function while the builders work."""
    device_from_dict(device).prepare(Inputs(**inputs))
