"""A trial cluster on this machine: SuperLink, SuperNodes and guards; its keys, files, start and end."""

import ipaddress
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import tomli_w
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import NameOID

from discretion.errors import InputError
from discretion.files import write_private
from discretion.flower.project import environment, quoted, tool
from discretion.plan.names import allowed

STARTING = 180.0  # seconds
ENDING = 20.0
VALID = timedelta(days=365)  # of TLS certificates
AUTHORITY = "Discretion, this machine"  # that signs them
MARK = "DISCRETION_STARTED"  # environment variable of every process started here
Key = ec.EllipticCurvePrivateKey
FILES = ("certificates", "nodes", "flower", "logs", "local.json", "processes.jsonl")  # beside the clients'
SUPERVISE = str(Path(__file__).with_name("supervise.py"))  # by path: it needs the standard library only


def write(folder: Path, clients: tuple[str, ...], port: int) -> None:
    """Write certificates, a key for each client's node, and Flower's configuration."""
    write_certificates(folder / "certificates")
    (folder / "nodes").mkdir(mode=0o700)
    for name in clients:
        (folder / "nodes" / name).mkdir()
        write_node_key(folder / "nodes" / name / "key")
    home = folder / "flower"
    home.mkdir()
    authority = str(folder.absolute() / "certificates/ca.crt")
    link = {"address": f"127.0.0.1:{port}", "root-certificates": authority}
    settings = tomli_w.dumps({"superlink": {"default": "here", "here": link}})
    (home / "config.toml").write_text(settings, encoding="utf-8")
    (folder / "local.json").write_text(json.dumps({"port": port, "clients": list(clients)}))


def up(folder: Path, say: Callable[[str], None]) -> None:
    """Start all processes, each recorded at once, so that `down` finds it whatever happens."""
    port, clients = _about(folder)
    if _recorded(folder):
        raise InputError(f"{folder} is running, or was not ended: first discretion flower down {folder}")
    here = folder.absolute()
    keys = here / "certificates"
    files = {"ca-certfile": "ca.crt", "certfile": "server.pem", "keyfile": "server.key"}
    tls = [f"--ssl-{name}={keys / file}" for name, file in files.items()]
    more = ["--enable-supernode-auth", "--disable-runtime-dependency-installation"]
    database = f"--database={here / 'flower' / 'superlink.db'}"
    _start(folder, "superlink", [tool("flower-superlink"), *tls, *more, database, f"--port={port}"])
    for name in clients:
        policy = str(here / name / "GUARD.toml")
        _start(folder, f"guard-{name}", [sys.executable, "-m", "discretion", "guard", policy])
    _wait(lambda: _listens(port), "the SuperLink", folder)
    _register(folder, clients)
    for number, name in enumerate(clients):
        door = here / name / "guard" / "guard.sock"
        _wait(door.exists, f"the guard of {name}", folder)
        node = [tool("flower-supernode"), f"--root-certificates={keys / 'ca.crt'}"]
        node += [
            f"--auth-supernode-private-key={here / 'nodes' / name / 'key'}",
            f"--superlink=127.0.0.1:{port}",
        ]
        node += [f"--port={port + 1 + number}", f"--node-config=guard={quoted(door)}"]
        _start(folder, f"node-{name}", node)
    say(f"Started a SuperLink on 127.0.0.1:{port}, {len(clients)} guards and {len(clients)} nodes.")


def _about(folder: Path) -> tuple[int, list[str]]:
    """Return the SuperLink's port and the clients' names, as `write` left them."""
    try:
        about = json.loads((folder / "local.json").read_text(encoding="utf-8"))
        port, clients = int(about["port"]), [allowed(name) for name in about["clients"]]
    except OSError:
        raise InputError(f"found no cluster in {folder}: make one with discretion flower init") from None
    except (ValueError, KeyError, TypeError) as problem:
        raise InputError(f"{folder / 'local.json'} is damaged: {problem}; make another cluster") from None
    return port, clients


def down(folder: Path, say: Callable[[str], None]) -> None:
    """End the processes that `up` started, with those that they started, and no others.

    A killed SuperLink leaves processes in sessions of their own: they are found by the mark.
    """
    ours = [entry["pid"] for entry in _recorded(folder) if _state(entry["pid"])[1] == entry["since"]]
    for how in (signal.SIGTERM, signal.SIGKILL):  # an ended group leader may leave others of its group
        for pid in ours:
            with suppress(ProcessLookupError):
                os.killpg(pid, how)
        for pid in marked(folder):
            with suppress(ProcessLookupError):
                os.kill(pid, how)
        deadline = time.monotonic() + ENDING
        while (marked(folder) or any(_state(pid)[0] != "Z" for pid in ours)) and time.monotonic() < deadline:
            time.sleep(0.1)
    (folder / "processes.jsonl").unlink(missing_ok=True)
    say(f"Ended {len(ours)} processes.")


