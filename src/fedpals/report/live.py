"""The page of runs under way, served on this machine alone: read-only, nothing but the page and its data."""

from __future__ import annotations

import json
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from fedpals.errors import InputError
from fedpals.report.overview import overview
from fedpals.report.study_page import study_page
from fedpals.report.watched import watched

HOST = "127.0.0.1"
_NAMES = (HOST, "localhost")
"""Names under which a browser of this machine knows it; under any other, a page of somebody else's asks."""


class LiveServer(ThreadingHTTPServer):
    """Serves the page of the runs below some folders."""

    daemon_threads = True

    def __init__(self, folders: Sequence[Path], port: int) -> None:
        self.folders = tuple(folders)
        self.title = f"Runs in {', '.join(map(str, folders))}"
        self.data()  # a folder that cannot be read is an error now
        try:
            super().__init__((HOST, port), _Handler)
        except (OSError, OverflowError) as error:
            raise InputError(f"port is {port}: {error}; give another with --port, or 0 for any that is free") from None

    @property
    def address(self) -> str:
        """Address for a browser."""
        return f"http://{HOST}:{self.server_address[1]}/"

    def data(self) -> dict[str, Any]:
        """Return what the page shows."""
        return overview(watched(self.folders), self.title)


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer
    server_version = "fedpals"
    sys_version = ""
    timeout = 30

    def do_GET(self) -> None:
        self._answer(send_body=True)

    def do_HEAD(self) -> None:
        self._answer(send_body=False)

    def _answer(self, *, send_body: bool) -> None:
        if self.headers.get("Host") not in {f"{name}:{self.server.server_address[1]}" for name in _NAMES}:
            self.send_error(HTTPStatus.FORBIDDEN, "this page is for browsers of its own machine")
            return
        try:
            kind, text = self._content()
        except InputError as error:  # a folder that is gone, or files that are being replaced
            self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, explain=str(error))
            return
        if text is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        body = text.encode()
        self.send_response(HTTPStatus.OK)
        headers = {"Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(body))}
        for name, value in {**headers, "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}.items():
            self.send_header(name, value)
        self.end_headers()
        if send_body:
            self.wfile.write(body)

    def _content(self) -> tuple[str, str | None]:
        """Return type and text of one of the two things that there are; no path leads to a file."""
        if self.path == "/":
            return "text/html", study_page(self.server.data(), live=True)
        if self.path == "/data.json":
            return "application/json", json.dumps(self.server.data())
        return "", None

    def log_message(self, *_: object) -> None:
        """Say nothing: requests come every few seconds."""
