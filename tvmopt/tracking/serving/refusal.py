"""A request that the server does not answer with predictions."""

from __future__ import annotations

from http import HTTPStatus

from tvmopt.errors import TvmoptError


class RefusedRequestError(TvmoptError):
    """A request breaks a rule; the server answers with ``status`` and the message."""

    failure_class = "request"

    def __init__(self, message: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST) -> None:
        super().__init__(message)
        self.status = status
