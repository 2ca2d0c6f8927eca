"""Converts errors to JSON and an HTTP status."""

from __future__ import annotations

import json
import logging
from typing import Any

from aiohttp import web

from liftlog.client.publishing.results import NotPublished, PublishRefused, PublishUnknown
from liftlog.errors import (
    BadRequest,
    Conflict,
    CorruptRange,
    DiskFull,
    Forbidden,
    InternalError,
    InvalidArgument,
    LiftlogError,
    LimitExceeded,
    OffsetOutOfRange,
    RequestTimeout,
    StreamNotFound,
    Unauthenticated,
    UnsupportedVersion,
)
from liftlog.protocol.messages import answer_for
from liftlog.server.reading.one_record import NoRecord
from liftlog.server.vitals.descriptors import for_want_of_descriptors
from liftlog.server.vitals.disk import for_failed_storage

logger = logging.getLogger("liftlog.server.http")


class BodyTooLarge(LiftlogError):
    name = "BODY_TOO_LARGE"


class UnsupportedMedia(LiftlogError):
    name = "UNSUPPORTED_MEDIA"


class NotRepresentable(LiftlogError):
    """The record cannot be expressed in the requested format or encoding."""

    name = "NOT_REPRESENTABLE"


STATUS: dict[type[LiftlogError], int] = {
    BadRequest: 400,
    InvalidArgument: 400,
    UnsupportedVersion: 400,
    Unauthenticated: 401,
    Forbidden: 403,
    StreamNotFound: 404,
    OffsetOutOfRange: 404,
    NoRecord: 404,
    NotRepresentable: 406,
    RequestTimeout: 408,
    Conflict: 409,
    CorruptRange: 410,
    BodyTooLarge: 413,
    UnsupportedMedia: 415,
    LimitExceeded: 429,
    InternalError: 500,
    NotPublished: 503,
    PublishUnknown: 504,
    DiskFull: 507,
}
_OWN = (NoRecord, BodyTooLarge, UnsupportedMedia, NotRepresentable, NotPublished, PublishUnknown)
"""Errors of the HTTP API that have no code in the pull protocol."""
_PRECONDITIONS = frozenset({10060, 10070, 10071})
_TOO_LARGE = 10054
_READ_ONLY = 10109
_RETRY_STATUS = frozenset({429, 503, 507})


def status_of(error: LiftlogError) -> int:
    """Return the HTTP status of an error.

    The table may lack an error, for example because its code belongs to a later version. Such an
    error gets 503 if it is retriable, and 409 otherwise. An error that is not meant for clients
    gets 500.
    """
    if isinstance(error, PublishRefused):
        return _status_of_refusal(error)
    known = STATUS.get(type(error))
    if known is not None:
        return known
    if error.code:
        return 503 if error.retriable else 409
    return 500


def _status_of_refusal(error: PublishRefused) -> int:
    refusal = error.refusal
    if refusal.err_code in _PRECONDITIONS:
        return 412
    if refusal.err_code == _TOO_LARGE:
        return 413
    if refusal.err_code == _READ_ONLY:
        return 409
    # For some invalid headers, JetStream answers 500 although the sender caused the error.
    return refusal.code if refusal.code in (400, 429, 503) else 400


def failure(error: Exception) -> web.Response:
    """Return the answer that contains `error`. If the error is not meant for clients, it is only
    logged, and the answer is INTERNAL."""
    if isinstance(error, PublishRefused):
        return _answer(status_of(error), _refusal_object(error))
    if (want := for_want_of_descriptors(error)) is not None:
        logger.error("no-descriptor-left error=%s", error)
        error = want
    elif (failed := for_failed_storage(error)) is not None:
        logger.error("storage-failed error=%s", error)
        error = failed
    elif not isinstance(error, LiftlogError) or not (error.code or isinstance(error, _OWN)):
        logger.error("request-failed", exc_info=error)
        error = InternalError("the daemon failed to answer this request")
    shown: dict[str, Any] = {
        "name": error.name,
        "message": error.message,
        "retriable": error.retriable,
        "hint": error.hint,
        "details": error.details,
    }
    if error.code:
        # This shortens long texts, and drops details that are not plain values.
        carried = answer_for(error)
        shown |= {"message": carried.message, "hint": carried.hint, "details": carried.details}
        shown["code"] = error.code
    return _answer(status_of(error), shown)


def _refusal_object(error: PublishRefused) -> dict[str, Any]:
    refusal = error.refusal
    return {
        "name": error.name,
        "message": refusal.description,
        "retriable": refusal.retriable,
        "hint": error.hint,
        "details": {"err_code": refusal.err_code, "code": refusal.code, "stream": refusal.stream},
    }


def http_failure(error: web.HTTPException) -> web.Response:
    """Convert an error of aiohttp itself (unknown path or method) to an answer."""
    response = _answer(
        error.status,
        {
            "name": error.reason.upper().replace(" ", "_"),
            "message": f"{error.status} {error.reason}",
            "retriable": False,
            "hint": "`liftlog docs reference/http` lists the paths",
            "details": {},
        },
    )
    if "Allow" in error.headers:
        response.headers["Allow"] = error.headers["Allow"]
    return response


def _answer(status: int, shown: dict[str, Any]) -> web.Response:
    response = web.Response(
        status=status,
        text=json.dumps({"error": shown}, ensure_ascii=False) + "\n",
        content_type="application/json",
    )
    if status == 401:
        response.headers["WWW-Authenticate"] = 'Bearer realm="liftlog"'
    if status in _RETRY_STATUS:
        response.headers["Retry-After"] = "1"
    return response
