"""Versions of registered models: to promote, to download, to serve."""

from __future__ import annotations

import dataclasses

from tvmopt.choices import CANDIDATE, CHAMPION, FINITE
from tvmopt.parameters.declare import Group, needed, parameter


@dataclasses.dataclass(frozen=True, kw_only=True)
class VersionParameters(Group):
    """Which version of a registered model."""

    name: str = needed("name of the registered model")
    version: str = parameter(CHAMPION, "version number or alias of the registered model")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CandidateParameters(Group):
    """Which version to promote, under which alias, on which data."""

    name: str = needed("name of the registered model")
    version: str = parameter(CANDIDATE, "version number or alias of the registered model")
    alias: str = parameter(CHAMPION, "alias to give")
    data: str = parameter("", ".npz or .npy file; its held-out 30% is used; default: random inputs")


@dataclasses.dataclass(frozen=True, kw_only=True)
class OutputParameters(Group):
    """Where files go."""

    output: str = parameter("", "folder to create; default: <name>-<version>")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerParameters(Group):
    """How a model is served."""

    host: str = parameter(
        "127.0.0.1",
        "address to listen at; any but a loopback address lets other machines in, without "
        "password or encryption",
    )
    port: int = parameter(5001, "TCP port to listen at; 0: one that is free", least=0, most=65535)
    require_finite: str = parameter(
        "auto",
        "true: refuse inputs and outputs that hold NaN or infinities; auto: true, but a model of a "
        "source takes in each column what its source takes",
        choices=FINITE,
    )
    max_request_mb: float = parameter(
        0.0,
        "largest body of a request in MB (10^6 bytes); 0: 64 bytes for each value of the inputs "
        "(where the model takes any number of rows, of 256, but at most 16 MB), and 64 KB",
        least=0,
    )
    max_batch: int = parameter(
        0,
        "most rows of one call, to which requests that wait are joined, where the model takes any "
        "number of rows; 0: as many as it was compiled for",
        least=0,
    )
    max_wait_ms: float = parameter(
        0.0, "time that a request waits for others to join while the model is free", least=0
    )
    max_waiting: int = parameter(
        1000, "most requests that wait for the model; others are answered with status 503", least=1
    )
