"""What watch answers: the page, what it shows as JSON, live or once, and /metrics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import FastAPI, Query, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.sse import EventSourceResponse, ServerSentEvent
from fastapi.staticfiles import StaticFiles

from server.runs.run_folder import REPORT
from server.watch.metrics import MEDIA_TYPE, metrics
from server.watch.report import PAGE, report_of
from server.watch.watched import Answer, Watched

SECONDS_BETWEEN_EVENTS = 1.0
MOST_COMPARED = 20

RunId = Annotated[str, Query(alias="id", max_length=4096)]
RunIds = Annotated[list[str], Query(alias="id", min_length=1, max_length=MOST_COMPARED)]


def make_app(watched: Watched) -> FastAPI:
    """Return the app that shows these runs."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    answers = Answers(watched)
    app.add_exception_handler(KeyError, no_such_run)
    app.get("/api/runs")(answers.runs)
    app.get("/api/run")(answers.run)
    app.get("/api/compare")(answers.compare)
    app.get("/api/live", response_class=EventSourceResponse)(answers.live)
    app.get("/metrics")(answers.metrics)
    app.get("/report")(answers.report)
    app.mount("/", StaticFiles(directory=PAGE, html=True))
    return app


class Answers:
    """An answer for every address; those of the page itself are its files."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched

    def runs(self) -> Response:
        """Return the list of runs."""
        return _json(self._watched.runs())

    def run(self, run_id: RunId) -> Response:
        """Return all of one run."""
        return _json(self._watched.run(run_id))

    def compare(self, run_ids: RunIds) -> Response:
        """Return several runs side by side."""
        return _json(self._watched.compared(run_ids))

    async def live(self, run_id: RunId = "") -> AsyncIterator[ServerSentEvent]:
        """Return a run, or the list, whenever it has changed."""
        version = -1
        while True:
            try:
                answer = await run_in_threadpool(self._newest, run_id)
            except KeyError:  # the folder was taken away
                return
            if answer.version != version:
                version = answer.version
                yield ServerSentEvent(raw_data=answer.text)
            await asyncio.sleep(SECONDS_BETWEEN_EVENTS)

    def metrics(self) -> Response:
        """Return what Prometheus asks for."""
        return Response(self._watched.with_all(metrics), media_type=MEDIA_TYPE)

    def report(self, run_ids: RunIds) -> Response:
        """Return runs as one file that needs nobody."""
        page = self._watched.with_runs(run_ids, report_of)
        return Response(page, media_type="text/html", headers={"Content-Disposition": f"attachment; filename={REPORT}"})

    def _newest(self, run_id: str) -> Answer:
        return self._watched.run(run_id) if run_id else self._watched.runs()


def _json(answer: Answer) -> Response:
    return Response(answer.text, media_type="application/json")


def no_such_run(*_: object) -> Response:
    """Answer a question about a run that is not there."""
    return Response('{"detail":"there is no such run"}', 404, media_type="application/json")
