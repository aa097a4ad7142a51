"""Certificates and keys for a federation on one machine; for several, your organisation has its own authority."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from letheon.files import write

VALID = datetime.timedelta(days=30)


@dataclass(frozen=True, slots=True)
class Certificates:
    """Files of an authority and of the one server that it vouches for; all in PEM.

    Attributes:
        authority: the authority's certificate, for those who connect.
        certificate: the server's.
        key: the server's private key.
    """

    authority: Path
    certificate: Path
    key: Path


def certify(folder: Path, host: str) -> Certificates:
    """An authority made for the occasion, whose key is thrown away, and its certificate for ``host``, an IP address."""
    issuer, server = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    root = _builder("letheon authority", "letheon authority", issuer)
    root = root.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    leaf = _builder("letheon authority", host, server)
    leaf = leaf.add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))]), critical=False)
    leaf = leaf.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    files = Certificates(folder / "ca.crt", folder / "server.pem", folder / "server.key")
    for path, builder in ((files.authority, root), (files.certificate, leaf)):
        write(path, builder.sign(issuer, hashes.SHA384()).public_bytes(serialization.Encoding.PEM))
    _write_private(files.key, server, serialization.PrivateFormat.PKCS8)
    return files


def _builder(issuer: str, subject: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in (issuer, subject)]
    builder = x509.CertificateBuilder().issuer_name(names[0]).subject_name(names[1]).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - datetime.timedelta(minutes=5)).not_valid_after(now + VALID)


def key_pair(path: Path) -> Path:
    """A new key of a SuperNode: the private one in ``path``; returns the public one's path, which may be shown."""
    key = ec.generate_private_key(ec.SECP384R1())
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _write_private(path, key, serialization.PrivateFormat.OpenSSH)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    write(path.with_suffix(".pub"), public + b"\n")
    return path.with_suffix(".pub")


def _write_private(path: Path, key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> None:
    """In a folder of its owner's: until its mode is set, the file is everybody's to read."""
    write(path, key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    path.chmod(0o600)
