"""The routes of the web page, and the checks that run before every page."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from aiohttp import web

from liftlog.errors import LiftlogError, LimitExceeded, StreamUnavailable, Unauthenticated
from liftlog.server.http.callers import Callers, asks
from liftlog.server.http.failures import failure
from liftlog.server.http.guard import identified, identifying
from liftlog.server.http.shares import Shares
from liftlog.server.vitals.conditions import (
    Condition,
    Severity,
    first_of_each_kind,
    sentences_by_kind,
)
from liftlog.server.web import actions, answers, entering, troubles
from liftlog.server.web.asking import Asked, Parts, Shown, Viewer
from liftlog.server.web.entering import Entering
from liftlog.server.web.pages.access import access
from liftlog.server.web.pages.charts import daemon_charts, stream_charts
from liftlog.server.web.pages.cluster import cluster
from liftlog.server.web.pages.consumers import begin, consumers, move, moving
from liftlog.server.web.pages.editing import create, creating, edit, editing
from liftlog.server.web.pages.erasing import erase, erasing
from liftlog.server.web.pages.groups import group
from liftlog.server.web.pages.overview import health, overview
from liftlog.server.web.pages.publishing import publish, publishing
from liftlog.server.web.pages.record import record, value
from liftlog.server.web.pages.records import records
from liftlog.server.web.pages.stream import stream
from liftlog.server.web.pages.topology import topology
from liftlog.server.web.pages.versions import versions
from liftlog.server.web.pages.workers import worker

MAX_REQUESTS, MAX_OF_VIEWER = 16, 4
"""Maximum number of page requests in progress, in total and per viewer. A viewer with fewer
requests than the second number is always served. The limits exist because each page can hold the
descriptions of all streams in memory."""
MAX_READS, MAX_READS_OF_VIEWER = 8, 2
"""The same limits for pages that read records. Such a page can hold a batch in memory and search
for a long time. These pages are counted separately, so that searches do not delay other pages."""

View = Callable[[Asked], Awaitable[Shown]]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Page(NamedTuple):
    """A page. The same address with `.json` appended returns its values as JSON. `is_live` pages
    update themselves; pages with `reads` read records."""

    path: str
    template: str
    view: View
    is_live: bool = False
    reads: bool = False


class Form(NamedTuple):
    """A form that is posted to the address of its page. The form is shown again if it contains
    errors."""

    path: str
    template: str
    view: View


_MAX_NOTICED = 3
"""Number of streams that the top of a page names for one kind of condition."""
_NUMBER = re.compile(r"\d+")
_STREAM = "/ui/streams/{stream}"
PAGES = (
    Page("/ui/streams", "overview.html", overview, is_live=True),
    Page("/ui/consumers", "consumers.html", consumers, is_live=True),
    Page("/ui/topology", "topology.html", topology, is_live=True),
    Page("/ui/charts", "charts.html", daemon_charts, is_live=True),
    Page("/ui/access", "access.html", access),
    Page("/ui/create", "editing.html", creating),
    Page("/ui/health", "health.html", health, is_live=True),
    Page("/ui/cluster", "cluster.html", cluster, is_live=True),
    # These must precede the stream's own page, because routes are tried in this order.
    Page(f"{_STREAM}/records/{{offset}}", "record.html", record, reads=True),
    Page(f"{_STREAM}/edit", "editing.html", editing),
    Page(f"{_STREAM}/publish", "publishing.html", publishing),
    Page(f"{_STREAM}/erase", "erasing.html", erasing),
    Page(f"{_STREAM}/versions", "versions.html", versions, reads=True),
    Page(f"{_STREAM}/consumers/{{consumer}}", "moving.html", moving),
    Page(f"{_STREAM}/groups/{{group}}", "group.html", group, is_live=True),
    Page(f"{_STREAM}/workers/{{worker}}", "worker.html", worker, is_live=True),
    Page(f"{_STREAM}/charts", "charts.html", stream_charts, is_live=True),
    Page(f"{_STREAM}/records", "records.html", records, reads=True),
    *(Page(f"{_STREAM}/{name}", "confirm.html", actions.confirm) for name in actions.ACTIONS),
    Page(_STREAM, "stream.html", stream, is_live=True),
)
FORMS = (
    Form("/ui/create", "editing.html", create),
    Form(f"{_STREAM}/edit", "editing.html", edit),
    Form(f"{_STREAM}/publish", "publishing.html", publish),
    Form(f"{_STREAM}/erase", "erasing.html", erase),
)


class WebSite:
    """The web page; `routes()` returns its routes. Belongs to one event loop."""

    def __init__(self, parts: Parts, callers: Callers) -> None:
        self._parts = parts
        self._entering = Entering(callers, parts.sessions)
        self._rendering = answers.Rendering()
        self._pages = Shares(MAX_REQUESTS, MAX_OF_VIEWER)
        self._reads = Shares(MAX_READS, MAX_READS_OF_VIEWER)

    def recognized(self, request: web.Request) -> str | None:
        return self._entering.recognized(request)

    def routes(self) -> list[web.RouteDef]:
        routes = [
            web.get("/", self._home),
            web.get("/ui", self._home),
            web.get("/ui/", self._home),
            web.get("/ui/login", self._login_form),
            web.post("/ui/login", self._login),
            web.post("/ui/logout", self._logout),
            web.get("/ui/static/{file}", self._static),
            web.get(f"{_STREAM}/records/{{offset}}/value", self._guarded(value, reads=True)),
            web.get(f"{_STREAM}/consumers", self._guarded(begin)),
            web.post(f"{_STREAM}/consumers/{{consumer}}", self._guarded(move)),
        ]
        for page in PAGES:
            if page.view is not actions.confirm:
                twin = self._guarded(self._twin(page), reads=page.reads)
                routes.append(web.get(f"{page.path}.json", twin))
            routes.append(web.get(page.path, self._guarded(self._html(page), reads=page.reads)))
        routes += [
            web.post(page.path, self._guarded(actions.perform))
            for page in PAGES
            if page.view is actions.confirm
        ]
        routes += [web.post(form.path, self._guarded(self._html(form))) for form in FORMS]
        # This route must be the last.
        routes.append(web.get("/ui/{nowhere:.+}", self._guarded(self._nowhere)))
        return routes

    async def close(self) -> None:
        await self._parts.history.close()
        await self._parts.appender.close()

    # --- every page ---

    def _guarded(
        self, serve: Callable[[Asked], Awaitable[web.StreamResponse]], *, reads: bool = False
    ) -> Handler:
        """Wrap a handler: limit the number of requests, identify the viewer, and convert every
        error to an answer."""
        shares = self._reads if reads else self._pages

        async def handle(request: web.Request) -> web.StreamResponse:
            viewer = Viewer(None)
            try:
                viewer = await self._entering.viewer(request)
                party = await asks(request, viewer.principal)
                if viewer.cookie is not None:
                    identified(request)
                if not self._parts.health.is_serving and not _is_about_health(request):
                    raise StreamUnavailable("the daemon is starting", hint="try again")
                with shares.one(party):
                    return await serve(Asked(request, viewer, self._parts))
            except web.HTTPException:
                raise
            except Exception as error:  # noqa: BLE001 - `failure` tells a defect from a refusal
                return await self._failed(request, viewer, error)

        return handle

    def _html(self, page: Page | Form) -> Callable[[Asked], Awaitable[web.StreamResponse]]:
        async def serve(asked: Asked) -> web.StreamResponse:
            shown = await self._shown(page, asked)
            if shown.moved_to:
                return answers.see_other(shown.moved_to)
            has_twin = isinstance(page, Page) and page.view is not actions.confirm
            drawn = {} if shown.draw is None else await shown.draw()
            text = await self._rendering.page(
                page.template,
                title=shown.title,
                data=shown.data,
                twin=twin_of(asked.request) if has_twin else "",
                is_live=isinstance(page, Page) and page.is_live,
                **self._frame(asked.request, asked.viewer),
                **shown.extra,
                **drawn,
            )
            return answers.html(text, failure(shown.refused).status if shown.refused else 200)

        return serve

    async def _shown(self, page: Page | Form, asked: Asked) -> Shown:
        """Return the values of a page, with the daemon's conditions, which every page shows."""
        shown = await page.view(asked)
        found = await self._parts.broker.conditions.now(partial(asked.may, "read"))
        listed = first_of_each_kind(found)
        shown.data["conditions"] = [one.to_wire() for one in listed]
        if found and "shape" in shown.data:
            present = [_NUMBER.sub("#", one.sentence) for one in listed]
            shown.data["shape"] = [shown.data["shape"], present]
        shown.extra["conditions"] = _noticed(found)
        return shown

    def _twin(self, page: Page) -> Callable[[Asked], Awaitable[web.StreamResponse]]:
        async def serve(asked: Asked) -> web.StreamResponse:
            shown = await self._shown(page, asked)
            if shown.refused is not None:
                raise shown.refused
            return answers.as_json(shown.data)

        return serve

    def _frame(self, request: web.Request, viewer: Viewer) -> dict[str, Any]:
        """Return the values for the frame around each page."""
        policy, sessions = self._entering.policy, self._parts.sessions
        return {
            "path": request.path,
            "viewer": viewer,
            "in_cluster": self._parts.broker.catalog.in_cluster,
            "has_acl": policy is not None,
            "may_sign_in": policy is not None and viewer.cookie is None,
            "logout_token": sessions.form_token(viewer.cookie, "sign out"),
        }

    async def _failed(
        self, request: web.Request, viewer: Viewer, error: Exception
    ) -> web.StreamResponse:
        answered = failure(error)
        if request.path.endswith((".json", "/value")):
            answered.headers.update(answers.HEADERS)
            return answered
        if isinstance(error, Unauthenticated):
            if request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
                # A browser omits the session's cookie when it follows a link from another site. It
                # sends the cookie when a page of this site then loads the same address.
                return answers.html(
                    await self._rendering.page("arriving.html", here=request.path_qs)
                )
            return answers.see_other(entering.login_path(request))
        assert answered.text is not None
        told = json.loads(answered.text)["error"]
        trouble = troubles.worded(told, request.match_info)
        return await self._trouble(request, viewer, answered.status, trouble)

    async def _nowhere(self, asked: Asked) -> web.StreamResponse:
        trouble = troubles.Trouble("", "There is no page at this address.")
        return await self._trouble(asked.request, asked.viewer, 404, trouble)

    async def _trouble(
        self, request: web.Request, viewer: Viewer, status: int, trouble: troubles.Trouble
    ) -> web.StreamResponse:
        may_read = partial(self._parts.gate.may, viewer.principal, "read")
        found = await self._parts.broker.conditions.now(may_read)
        text = await self._rendering.page(
            "error.html",
            title="Not shown",
            status=status,
            trouble=trouble,
            conditions=_noticed(found),
            twin="",
            is_live=False,
            **self._frame(request, viewer),
        )
        return answers.html(text, status)

    # --- without a viewer ---

    async def _home(self, request: web.Request) -> web.StreamResponse:
        return answers.see_other(entering.HOME)

    async def _static(self, request: web.Request) -> web.StreamResponse:
        return answers.static_file(request.match_info["file"])

    async def _login_form(self, request: web.Request) -> web.StreamResponse:
        return await self._show_login(request)

    async def _show_login(
        self, request: web.Request, problem: str = "", status: int = 200
    ) -> web.StreamResponse:
        cookie = request.cookies.get(entering.COOKIE)
        text = await self._rendering.page(
            "login.html",
            title="Sign in",
            problem=problem,
            conditions=(),
            action=request.path_qs if request.path == entering.LOGIN else entering.LOGIN,
            form_token=self._parts.sessions.form_token(cookie, "sign in"),
            twin="",
            is_live=False,
            **self._frame(request, Viewer(None)),
        )
        return answers.html(text, status)

    async def _login(self, request: web.Request) -> web.StreamResponse:
        try:
            self._entering.check_origin(request)
            with identifying(request):  # covers the whole time in which the form arrives
                form = await entering.read_form(request)
                entering.check_form(self._parts.sessions, request, form, "sign in")
                return await self._entering.sign_in(request, form.get("token", "").strip())
        except LiftlogError as error:
            if isinstance(error, Unauthenticated | LimitExceeded):
                status = failure(error).status
                return await self._show_login(request, entering.worded(error), status)
            return await self._failed(request, Viewer(None), error)

    async def _logout(self, request: web.Request) -> web.StreamResponse:
        try:
            self._entering.check_origin(request)
            with identifying(request):
                form = await entering.read_form(request)
            entering.check_form(self._parts.sessions, request, form, "sign out")
        except LiftlogError as error:
            return await self._failed(request, Viewer(None), error)
        return self._entering.sign_out(request)


def twin_of(request: web.Request) -> str:
    """Return the address of the JSON form of this page, with the same query."""
    query = f"?{request.query_string}" if request.query_string else ""
    return f"{request.path}.json{query}"


def _noticed(found: Sequence[Condition]) -> list[dict[str, Any]]:
    """Return the conditions for the top of a page: a few of each kind, with the most severe kind
    first."""
    kinds = {one.kind.name: one.kind for one in found}
    return [
        {
            "name": name,
            "is_warning": kinds[name].severity is Severity.WARNING,
            "next_step": kinds[name].next_step,
            "texts": texts[:_MAX_NOTICED],
            "more": max(0, len(texts) - _MAX_NOTICED),
        }
        for name, texts in sentences_by_kind(found).items()
    ]


def _is_about_health(request: web.Request) -> bool:
    return request.path.startswith("/ui/health")
