"""Certificates and web configuration files that name them."""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import Any

import bcrypt
import trustme
import yaml

ANA = "correct horse"
HASH = bcrypt.hashpw(ANA.encode(), bcrypt.gensalt(4)).decode()
USERS = {"ana": HASH}


class Folder:
    """A folder with a web configuration file, a server's certificate and a CA of clients."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.authority = trustme.CA()
        self.clients = trustme.CA()
        self.certify(self.authority)
        self.clients.cert_pem.write_to_path(path / "clients.pem")

    @property
    def config(self) -> Path:
        return self.path / "web.yml"

    def certify(self, authority: trustme.CA) -> None:
        """Give the server a certificate and a key, each file replaced in one step."""
        issued = authority.issue_cert("localhost", "127.0.0.1", "::1")
        chain = b"".join(pem.bytes() for pem in issued.cert_chain_pems)
        self.put("server.pem", chain)
        self.put("server.key", issued.private_key_pem.bytes())

    def put(self, name: str, content: bytes | str) -> Path:
        """Write a file as careful programs do."""
        data = content.encode() if isinstance(content, str) else content
        new = self.path / f"{name}.new"
        new.write_bytes(data)
        os.replace(new, self.path / name)
        return self.path / name

    def write(self, **sections: Any) -> Path:
        """Write the web configuration file and return its path."""
        return self.put("web.yml", yaml.safe_dump(sections))

    def tls(self, **more: str) -> dict[str, str]:
        """Return the section for TLS with the server's certificate."""
        return {"cert_file": "server.pem", "key_file": "server.key"} | more

    def trusting(
        self, *, client: trustme.CA | None = None, authority: trustme.CA | None = None
    ) -> ssl.SSLContext:
        """Return what a client needs; with a CA, it has a certificate of it."""
        context = ssl.create_default_context()
        (authority or self.authority).configure_trust(context)
        if client is not None:
            client.issue_cert("prometheus@example.org").configure_cert(context)
        return context
