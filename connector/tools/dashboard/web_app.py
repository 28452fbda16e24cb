"""The pages over HTTP, for whoever has the key and sits at this machine.

Invariants: a request for another host's name is refused, so no page of the web can read these under
a name of its own; nothing is shown without the key, which the printed URL has; nothing is changed
without `allow_changes`, and then by a form of these pages only; what comes from a queue is escaped
by the templates, and the browser is told to run no script but the dashboard's own.
"""

from __future__ import annotations

import datetime as dt
import hmac
import logging
import secrets
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final
from urllib.parse import urlsplit

from flask import (
    Flask,
    Response,
    abort,
    flash,
    redirect,
    render_template,
    request,
    session,
    url_for,
)
from werkzeug.exceptions import HTTPException
from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server
from werkzeug.wrappers import Response as AnyResponse

from pulsar_spark.connector.runtime.broker.broker_heartbeat import is_alive
from pulsar_spark.connector.runtime.housekeeping.redrive import Redriven
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.tools.dashboard.dead_letter_pages import (
    DEAD_LETTERS_A_PAGE,
    dead_letter_page,
    dead_letter_topics_of,
    send_back,
)
from pulsar_spark.connector.tools.dashboard.followed_queue import FollowedQueue
from pulsar_spark.connector.tools.dashboard.gallery import Gallery
from pulsar_spark.connector.tools.dashboard.topic_pages import (
    PARTITIONS_A_PAGE,
    TOPICS_A_PAGE,
    subscription_page,
    topic_page,
    topic_rows,
)
from pulsar_spark.errors import (
    InvalidOptionError,
    InvalidTopicNameError,
    PulsarliteError,
    TopicNotFoundError,
)

HOST: Final = "127.0.0.1"
TRUSTED: Final = (HOST, "localhost")
PATIENCE_S: Final = 20.0
"""Seconds that a browser may take to send its request."""
SHOWN_FAULTS: Final = 10
"""Why letters stayed is told for so many reasons."""
_PAGES_MAY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_PICTURES_MAY: Final = "default-src 'none'; style-src 'unsafe-inline'"
_NO_SUCH: Final = (TopicNotFoundError, InvalidTopicNameError)

_log = logging.getLogger(__name__)


def make_app(root: Root, *, allow_changes: bool, key: str) -> Flask:
    """The pages of a root, for requests that have that key."""
    app = Flask(__name__)
    app.secret_key = secrets.token_bytes(32)
    app.config.update(SESSION_COOKIE_SAMESITE="Lax", SESSION_COOKIE_HTTPONLY=True)
    queue, gallery = FollowedQueue(root), Gallery()
    _guard(app, key)
    _add_filters(app)
    _add_pages(app, queue, gallery)
    _add_dead_letters(app, queue, allow_changes=allow_changes)

    @app.context_processor
    def _of_all_pages() -> dict[str, Any]:
        return {
            "root": root.service_url,
            "picture": lambda kind, data: url_for(
                "picture", name=gallery.cache_picture(kind, data)
            ),
            "token": session.get("token", ""),
            "allow_changes": allow_changes,
        }

    @app.errorhandler(Exception)
    def _fault(error: Exception) -> tuple[str, int]:
        if isinstance(error, HTTPException):
            status, text = error.code or 500, error.description or error.name
        elif isinstance(error, (PulsarliteError, OSError)):
            status, text = 404 if isinstance(error, _NO_SUCH) else 503, str(error)
        else:
            _log.error("A page failed", exc_info=error)
            status, text = 500, "This page failed; what ran it printed why. Please report it."
        return render_template("fault.html", text=text), status

    return app


def make_dashboard(root: Root, port: int, *, allow_changes: bool) -> tuple[BaseWSGIServer, str]:
    """(a server that listens at this machine's own address, the URL to open).

    InvalidOptionError if the port can't be had.
    """
    key = secrets.token_urlsafe(16)
    app = make_app(root, allow_changes=allow_changes, key=key)
    try:
        server = make_server(HOST, port, app, threaded=True, request_handler=_Quiet)
    except (OSError, SystemExit) as error:  # werkzeug ends the process where a port is taken
        reason = error.strerror if isinstance(error, OSError) else "Address already in use"
        raise InvalidOptionError(
            f"--port {port}: {reason}. Name another, or 0 for any free one."
        ) from error
    # Cookies of one host go to all its ports: two dashboards have two.
    app.config["SESSION_COOKIE_NAME"] = f"pulsarlite-{server.port}"
    return server, f"http://{HOST}:{server.port}/?key={key}"


class _Quiet(WSGIRequestHandler):
    timeout = PATIENCE_S

    def log_request(self, *_: object) -> None:
        """Looks are not worth a line each."""


