"""New TLS certificates and node keys, for deployments on one machine and for tests."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import NameOID

_VALIDITY = timedelta(days=1)
"""Time for which the certificates are valid."""


@dataclass(frozen=True)
class Certificates:
    """Paths of a certificate authority, and of a server certificate for this machine that it signed."""

    authority: Path
    server: Path
    server_key: Path


def make_certificates(folder: Path) -> Certificates:
    """Write a new authority and a server certificate for 127.0.0.1 and localhost, valid for a day."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = Certificates(folder / "ca.crt", folder / "server.pem", folder / "server.key")
    authority_key, server_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority_name = _name("fedpals local authority")
    constraints = x509.BasicConstraints(ca=True, path_length=0)
    authority = (
        _certificate(authority_name, authority_name, authority_key)
        .add_extension(constraints, critical=True)
        .add_extension(_key_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    addresses = x509.SubjectAlternativeName(
        [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
    )
    server = (
        _certificate(_name("localhost"), authority_name, server_key)
        .add_extension(addresses, critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs=False), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    paths.authority.write_bytes(authority.public_bytes(Encoding.PEM))
    paths.server.write_bytes(server.public_bytes(Encoding.PEM))
    _write_private(paths.server_key, server_key, PrivateFormat.PKCS8)
    return paths


def make_node_key(path: Path) -> Path:
    """Write a new key pair for a SuperNode, the private key to ``path``; return the path of the public key."""
    key = ec.generate_private_key(ec.SECP384R1())
    _write_private(path, key, PrivateFormat.OpenSSH)
    public = path.with_name(path.name + ".pub")
    public.write_bytes(key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n")
    return public


def _write_private(path: Path, key: ec.EllipticCurvePrivateKey, form: PrivateFormat) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_bytes(key.private_bytes(Encoding.PEM, form, NoEncryption()))


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _key_usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _certificate(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + _VALIDITY)
    )
