"""Serve a compiled model whose source is no ONNX model: requests and answers of the source.

Bodies are read as MLflow's own server reads them (``dataframe_split``, ``dataframe_records``,
``inputs``, ``instances``), by the signature of the source.
"""

from __future__ import annotations

import asyncio
import io
import json
from typing import Any

from mlflow.exceptions import MlflowException
from mlflow.models.utils import _enforce_schema
from mlflow.pyfunc.scoring_server import infer_and_parse_data, predictions_to_json

from tvmopt.errors import in_one_line
from tvmopt.runtime import CompiledModel
from tvmopt.runtime.interface import SourceInterface
from tvmopt.tracking.flavor.as_source import signature_of
from tvmopt.tracking.flavor.python_model import CompiledPyFunc
from tvmopt.tracking.serving.refusal import RefusedRequestError
from tvmopt.tracking.serving.request_queue import RequestQueue
from tvmopt.tracking.serving.scoring import Receive, ScoringServer


class SourceScoringServer(ScoringServer):
    """ASGI application that answers as the source's server does.

    Args:
        queue: Queue of the model; a table is one call, so it is not used.
        model: The model.
        interface: Interface of its source.
        most_bytes: Largest body.
        require_finite: Whether inputs and answers with NaN or infinities are refused.
    """

    def __init__(
        self,
        queue: RequestQueue,
        model: CompiledModel,
        interface: SourceInterface,
        most_bytes: int,
        require_finite: bool,
    ) -> None:
        super().__init__(queue, model.metadata, most_bytes, require_finite)
        self._predict = CompiledPyFunc(model, require_finite).predict
        signature = signature_of(interface)
        self._schema = None if signature is None else signature.inputs

    async def _predictions(self, receive: Receive) -> bytes:
        body = await self._read(receive)
        return await asyncio.to_thread(self._answered, body)

    def _answered(self, body: bytes) -> bytes:
        """Return the body of an answer.

        Raises:
            RefusedRequestError: When the body does not fit the signature, or the model refuses it.
        """
        try:
            data = self._parsed(body)
        except Exception as error:  # MLflow's checks raise what pandas and NumPy raise inside
            raise _refused(error) from error
        try:
            answer = self._predict(data)
        except MlflowException as error:
            raise _refused(error) from error
        content = io.StringIO()
        predictions_to_json(answer, content)
        return content.getvalue().encode()

    def _parsed(self, body: bytes) -> Any:
        """Return the data in a body, with the columns and types of the signature."""
        parsed: Any = json.loads(body.decode("utf-8"))
        if not isinstance(parsed, dict):
            raise ValueError("it is no JSON object")
        if self._schema is None:
            return infer_and_parse_data(parsed)
        return _enforce_schema(infer_and_parse_data(parsed, self._schema), self._schema)


def _refused(error: Exception) -> RefusedRequestError:
    return RefusedRequestError(
        f"the body must hold what the source takes, but: {in_one_line(error)}; send such rows"
    )