def _guard(app: Flask, key: str) -> None:
    """Limit the clients that may send requests, and the browser's use of the answer."""

    @app.before_request
    def _check() -> AnyResponse | None:
        if urlsplit(f"//{request.headers.get('Host', '')}").hostname not in TRUSTED:
            abort(400, "This dashboard answers under its own machine's name alone: 127.0.0.1.")
        if request.endpoint == "static":
            return None
        given = request.args.get("key")
        if given is not None and hmac.compare_digest(given.encode(), key.encode()):
            session["token"] = secrets.token_urlsafe(16)
            return redirect(request.path, 303)
        if "token" not in session:  # signed by a secret of this process
            abort(403, "Open the whole URL that `pulsarlite dashboard` printed: it has a key.")
        if request.method == "POST":
            _check_form()
        return None

    @app.after_request
    def _protect(response: Response) -> Response:
        is_picture = response.mimetype == "image/svg+xml"
        response.headers["Content-Security-Policy"] = _PICTURES_MAY if is_picture else _PAGES_MAY
        response.headers["X-Content-Type-Options"] = "nosniff"
        # Not «no-referrer», with which a browser sends a form without its origin.
        response.headers["Referrer-Policy"] = "same-origin"
        response.headers["Cross-Origin-Resource-Policy"] = "same-origin"
        if not is_picture and request.endpoint != "static":
            response.headers["Cache-Control"] = "no-store"
        return response


def _check_form() -> None:
    """That one of these pages was filled in, and no other page of the web."""
    origin = request.headers.get("Origin")
    is_own = origin is None or urlsplit(origin).netloc == request.host
    token = session.get("token", "")
    if not is_own or not hmac.compare_digest(
        request.form.get("token", "").encode(), token.encode()
    ):
        abort(403, "That was not sent by a page of this dashboard. Load the page anew.")


def _add_pages(app: Flask, queue: FollowedQueue, gallery: Gallery) -> None:
    @app.before_request
    def _follow() -> None:
        if request.endpoint not in {"static", "picture"}:
            queue.follow()

    @app.context_processor
    def _broker() -> dict[str, bool]:
        with suppress(PulsarliteError, OSError):  # a page that says more is on its way
            return {"has_broker": is_alive(queue.root)}
        return {}

    @app.get("/")
    def topics() -> str:
        having, page = request.args.get("having", ""), _number("page")
        rows, count = topic_rows(queue, having, page)
        return render_template(
            "topics.html", rows=rows, count=count, having=having, page=page, size=TOPICS_A_PAGE
        )

    @app.get("/topic")
    def topic() -> str:
        return render_template("topic.html", page=topic_page(queue, _text("name")))

    @app.get("/subscription")
    def subscription() -> str:
        topic_partition, name = _text("topic"), _text("name")
        page = subscription_page(queue, topic_partition, name, _number("first"))
        if page is None:
            abort(404, f"No broker knows of a subscription {name!r} of {topic_partition}.")
        return render_template("subscription.html", page=page, size=PARTITIONS_A_PAGE)

    @app.get("/picture/<name>.svg")
    def picture(name: str) -> Response:
        drawn = gallery.svg(name)
        if drawn is None:
            abort(404, "That picture is no longer kept: load its page anew.")
        response = Response(drawn, mimetype="image/svg+xml")
        response.headers["Cache-Control"] = "private, max-age=3600, immutable"
        return response


def _add_dead_letters(app: Flask, queue: FollowedQueue, *, allow_changes: bool) -> None:
    @app.get("/letters")
    def dead_letters() -> str:
        name, page = request.args.get("topic"), _number("page")
        if name is None:
            return render_template("letter_topics.html", names=dead_letter_topics_of(queue))
        found = dead_letter_page(queue, name, page)
        return render_template("letters.html", page=found, number=page, size=DEAD_LETTERS_A_PAGE)

    @app.post("/redrive")
    def redrive() -> AnyResponse:
        if not allow_changes:
            abort(403, "This dashboard only looks. Start it with --allow-changes to redrive.")
        name, ids = request.form.get("topic", ""), request.form.getlist("id")
        if ids or "all" in request.form:
            try:
                lines = _reported(send_back(queue.root, name, ids))
            except (PulsarliteError, OSError, ValueError) as error:
                lines = [str(error)]
        else:
            lines = ["No letter was chosen, so none was sent."]
        for line in lines:
            flash(line)
        return redirect(url_for("dead_letters", topic=name), 303)


def _reported(done: Redriven) -> list[str]:
    lines = [f"{count:,} went to {target}" for target, count in sorted(done.redriven.items())]
    lines += [f"{count:,} stayed: {why[:200]}" for why, count in done.left.items()]
    rest = len(lines) - SHOWN_FAULTS
    lines = [*lines[:SHOWN_FAULTS], *([f"and {rest} more lines"] if rest > 0 else [])]
    return lines or ["None of these is left: they were redriven before."]


def _add_filters(app: Flask) -> None:
    filters: dict[str, Callable[..., str]] = {
        "number": lambda value: "" if value is None else f"{value:,}",
        "size": _size, "age": _age, "moment": _moment,
        "short": lambda name: str(name).removeprefix("persistent://public/default/"),
    }  # fmt: skip
    app.jinja_env.filters.update(filters)
    app.jinja_env.trim_blocks = app.jinja_env.lstrip_blocks = True


def _size(count: float | None) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count is not None and count >= size:
            return f"{count / size:.1f} {unit}"
    return "" if count is None else f"{count:.0f} B"


def _age(seconds: float | None) -> str:
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds is not None and seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return "" if seconds is None else f"{seconds:.0f} s"


def _moment(value: dt.datetime | None) -> str:
    return "" if value is None else f"{value.astimezone(dt.timezone.utc):%Y-%m-%d %H:%M:%S}"


def _text(name: str) -> str:
    value = request.args.get(name)
    if not value:
        abort(400, f"This page needs {name}=... in its URL.")
    return value


def _number(name: str) -> int:
    text = request.args.get(name, "0")
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        abort(400, f"{name}={text} is no whole number.")
    return int(text)
