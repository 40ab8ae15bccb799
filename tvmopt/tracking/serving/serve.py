"""Entry point serve: a registered model behind a server with the protocol of MLflow's.

No run is opened: nothing is measured, and whoever serves may only be allowed to read the store. The
run that ``mlflow run`` has opened is closed with the server.
"""

from __future__ import annotations

import asyncio
import ipaddress
import math
import os
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import uvicorn
from mlflow import MlflowClient

from tvmopt.choices import AUTO
from tvmopt.errors import ConfigError
from tvmopt.parameters.call import entry_point
from tvmopt.parameters.commands import ServeCommand
from tvmopt.parameters.groups import ServerParameters
from tvmopt.runtime import CompiledModel, ModelMetadata
from tvmopt.runtime.metadata import TensorSpec
from tvmopt.tracking import flavor
from tvmopt.tracking.registry.versions import check_name, find_version
from tvmopt.tracking.serving.body import in_words
from tvmopt.tracking.serving.request_queue import RequestQueue
from tvmopt.tracking.serving.scoring import App, ScoringServer
from tvmopt.tracking.serving.source_scoring import SourceScoringServer
from tvmopt.tracking.store.console import say
from tvmopt.tracking.store.mlflow_store import open_on_runs, open_store
from tvmopt.tracking.store.runs import open_run

# Large bodies that are parsed at once, each in a thread.
_THREADS = 4
# By default a request to a model that takes any number of rows may have so many, in so many bytes.
_ROWS, _BYTES_OF_ROWS = 256, 16_000_000
# A number as JSON: at most 25 characters, a separator, and some indentation.
_BYTES_PER_VALUE, _BYTES_BESIDE = 64, 65536
_GRACE_S = 10


@entry_point(ServeCommand)
def serve(command: ServeCommand) -> None:
    """Serve a registered model over HTTP until SIGTERM, SIGHUP or Ctrl-C.

    The files are verified as ``pull`` does, and the code that the model carries is not run.
    ``/invocations``, ``/ping``, ``/health`` and ``/version`` follow the protocol of MLflow's
    server. The version that an alias points to when the server starts is served to the end.

    Raises:
        ConfigError: A parameter breaks its rule, or the port is in use.
        ArtifactError: The model is damaged, or another machine's.
    """
    name, asked = command.version.name, command.server
    check_name(name)
    client = open_store()
    found = find_version(client, name, command.version.version)
    uri = f"models:/{name}/{found.version}"
    with (
        _listen(asked.host, asked.port) as listener,
        _run_of_mlflow(client, name, command.values(), uri),
    ):
        model = flavor.load_model(uri)
        app = scoring_app(model, asked)
        address, bound = listener.getsockname()[:2]
        if not ipaddress.ip_address(address).is_loopback:
            print(
                f"warning: {address} is no loopback address: whoever reaches it may use the model; "
                "there is neither password nor encryption",
                file=sys.stderr,
            )
        shown = f"[{address}]" if ":" in address else address
        takes = in_words(model.metadata.open_inputs)
        say(f"serve      {uri}, which takes {takes}")
        say(f"listening  http://{shown}:{bound}/invocations; Ctrl-C or SIGTERM ends it")
        _run_until_ended(app, listener)
        say("ended")


def scoring_app(model: CompiledModel, asked: ServerParameters) -> App:
    """Return the server of a model, an ASGI application."""
    metadata = model.metadata
    compiled_rows = metadata.inputs[0].shape[0] if metadata.any_rows else 0
    queue = RequestQueue(
        model,
        most_rows=(asked.max_batch or compiled_rows) if metadata.any_rows else 0,
        # Calls that run at once share the model's threads.
        calls_at_once=metadata.threads if metadata.native else 1,
        most_waiting=asked.max_waiting,
        wait_s=asked.max_wait_ms / 1e3,
    )
    most_bytes = int(asked.max_request_mb * 1e6) or _most_bytes(metadata)
    # The interface of a source knows which of its columns may be missing or infinite.
    knows = metadata.interface is not None and bool(metadata.interface.columns)
    finite = asked.require_finite == "true" or (asked.require_finite == AUTO and not knows)
    if metadata.interface is not None:
        return SourceScoringServer(queue, model, metadata.interface, most_bytes, finite)
    return ScoringServer(queue, metadata, most_bytes, finite)


def _bytes_per_value(spec: TensorSpec) -> int:
    """Return the bytes of a value in JSON, where a character may take six."""
    longest = max(map(len, spec.categories), default=0)
    return max(_BYTES_PER_VALUE, 6 * longest + 4)


def _most_bytes(model: ModelMetadata) -> int:
    most = sum(math.prod(spec.shape) * _bytes_per_value(spec) for spec in model.inputs)
    if model.any_rows:
        of_rows = most // model.inputs[0].shape[0] * _ROWS
        most = max(most, min(of_rows, _BYTES_OF_ROWS))
    return most + _BYTES_BESIDE


def _listen(host: str, port: int) -> socket.socket:
    try:
        [(family, _, _, _, address), *_] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        listener = socket.create_server(address, family=family)
        # Connections inherit it. Without, the body of an answer waits 40 ms for the client to
        # acknowledge its head; asyncio sets it only for sockets made with the protocol's number.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"host and port must be an address of this machine and a free port, but got {host!r} "
            f"and {port} ({reason}); give another port, or 0 for one that is free"
        ) from error


@contextmanager
def _run_of_mlflow(
    client: MlflowClient, name: str, params: dict[str, Any], uri: str
) -> Iterator[None]:
    """Take over and close the run that ``mlflow run`` has opened; elsewhere there is none."""
    run_id = os.environ.pop("MLFLOW_RUN_ID", None)
    if run_id is None:
        yield
        return
    open_on_runs(client, client.get_run(run_id).info.experiment_id)
    tags = {"tvmopt.entry_point": "serve", "tvmopt.model_name": name, "tvmopt.served": uri}
    with open_run(client, "", f"serve-{name}", params, tags, run_id=run_id):
        yield


def _run_until_ended(app: App, listener: socket.socket) -> None:
    """Run the server in a thread: signals reach the main thread, where they raise.

    Requests that have begun are answered. To be asked to end is how a server ends, so it is no
    failure.
    """
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=_GRACE_S,
        )
    )

    async def work() -> None:
        threads = ThreadPoolExecutor(_THREADS)
        asyncio.get_running_loop().set_default_executor(threads)
        await server.serve(sockets=[listener])

    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(asyncio.run, work())
        try:
            ended.result()
        except (KeyboardInterrupt, SystemExit):
            if ended.done():  # raised by the server, not by a signal
                raise
        finally:
            server.should_exit = True
