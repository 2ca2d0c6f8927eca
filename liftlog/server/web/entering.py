"""Signs users in and out, and identifies the viewer of a request by its cookie or token, or as
anonymous."""

from __future__ import annotations

import asyncio
import re
from urllib.parse import parse_qsl, quote

from aiohttp import web

from acl.policy import Policy
from liftlog.errors import (
    BadRequest,
    Forbidden,
    LiftlogError,
    LimitExceeded,
    RequestTimeout,
    Unauthenticated,
)
from liftlog.protocol.messages import ANONYMOUS
from liftlog.server.http.callers import Callers, is_navigation
from liftlog.server.web import answers
from liftlog.server.web.asking import Viewer
from liftlog.server.web.sessions import MAX_AGE_SECONDS, Sessions

COOKIE = "liftlog_session"
HOME = "/ui/streams"
LOGIN = "/ui/login"
MAX_FORM_BYTES = 16 * 1024
_MAX_FIELDS = 16
_FORM_SECONDS = 10.0
_FORM_TYPE = "application/x-www-form-urlencoded"
_OWN_PATH = re.compile(r"/ui(/[A-Za-z0-9_-][A-Za-z0-9_.-]*)+(\?[A-Za-z0-9_.~%&=+*-]*)?", re.ASCII)
"""Paths of this site. No part may be empty or begin with a dot, because `/ui/..//evil.example`
leads to another site."""


class Entering:
    def __init__(self, callers: Callers, sessions: Sessions) -> None:
        self._callers = callers
        self._sessions = sessions

    @property
    def policy(self) -> Policy | None:
        return self._callers.gate.policy

    def check_origin(self, request: web.Request) -> None:
        """Refuse requests that a browser sent for a page of another site. Raises Forbidden."""
        self._callers.check_origin(request)

    def recognized(self, request: web.Request) -> str | None:
        """Return the principal of a request, if its token was checked before or its cookie belongs
        to a session. Even then, `viewer` must still identify the request."""
        if "Authorization" in request.headers:
            return self._callers.recognized(request)
        session = self._sessions.find(request.cookies.get(COOKIE), self.policy)
        return None if session is None else session.identity.principal

    async def viewer(self, request: web.Request) -> Viewer:
        """Return the viewer of a request. Raises Unauthenticated, Forbidden, LimitExceeded."""
        self._callers.check_origin(request, navigation=is_navigation(request))
        policy = self.policy
        if policy is None:
            return Viewer(None)
        if "Authorization" in request.headers:
            return Viewer(await self._callers.principal(request))
        cookie = request.cookies.get(COOKIE)
        session = self._sessions.find(cookie, policy)
        if session is not None:
            return Viewer(session.identity.principal, cookie)
        if policy.allows_anonymous:
            return Viewer(ANONYMOUS)
        raise Unauthenticated("sign in first")

    async def sign_in(self, request: web.Request, token: str) -> web.Response:
        """Begin a session for the owner of the token, and redirect to the requested page. Raises
        Unauthenticated, LimitExceeded."""
        policy = self.policy
        if policy is None:
            return see_home(request)
        identity = await self._callers.identify(request, policy, token)
        response = see_home(request)
        self._sessions.end(request.cookies.get(COOKIE))
        self._set_cookie(request, response, self._sessions.begin(identity))
        self._callers.note_login(identity, request)
        return response

    def sign_out(self, request: web.Request) -> web.Response:
        self._sessions.end(request.cookies.get(COOKIE))
        response = answers.see_other(LOGIN)
        response.del_cookie(COOKIE, path="/ui")
        return response

    def _set_cookie(self, request: web.Request, response: web.Response, cookie: str) -> None:
        response.set_cookie(
            COOKIE,
            cookie,
            path="/ui",
            httponly=True,
            samesite="Strict",
            secure=is_encrypted(request),
            max_age=int(MAX_AGE_SECONDS),
        )


def see_home(request: web.Request) -> web.Response:
    """Redirect to the page that the user requested before signing in. The target is always on this
    site."""
    wanted = request.query.get("next", "")
    where = wanted if _OWN_PATH.fullmatch(wanted) else HOME
    return answers.see_other(where)


def login_path(request: web.Request) -> str:
    wanted = request.path_qs
    if wanted in ("/ui/streams", "/ui/login") or not _OWN_PATH.fullmatch(wanted):
        return LOGIN
    return f"{LOGIN}?next={quote(wanted, safe='')}"


def is_encrypted(request: web.Request) -> bool:
    """Return True if the browser's connection is encrypted. The header of a proxy is trusted,
    because with a wrong header the cookie can only become more restricted."""
    forwarded = request.headers.get("X-Forwarded-Proto", "").partition(",")[0].strip().lower()
    return request.secure or forwarded == "https"


async def read_form(request: web.Request) -> dict[str, str]:
    """Return the fields of a posted form. Size and time are limited. Raises LiftlogErrors."""
    if request.content_type != _FORM_TYPE:
        raise Forbidden("expected a form of this page")
    body = bytearray()
    try:
        async with asyncio.timeout(_FORM_SECONDS):
            async for chunk in request.content.iter_any():
                body += chunk
                if len(body) > MAX_FORM_BYTES:
                    raise LimitExceeded(f"the form is larger than {MAX_FORM_BYTES} bytes")
    except TimeoutError:
        raise RequestTimeout(f"the form did not arrive within {_FORM_SECONDS:g} s") from None
    except (web.RequestPayloadError, ConnectionError) as error:
        raise BadRequest(f"the form ended early or is broken: {error}"[:200]) from None
    try:
        return dict(parse_qsl(body.decode("utf-8", "replace"), True, max_num_fields=_MAX_FIELDS))
    except ValueError:
        raise BadRequest("the form has too many fields") from None


def check_form(sessions: Sessions, request: web.Request, form: dict[str, str], why: str) -> None:
    """Raise Forbidden unless this daemon created the form, for this purpose and session."""
    cookie = request.cookies.get(COOKIE)
    if not sessions.is_form_token(form.get("form_token", ""), cookie, why):
        raise Forbidden(
            "the form is too old, or does not belong to this page",
            hint="go back, reload the page and try again",
        )


def worded(error: LiftlogError) -> str:
    """Return the error's text for the sign-in form."""
    if isinstance(error, Unauthenticated):
        return "This token is not valid."
    return f"{error.message[:1].upper()}{error.message[1:]}."
