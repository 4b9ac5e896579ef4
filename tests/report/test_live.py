"""`fedpals watch`: the page of runs under way, in a real browser; who may ask, and for what."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedpals.engine.recorded import About, plain_values, to_line
from tests.cli.test_weights import EXECUTABLE, refused
from tests.report import made

pytest.importorskip("jinja2", reason="pages need the extra 'plots'")

from fedpals.report.live import LiveServer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    (tmp_path / "runs").mkdir()
    with LiveServer([tmp_path / "runs"], 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(server: LiveServer, path: str, host: str | None = None, method: str = "GET") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=20)
    connection.putrequest(method, path, skip_host=True)
    if host != "":
        connection.putheader("Host", host or f"127.0.0.1:{server.server_address[1]}")
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body


def begin(folder: Path, rounds: int = 5) -> None:
    """What a deployment writes before its first round ends."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "weights.json").write_text(json.dumps(made.VIEW.to_json()))
    (folder / "about.json").write_text(json.dumps(plain_values(About("FedPALS", "fedpals", rounds))))


def add(folder: Path, number: int, accuracy: float, *, cut: int = 0) -> str:
    """Add a line without its last ``cut`` characters, which are returned."""
    line = to_line(made.round_line(number, accuracy, made.FEDAVG))
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(line[: len(line) - cut])
    return line[len(line) - cut :]


def test_only_browsers_of_this_machine_may_ask(server: LiveServer) -> None:
    port = server.server_address[1]
    assert server.server_address[0] == "127.0.0.1"
    assert ask(server, "/")[0] == 200
    assert ask(server, "/", f"localhost:{port}")[0] == 200
    for host in ("", "evil.example", f"evil.example:{port}", "127.0.0.1", f"127.0.0.1.evil.example:{port}"):
        assert ask(server, "/data.json", host)[0] == 403


@pytest.mark.parametrize(
    "path", ["/../../../etc/passwd", "//etc/passwd", "/%2e%2e/", "/runs", "/data.json/", "/data.json?x", "/.", "*"]
)
def test_no_path_leads_to_a_file(server: LiveServer, path: str) -> None:
    status, body = ask(server, path)
    assert status == 404
    assert b"root:" not in body


def test_nothing_can_be_written(server: LiveServer) -> None:
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert ask(server, "/data.json", method=method)[0] == 501
    assert ask(server, "/", method="HEAD") == (200, b"")


def test_a_folder_that_vanishes_is_said_and_comes_back(server: LiveServer) -> None:
    (folder,) = server.folders
    folder.rmdir()
    status, body = ask(server, "/data.json")
    assert status == 503
    assert b"no such folder" in body
    folder.mkdir()
    assert ask(server, "/data.json")[0] == 200


def test_the_page_follows_a_run_without_flicker(server: LiveServer, tmp_path: Path) -> None:
    pytest.importorskip("websockets", reason="the browser is driven over a web socket")
    from tests.report.browser import browser, executable, new_page

    program = executable()
    if program is None:
        pytest.skip("no chromium is installed")
    folder = server.folders[0] / "hospital"
    with browser(program, tmp_path / "profile") as devtools, new_page(devtools) as page:
        page.resize(1300, 900)
        page.visit(server.address)
        assert page.text("[data-fact=state]").startswith("No run yet")
        begin(folder)
        add(folder, 1, 0.6)
        page.wait("document.querySelector('.progress')?.textContent.includes('1 of 5 rounds')")
        page.run("window.same = document.querySelector('[data-part=light]').firstChild")
        rest = add(folder, 2, 0.7, cut=40)
        add_nothing = page.run("fetch('data.json').then((a) => a.json())")
        assert add_nothing["federations"][0]["progress"][0]["rounds"] == 1
        with (folder / "metrics.jsonl").open("a") as file:
            file.write(rest)
        page.wait("document.querySelector('.progress').textContent.includes('2 of 5 rounds')")
        assert "70.0 ± 2.0" in page.text(".study table")
        assert page.run("window.same.isConnected"), "what did not change is not drawn again"
        for number in (3, 4, 5):
            add(folder, number, 0.8)
        page.wait("document.querySelector('.progress').textContent.includes('finished')")
        assert page.text("[data-fact=state]") == "1 of 1 runs finished"
        page.resize(400, 900, mobile=True)
        assert page.run("document.documentElement.scrollWidth") <= 400
        assert page.complaints == []
        assert {url for url in page.requests if not url.startswith("data:")} == {
            server.address,
            f"{server.address}data.json",
        }


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_as_a_user_types_it(number: signal.Signals, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [EXECUTABLE, "watch", str(tmp_path), "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    address = re.search(r"http://127\.0\.0\.1:\d+/", process.stdout.readline())
    assert address is not None
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert "Traceback" not in out + err
    assert list(tmp_path.iterdir()) == []


def test_bad_input(tmp_path: Path) -> None:
    assert "absent: no such folder" in refused("watch", "absent", cwd=tmp_path)
    with LiveServer([tmp_path], 0) as server:
        port = str(server.server_address[1])
        assert f"port is {port}" in refused("watch", ".", "--port", port, cwd=tmp_path)
