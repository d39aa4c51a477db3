"""`fedprox certificates`: what it writes verifies, and what it renews changes nothing else."""

import datetime
import ipaddress
import os
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

pytest.importorskip("flwr", reason="an optional extra: pip install '.[flower]'")

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.x509 import verification

from fedprox import cli
from fedprox.deployment.certificates import (
    certificate_names,
    host_names,
    make_node_key,
    new_authority,
    read_certificates,
    server_files,
)
from fedprox.deployment.crypto import load_public_key, read_private_key
from fedprox.deployment.node_file import read_node_file, read_superlink_file
from fedprox.deployment.superlink import check_folder, keys_in
from fedprox.files import whole
from tests.deployment.machines import written_authority
from tests.deployment.test_commands import refusal

DAY = datetime.timedelta(days=1)
HOSTS = ["fl.example.org", "192.0.2.7", "2001:db8::7"]
NODES = ["hospital-a", "hospital-b"]


def needs(program: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"calls {program}")


def make(out: Path, *arguments: str) -> str:
    """What `fedprox certificates` prints."""
    command = ["certificates", *arguments, "--out", str(out)]
    result = CliRunner().invoke(cli.app, command, standalone_mode=False)
    assert result.exception is None, result.exception
    return result.output


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A federation of two nodes for each host."""
    folders = {host: tmp_path_factory.mktemp("made") / "federation" for host in HOSTS}
    for host, out in folders.items():
        make(out, host, *NODES)
    return folders


def contents(folder: Path) -> dict[str, bytes]:
    """What each file of a folder holds."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def verify(server: Path, authority: Path, host: str) -> None:
    """Verify a server's certificate by cryptography's verifier."""
    store = verification.Store(read_certificates(authority))
    subject: x509.GeneralName
    try:
        subject = x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        subject = x509.DNSName(host)
    verifier = verification.PolicyBuilder().store(store).build_server_verifier(subject)
    verifier.verify(read_certificates(server)[0], [])


def shake_hands(superlink: Path, authority: Path, host: str) -> None:
    """Agree on an encrypted connection as a server with a SuperLink's files and a strict client."""
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(superlink / "server.pem", superlink / "server.key")
    asking = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    asking.verify_flags |= ssl.VERIFY_X509_STRICT
    asking.load_verify_locations(authority)

    def serve(accepted: socket.socket) -> None:
        try:
            serving.wrap_socket(accepted, server_side=True).close()
        except OSError:  # the client has refused
            accepted.close()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = socket.create_connection(listening.getsockname())
        server = threading.Thread(target=serve, args=(listening.accept()[0],))
        server.start()
        try:
            with client:
                asking.wrap_socket(client, server_hostname=host).close()
        finally:
            server.join()


Check = Callable[[Path, Path, str], None]

BY_BOTH = pytest.mark.parametrize(
    "check", [lambda folder, *rest: verify(folder / "server.pem", *rest), shake_hands]
)


@BY_BOTH
@pytest.mark.parametrize("host", HOSTS)
def test_the_certificate_is_for_its_host_and_the_loopback(
    host: str, check: Check, made: dict[str, Path]
) -> None:
    for name in (host, "localhost", "127.0.0.1", "::1"):
        check(made[host] / "superlink", made[host] / "hospital-a" / "ca.pem", name)
    for name in ({*HOSTS} - {host}) | {"example.org", "a.fl.example.org", "127.0.0.2"}:
        with pytest.raises((ssl.SSLCertVerificationError, verification.VerificationError)):
            check(made[host] / "superlink", made[host] / "hospital-a" / "ca.pem", name)


@BY_BOTH
def test_another_authority_and_a_certificate_that_has_ended_are_refused(
    check: Check, made: dict[str, Path], tmp_path: Path
) -> None:
    first, second = (made[host] for host in HOSTS[:2])
    refused = (ssl.SSLCertVerificationError, verification.VerificationError)
    with pytest.raises(refused):
        check(first / "superlink", second / "ca" / "ca.pem", "localhost")
    ended = written_authority(tmp_path / "ended", -DAY / 2880)
    with pytest.raises(refused):
        check(tmp_path / "ended", ended, "localhost")
    # a server cannot pose as an authority
    with pytest.raises(refused):
        check(first / "superlink", second / "superlink" / "server.pem", "localhost")


@needs("openssl")
def test_openssl_accepts_it(made: dict[str, Path]) -> None:
    for host, out in made.items():
        purpose = ["-purpose", "sslserver", "-x509_strict", "-CAfile", str(out / "ca" / "ca.pem")]
        kind = "-verify_hostname" if host == HOSTS[0] else "-verify_ip"
        command = ["openssl", "verify", *purpose, kind, host, str(out / "superlink/server.pem")]
        assert subprocess.run(command, capture_output=True, check=True).stdout.endswith(b": OK\n")


