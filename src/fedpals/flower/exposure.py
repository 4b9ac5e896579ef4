"""What a stranger who reaches a SuperLink's address could do, tried from outside without effect on runs.

SuperLink 1.41 serves three interfaces on one port: Fleet for SuperNodes, Control for `flwr run`, Runtime for its own
helpers. Only Fleet is meant for other machines, and the open-source SuperLink authenticates nobody on Control.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.proto.fleet_pb2 import RegisterNodeFleetRequest, UnregisterNodeFleetRequest
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedpals.errors import InputError

_SECONDS = 10.0
"""Time limit for an answer."""
_UNREADABLE = b"\xff"
"""A body that is no message: SuperLink reads a body after it has checked accounts, and then does nothing."""
_CLOSED = (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN, httpx.codes.NOT_FOUND)
"""Answers of one who lets nobody in; any other counts as open."""
_PROTOBUF = {"content-type": "application/protobuf"}


@dataclass(frozen=True)
class Exposure:
    """What was seen at an address."""

    address: str
    tls: str | None
    """Version of TLS; None if the connection is not encrypted."""
    certificate_problem: str | None
    """Why the certificate cannot be trusted; None if it can, or without TLS."""
    strangers_join: bool
    """Whether a node with an unknown key is accepted."""
    strangers_command: tuple[str, ...]
    """What anybody may ask for at the Control interface, such as ``start-run``."""
    runtime: bool
    """Whether the interface of SuperLink's own helpers can be reached."""

    @property
    def safe(self) -> bool:
        """Whether only registered nodes can do anything, over an encrypted connection that they can trust."""
        return not (
            self.tls is None
            or self.certificate_problem
            or self.strangers_join
            or self.strangers_command
            or self.runtime
        )


def inspect(address: str, root_certificates: Path | None = None) -> Exposure:
    """Return what a stranger could do at ``address``, HOST:PORT; certificates are checked as SuperNodes check them.

    To see whether strangers may join, a node with a new key is registered and, if that succeeds, removed at once; it
    never connects, so no run sees it. All other questions have no effect.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise InputError(f"the address is {address!r}; give HOST:PORT, for instance superlink.example.org:8000")
    tls, problem = _tls(address, root_certificates)
    with _client("http" if tls is None else "https", address, verify=False) as client:
        _expect_superlink(client, address)
        commands = ("list-runs", "list-nodes", "start-run", "stop-run", "register-node", "stream-logs")
        return Exposure(
            address,
            tls,
            problem,
            _strangers_join(str(client.base_url)),
            tuple(name for name in commands if _is_open(client, f"/v1/control/{name}")),
            _is_open(client, "/v1/runtime/acquire-task"),
        )


def _client(scheme: str, address: str, *, verify: ssl.SSLContext | bool) -> httpx.Client:
    return httpx.Client(base_url=f"{scheme}://{address}", verify=verify, timeout=_SECONDS, trust_env=False)


def _tls(address: str, root_certificates: Path | None) -> tuple[str | None, str | None]:
    """Return the version of TLS, None if there is none, and why the certificate cannot be trusted."""
    context = ssl.create_default_context()
    if root_certificates is not None:
        try:
            context = ssl.create_default_context(cafile=str(root_certificates))
        except (OSError, ssl.SSLError) as error:
            raise InputError(
                f"--root-certificates is {root_certificates}: {error}; give the PEM file that SuperNodes use"
            ) from None
    problem = None
    try:
        return _handshake(address, context), problem
    except httpx.ConnectError as error:
        problem = str(error)
    if "CERTIFICATE" not in problem:
        return None, None
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return _handshake(address, context), problem.partition("] ")[2] or problem


def _handshake(address: str, context: ssl.SSLContext) -> str | None:
    with _client("https", address, verify=context) as client, client.stream("GET", "/health") as answer:
        connection = answer.extensions["network_stream"].get_extra_info("ssl_object")
        return None if connection is None else str(connection.version())


def _expect_superlink(client: httpx.Client, address: str) -> None:
    try:
        answers = _is_open(client, "/v1/fleet/activate-node")
    except httpx.HTTPError as error:
        raise InputError(
            f"{address}: no SuperLink answers ({error}); check host and port, and whether a firewall is between"
        ) from None
    if not answers:
        raise InputError(f"{address}: what answers is no SuperLink of Flower 1.41 or newer; give its HOST:PORT")


def _is_open(client: httpx.Client, path: str) -> bool:
    """Return whether a request without any credentials gets past authentication and proxies."""
    return client.post(path, content=_UNREADABLE, headers=_PROTOBUF).status_code not in _CLOSED


def _strangers_join(url: str) -> bool:
    """Return whether a node with a new key can register itself; if so, it is removed again."""
    key = ec.generate_private_key(ec.SECP384R1())
    signature = NodeAuthHttpInterceptor(key, key.public_key())
    fleet = FleetHttpClient(url, interceptors=[signature], verify=False, timeout=_SECONDS)
    try:
        node = fleet.RegisterNode(RegisterNodeFleetRequest(public_key=public_key_to_bytes(key.public_key())))
        fleet.UnregisterNode(UnregisterNodeFleetRequest(node_id=node.node_id))
    except httpx.HTTPStatusError:
        return False
    finally:
        fleet.close()
    return True
