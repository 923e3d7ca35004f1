"""Certificates for TLS on this machine, and keys of nodes, as Flower takes them."""

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import NameOID

VALID = timedelta(days=365)


def _private(path: Path, content: bytes) -> None:
    path.touch(mode=0o600, exist_ok=False)
    path.write_bytes(content)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _certificate(
    subject: str, key: ec.EllipticCurvePrivateKey, issuer: str, by: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_named(subject))
        .issuer_name(_named(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + VALID)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(by.public_key()), critical=False)
    )


def write_certificates(folder: Path) -> None:
    """ca.crt, and server.pem with server.key for 127.0.0.1; the authority's own key is not kept."""
    folder.mkdir(mode=0o700)
    authority, server = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    usage = {name: False for name in ("data_encipherment", "key_agreement", "key_encipherment")}
    usage |= {name: False for name in ("content_commitment", "encipher_only", "decipher_only")}
    ca = (
        _certificate("Discretion, this machine", authority, "Discretion, this machine", authority)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(
            x509.KeyUsage(digital_signature=True, key_cert_sign=True, crl_sign=True, **usage), critical=True
        )
        .sign(authority, hashes.SHA384())
    )
    names = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
    own = (
        _certificate("localhost", server, "Discretion, this machine", authority)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(authority, hashes.SHA384())
    )
    (folder / "ca.crt").write_bytes(ca.public_bytes(Encoding.PEM))
    (folder / "server.pem").write_bytes(own.public_bytes(Encoding.PEM))
    form = PrivateFormat.PKCS8
    _private(folder / "server.key", server.private_bytes(Encoding.PEM, form, NoEncryption()))


def write_node_key(path: Path) -> None:
    """A node's key, with its public part beside it, as ssh-keygen writes them."""
    key = ec.generate_private_key(ec.SECP384R1())
    _private(path, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    path.with_name(path.name + ".pub").write_bytes(public + b"\n")
