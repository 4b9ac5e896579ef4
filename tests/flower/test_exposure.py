"""What strangers can do at a SuperLink: real ones on this machine, open, with TLS, and behind the proxy of the docs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from fedpals.errors import InputError
from fedpals.flower.exposure import inspect
from fedpals.flower.local.deployment import Deployment, free_port, until

DOCS = Path(__file__).parents[2] / "docs" / "deployment.md"
NGINX = shutil.which("nginx", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"]))
EVERYTHING = ("list-runs", "list-nodes", "start-run", "stop-run", "register-node", "stream-logs")


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fedpals", "flower", "check", *arguments], capture_output=True, text=True, check=False
    )


@contextmanager
def proxy_of(deployment: Deployment, folder: Path) -> Iterator[str]:
    """The docs' proxy in front of a SuperLink; yields its address."""
    assert NGINX is not None
    assert deployment.certificates is not None
    (server,) = re.findall(r"```nginx\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    address = f"127.0.0.1:{free_port()}"
    tls = str(deployment.certificates.authority.parent)
    for before, after in {"8443": address, "127.0.0.1:8000": deployment.address, "/etc/superlink": tls}.items():
        assert before in server
        server = server.replace(before, after)
    paths = "".join(f"{kind}_temp_path {folder};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    (folder / "nginx.conf").write_text(
        f"daemon off;\nmaster_process off;\npid {folder}/pid;\nerror_log {folder}/errors;\nevents {{}}\n"
        f"http {{\naccess_log off;\n{paths}{server}}}\n"
    )
    process = subprocess.Popen([NGINX, "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", f"{folder}/errors"])
    try:
        until(lambda: process.poll() is not None or _answers(address), "nginx accepts no connections")
        assert process.poll() is None, (folder / "errors").read_text()
        yield address
    finally:
        process.terminate()
        process.wait()


def _answers(address: str) -> bool:
    try:
        return httpx.get(f"https://{address}/", verify=False).status_code == httpx.codes.FORBIDDEN
    except httpx.HTTPError:
        return False


def test_an_insecure_superlink_is_open_to_everybody() -> None:
    with Deployment() as deployment:
        seen = inspect(deployment.address)
        assert (seen.tls, seen.strangers_join, seen.strangers_command, seen.runtime) == (None, True, EVERYTHING, True)
        assert not seen.safe
        assert deployment.online() == 0
        assert deployment.status() == "never started"
        process = command(deployment.address)
    assert process.returncode == 1
    assert "TLS                no" in process.stdout
    assert "everybody may list-runs" in process.stdout


@pytest.mark.skipif(NGINX is None, reason="nginx is not installed")
def test_only_the_proxy_makes_tls_and_node_keys_safe(tmp_path: Path) -> None:
    with Deployment(tls=True) as deployment:
        assert deployment.certificates is not None
        authority = deployment.certificates.authority
        direct = inspect(deployment.address, authority)
        assert (direct.tls, direct.certificate_problem, direct.strangers_join) == ("TLSv1.3", None, False)
        assert direct.strangers_command == EVERYTHING
        assert not direct.safe
        with proxy_of(deployment, tmp_path) as address:
            process = command(address, "--root-certificates", str(authority))
            assert process.returncode == 0, process.stdout + process.stderr
            shown = re.findall(r"ca.crt\n(TLS.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
            assert process.stdout == shown[0]
            distrusted = inspect(address)
            assert not distrusted.safe
            assert distrusted.certificate_problem is not None
            # No spelling of a path gets past it.
            with httpx.Client(verify=False, base_url=f"https://{address}") as client:
                for path in (
                    "/v1/fleet/../control/list-runs",
                    "/v1/fleet/%2e%2e/control/list-runs",
                    "//v1/control/list-runs",
                ):
                    request = client.build_request("POST", "/", headers={"content-type": "application/protobuf"})
                    request.url = request.url.copy_with(raw_path=path.encode())
                    assert client.send(request).status_code in (403, 404), path
            # Nodes with a registered key get through.
            deployment.node(0, 1, through=address)
            until(lambda: deployment.online() == 1, "the node does not get through the proxy")


@pytest.mark.parametrize("address", ["localhost", "localhost:", ":8000", "localhost:0", "localhost:x", "a:99999"])
def test_addresses_are_checked(address: str) -> None:
    with pytest.raises(InputError, match="give HOST:PORT"):
        inspect(address)


def test_nobody_there() -> None:
    with pytest.raises(InputError, match="no SuperLink answers"):
        inspect(f"127.0.0.1:{free_port()}")
    process = command(f"127.0.0.1:{free_port()}")
    assert process.returncode == 2
    assert "no SuperLink answers" in process.stderr