@settings(max_examples=20, deadline=None)
@given(st.ip_addresses())
def test_a_certificate_is_for_any_address(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    files = server_files(AUTHORITY, host_names(str(address)), DAY)
    (certificate,) = x509.load_pem_x509_certificates(files["server.pem"])
    assert certificate_names(certificate)[0] == str(address)
    assert len(set(certificate_names(certificate))) >= 3


AUTHORITY = new_authority(2 * DAY)


def test_a_certificate_may_be_valid_as_long_as_its_authority(tmp_path: Path) -> None:
    make(tmp_path / "made", "localhost", "--days", "7", "--ca-days", "7")
    shake_hands(tmp_path / "made" / "superlink", tmp_path / "made" / "ca" / "ca.pem", "localhost")
    assert sorted(each.name for each in (tmp_path / "made").iterdir()) == [
        *("ca", "operator", "superlink")
    ]


def test_each_host_has_what_it_needs_and_no_more(made: dict[str, Path]) -> None:
    for host, out in made.items():
        shown = f"[{host}]:9092" if ":" in host else f"{host}:9092"
        of_node = ["ca.pem", "node.key", "node.key.pub", "node.toml"]
        expected = {
            "ca": ["ca.key", "ca.pem"],
            "superlink": ["ca.pem", "secret", "server.key", "server.pem"],
            "operator": ["ca.pem", *(f"{name}.pub" for name in NODES), "secret", "superlink.toml"],
            **dict.fromkeys(NODES, of_node),
        }
        expected["superlink"][1:1] = [f"nodes/{name}.pub" for name in NODES]
        assert {each.name: sorted(contents(each)) for each in out.iterdir()} == expected
        files = contents(out)
        assert len({files[f"{folder}/ca.pem"] for folder in expected}) == 1
        assert files["operator/secret"] == files["superlink/secret"]
        assert len(files["operator/secret"].strip()) == 64
        known = read_superlink_file(out / "operator" / "superlink.toml")
        assert known.address == shown
        assert [*known.keys] == NODES
        assert [*keys_in(out / "superlink")] == NODES
        assert check_folder(out / "superlink").startswith(f"certificate for {host}, localhost, ")
        for name in NODES:
            node = read_node_file(out / name / "node.toml")
            assert (node.name, node.superlink) == (name, shown)
            own = read_private_key(Path(node.key)).public_key()
            assert own == load_public_key(Path(known.keys[name]))
            assert own == load_public_key(out / "superlink" / "nodes" / f"{name}.pub")
    secret = {path: text for path, text in contents(made[HOSTS[0]]).items() if b"PRIVATE" in text}
    assert sorted(secret) == [
        *("ca/ca.key", "hospital-a/node.key", "hospital-b/node.key", "superlink/server.key")
    ]
    assert len(set(secret.values())) == 4


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_only_the_owner_may_read(umask: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        make(tmp_path / "made", "localhost", "a")
        make(tmp_path / "made", "--renew", "superlink")
        make(tmp_path / "made", "--renew", "a")
    finally:
        os.umask(before)
    for path in [tmp_path / "made", *(tmp_path / "made").rglob("*")]:
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


@pytest.mark.parametrize("full_after", range(0, 12, 3))
def test_a_full_disk_leaves_nothing(
    full_after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 0

    def fsync(_: int) -> None:
        nonlocal count
        count += 1
        if count > full_after:
            raise OSError(28, "No space left on device")

    (tmp_path / ".made.partial").mkdir()  # of a process that was killed
    (tmp_path / ".made.partial" / "old").touch()
    monkeypatch.setattr(os, "fsync", fsync)
    command = ["certificates", "localhost", "a", "--out", str(tmp_path / "made")]
    failed = CliRunner().invoke(cli.app, command, standalone_mode=False).exception
    assert isinstance(failed, OSError)
    assert list(tmp_path.iterdir()) == []
    count = -1000
    make(tmp_path / "made", "localhost", "a")
    assert "old" not in contents(tmp_path / "made")


@pytest.mark.parametrize("renewed", ["superlink", "hospital-a"])
@pytest.mark.parametrize("full_after", range(4))
def test_a_full_disk_renews_nothing(
    full_after: int, renewed: str, federation: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, count = contents(federation), 0
    number = 2 if renewed == "superlink" else 4

    def fsync(_: int) -> None:
        nonlocal count
        count += 1
        if full_after < count <= number:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fsync)
    command = ["certificates", "--renew", renewed, "--out", str(federation)]
    failed = CliRunner().invoke(cli.app, command, standalone_mode=False).exception
    assert isinstance(failed, OSError) == (full_after < number)
    assert (contents(federation) == before) == (full_after < number)


@pytest.fixture
def federation(made: dict[str, Path], tmp_path: Path) -> Path:
    """A copy of a federation, whose files may change."""
    whole.write_private_folder(tmp_path / "federation", contents(made[HOSTS[0]]))
    return tmp_path / "federation"


@pytest.mark.parametrize("elsewhere", [False, True])
def test_the_superlink_is_renewed_and_nothing_else(elsewhere: bool, federation: Path) -> None:
    options = []
    if elsewhere:
        (federation / "ca" / "ca.key").rename(federation.with_name("offline"))
        said = refusal("certificates", "--renew", "superlink", "--out", str(federation))
        line = "no such file; --ca-key FILE says where the authority's key is"
        assert said == f"{federation / 'ca' / 'ca.key'}: {line}"
        options = ["--ca-key", str(federation.with_name("offline"))]
    before = contents(federation)
    printed = make(federation, "--renew", "superlink", "--days", "30", *options)
    after = contents(federation)
    changed = {path for path in after if after[path] != before[path]}
    assert changed == {"superlink/server.pem", "superlink/server.key"}
    assert before.keys() == after.keys()
    (certificate,) = read_certificates(federation / "superlink" / "server.pem")
    last = datetime.datetime.now(datetime.UTC) + 30 * DAY
    assert abs(certificate.not_valid_after_utc - last) < DAY / 24
    assert certificate_names(certificate) == [HOSTS[0], "localhost", "127.0.0.1", "::1"]
    assert f"{last:%Y-%m-%d}" in printed
    shake_hands(federation / "superlink", federation / "hospital-a" / "ca.pem", HOSTS[0])


@pytest.mark.parametrize("own", [False, True])
def test_a_node_is_renewed_and_nothing_else(own: bool, federation: Path, tmp_path: Path) -> None:
    given = "hospital-b"
    if own:
        given = str(tmp_path / "hospital-b.pub")
        make_node_key(tmp_path / "theirs")[1].rename(given)
    (federation / "ca" / "ca.key").unlink()
    before = contents(federation)
    printed = make(federation, "--renew", given)
    assert "hospital-b.pub, for the operator, and for each peer in secure sums" in printed
    after = contents(federation)
    public = {"operator/hospital-b.pub", "superlink/nodes/hospital-b.pub"}
    expected = {*public, "hospital-b/node.key.pub"} | (set() if own else {"hospital-b/node.key"})
    assert {path for path in after if after[path] != before.get(path)} == expected
    theirs = tmp_path / "theirs" / "node.key" if own else federation / "hospital-b" / "node.key"
    for path in public:
        assert load_public_key(federation / path) == read_private_key(theirs).public_key()


@needs("ssh-keygen")
def test_a_node_that_made_its_own_key_keeps_it(tmp_path: Path) -> None:
    """The operator never has it, so that nobody can pose as the node in a secure sum."""
    command = ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", "hospital-a"]
    subprocess.run(command, cwd=tmp_path, check=True)
    out = tmp_path / "made"
    printed = make(out, "localhost", str(tmp_path / "hospital-a.pub"), "hospital-b")
    assert "without node.key, which the node has" in printed
    assert sorted(contents(out / "hospital-a")) == ["ca.pem", "node.key.pub", "node.toml"]
    own = read_private_key(tmp_path / "hospital-a").public_key()
    assert own == load_public_key(out / "operator" / "hospital-a.pub")
    assert own == load_public_key(out / "superlink" / "nodes" / "hospital-a.pub")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "HOST is missing: the DNS name or IP address of the SuperLink"),
        (["fl.example.org:9092"], "HOST = 'fl.example.org:9092'; it must be a DNS name or an IP"),
        (["10.0.0.256"], "HOST = '10.0.0.256'; it must be"),
        (["*.example.org"], "HOST = '*.example.org'; it must be"),
        (["fl..org"], "HOST = 'fl..org'; it must be"),
        (["krankenhäuser.org"], "HOST = 'krankenhäuser.org'; it must be"),
        (['a"\nb'], "HOST = 'a\"\\nb'; it must be"),
        (["localhost", "../a"], "NODE = '../a'; a name has letters, digits and . _ -, begins"),
        (["localhost", "CA"], "NODE = 'CA'; a name has letters"),
        (["localhost", "a", "b", "A"], "NODE: 'a' appears twice"),
        (["localhost", "none.pub"], "none.pub: no such file"),
        (["localhost", "--days", "0"], "--days = 0; it must be a whole number"),
        (["localhost", "--ca-days", "40000"], "--ca-days = 40000; it must be a whole number"),
        (["localhost", "--port", "70000"], "--port = 70000; it must be a whole number"),
        (["localhost", "--days", "4000"], "--days 4000; the authority has 3650 (--ca-days)"),
        (["localhost", "--ca-key", "ca.key"], "--ca-key: only with --renew superlink"),
        (["localhost", "--renew", "superlink"], "--renew keeps the host and all nodes; leave out"),
        (["--renew", "superlink"], "--out new: no such folder"),
    ],
)
def test_what_cannot_be_made_is_refused_and_nothing_written(
    arguments: list[str], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert refusal("certificates", *arguments, "--out", "new").startswith(line)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_renewed_is_refused_and_nothing_written(federation: Path) -> None:
    before = contents(federation)

    def refused(*arguments: str) -> str:
        said = refusal("certificates", *arguments, "--out", str(federation))
        assert contents(federation) == before
        return said.replace(f"{federation}/", "")

    other = written_authority(federation.with_name("other")).with_name("server.key")
    assert refused("localhost", "a").startswith(f"--out {federation}: it exists already; name a")
    line = "--ca-key: only with --renew superlink"
    assert refused("--renew", "hospital-a", "--ca-key", str(other)) == line
    assert refused("--renew", "d") == "--renew d: the nodes are hospital-a, hospital-b"
    assert refused("--renew", "superlink", "--ca-key", str(other)) == (
        f"{other}: it is not the private key of superlink/ca.pem"
    )
    assert "no private key in PEM without a passphrase" in refused(
        "--renew", "superlink", "--ca-key", str(federation / "superlink" / "secret")
    )
    said = refused("--renew", "superlink", "--days", "3700")
    assert said.startswith("the SuperLink's certificate would end on ")
    assert ", after its authority, which ends on " in said


def test_an_authority_with_another_kind_of_key_signs_nothing(federation: Path) -> None:
    key, nobody = ed25519.Ed25519PrivateKey.generate(), x509.Name([])
    now = datetime.datetime.now(datetime.UTC)
    whose = nobody, nobody, key.public_key(), x509.random_serial_number()
    certificate = x509.CertificateBuilder(*whose, now, now + DAY).sign(key, None)
    pem = serialization.Encoding.PEM
    pkcs8, open_ = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (federation / "superlink" / "ca.pem").write_bytes(certificate.public_bytes(pem))
    ca_key = federation / "ca" / "ca.key"
    ca_key.write_bytes(key.private_bytes(pem, pkcs8, open_))
    before = contents(federation)
    said = refusal("certificates", "--renew", "superlink", "--out", str(federation))
    assert said == f"{ca_key}: of another kind than `fedprox certificates` makes"
    assert contents(federation) == before


def test_a_node_whose_folder_was_given_away_is_renewed(federation: Path) -> None:
    for file in (federation / "hospital-b").iterdir():
        file.unlink()
    (federation / "hospital-b").rmdir()
    make(federation, "--renew", "hospital-b")
    assert sorted(contents(federation / "hospital-b")) == ["node.key", "node.key.pub"]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ("none", "none: no such folder; `fedprox certificates` makes it"),
        ("secret", "secret: no such file"),
        ("server.key", "server.key: it is not the private key of "),
        ("ca.pem", "ca.pem: no certificates in PEM"),
        ("ended", "server.pem: it ended on "),
        ("nodes", "nodes: no node's public key, NAME.pub; nobody could join"),
        ("twice", "nodes: two files have the same key"),
        ("garbage", "c.pub: no public ECDSA key, as ssh-keygen writes it to node.key.pub"),
        ("locked", "is being written by process "),
    ],
)
def test_a_superlink_does_not_start_with_what_cannot_work(
    change: str, line: str, federation: Path
) -> None:
    folder = federation / "superlink"
    public = folder / "nodes" / "hospital-a.pub"
    if change == "none":
        folder = folder / "none"
    elif change == "secret":
        (folder / "secret").unlink()
    elif change == "server.key":
        (folder / "server.key").write_bytes((federation / "ca" / "ca.key").read_bytes())
    elif change == "ca.pem":
        (folder / "ca.pem").write_text("no certificate")
    elif change == "ended":
        written_authority(folder, -DAY / 2880)
    elif change == "nodes":
        for file in (folder / "nodes").iterdir():
            file.rename(file.with_suffix(".old"))
    elif change == "twice":
        public.with_name("c.pub").write_bytes(public.read_bytes())
    elif change == "garbage":
        public.with_name("c.pub").write_text("no key")
    with whole.locked(folder if change == "locked" else federation / "elsewhere"):
        assert line in refusal("superlink", str(folder))
    assert not (folder / "superlink.log").exists()