def marked(folder: Path, name: str = "") -> list[int]:
    """Return the ids of processes started from this folder under this name, or any; descendants included."""
    mark, found = f"{MARK}={folder.absolute()}#{name}".encode(), []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if mark in words if name else any(word.startswith(mark) for word in words):
                found.append(int(path.parent.name))
    return found


def _register(folder: Path, clients: list[str]) -> None:
    """Register the nodes' keys at the SuperLink, each under its client's name."""
    nodes, asked, home = folder.absolute() / "nodes", {}, str(folder.absolute() / "flower")
    for name in clients:
        if not (nodes / name / "registered").exists():
            key = str(nodes / name / "key.pub")
            words = [tool("flwr"), "supernode", "register", key, "here", "--name", name]
            asked[name] = subprocess.Popen(
                words, env=environment(home), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
    said = {name: process.communicate()[0] for name, process in asked.items()}
    for name, process in asked.items():
        if process.returncode != 0:
            raise InputError(f"the SuperLink rejects the node of {name}: {said[name]}")
        (nodes / name / "registered").touch()


def _start(folder: Path, name: str, words: list[str]) -> None:
    """Start a program under `supervise`, which restarts it whenever it ends."""
    here = folder.absolute()
    (folder / "logs").mkdir(exist_ok=True)
    with (folder / "logs" / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, SUPERVISE, *words],
            env=environment(str(here / "flower")) | {MARK: f"{here}#{name}"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that its whole process group can be ended
        )
    with (folder / "processes.jsonl").open("a", encoding="utf-8") as record:
        record.write(json.dumps({"name": name, "pid": process.pid, "since": _state(process.pid)[1]}) + "\n")


def _recorded(folder: Path) -> list[dict[str, int]]:
    path = folder / "processes.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _state(pid: int) -> tuple[str, int]:
    """Return a process's state, Z if over, and its start in ticks, which tells it from a later one's."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0], int(fields[19])
    except (OSError, ValueError, IndexError):
        return "Z", -1


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _wait(ready: Callable[[], bool], what: str, folder: Path) -> None:
    deadline = time.monotonic() + STARTING
    while not ready():
        if time.monotonic() > deadline:
            raise InputError(
                f"{what} did not start: see {folder / 'logs'}, then discretion flower down {folder}"
            )
        time.sleep(0.1)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _certificate(subject: str, key: Key, by: Key, extensions: dict[x509.ExtensionType, bool]) -> bytes:
    """Return a certificate in PEM; `extensions` says which are critical."""
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(_named(subject))
        .issuer_name(_named(AUTHORITY))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + VALID)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(by.public_key()), critical=False)
    )
    for extension, critical in extensions.items():
        certificate = certificate.add_extension(extension, critical)
    return certificate.sign(by, hashes.SHA384()).public_bytes(Encoding.PEM)


def write_certificates(folder: Path) -> None:
    """Write ca.crt, and server.pem with server.key for 127.0.0.1; the authority's key is not kept."""
    folder.mkdir(mode=0o700)
    authority, server = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    usage = {name: False for name in ("data_encipherment", "key_agreement", "key_encipherment")}
    usage |= {name: False for name in ("content_commitment", "encipher_only", "decipher_only")}
    ca: dict[x509.ExtensionType, bool] = {
        x509.BasicConstraints(ca=True, path_length=0): True,
        x509.KeyUsage(digital_signature=True, key_cert_sign=True, crl_sign=True, **usage): True,
    }
    names = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
    own: dict[x509.ExtensionType, bool] = {
        x509.SubjectAlternativeName(names): False,
        x509.BasicConstraints(ca=False, path_length=None): True,
    }
    (folder / "ca.crt").write_bytes(_certificate(AUTHORITY, authority, authority, ca))
    (folder / "server.pem").write_bytes(_certificate("localhost", server, authority, own))
    form = PrivateFormat.PKCS8
    write_private(folder / "server.key", server.private_bytes(Encoding.PEM, form, NoEncryption()))


def write_node_key(path: Path) -> None:
    """Write a node's key, with its public part beside it, as ssh-keygen does."""
    key = ec.generate_private_key(ec.SECP384R1())
    write_private(path, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    path.with_name(path.name + ".pub").write_bytes(public + b"\n")
