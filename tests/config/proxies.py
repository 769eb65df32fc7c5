"""nginx and HAProxy, each with the shipped configuration, whose addresses alone are changed."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

from app.bench.servers import free_port
from tests.config.files import CONFIG

FILES = {"nginx": CONFIG / "nginx/t5gemma2.conf", "haproxy": CONFIG / "haproxy/haproxy.cfg"}
_MAIN = """
daemon off;
master_process off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    gzip on;
    gzip_types *;
    gzip_proxied any;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/site.conf;
}}
"""
"""What Debian's nginx.conf does around a file of conf.d, within a folder and as one process. It compresses all, which
holds streams back unless the gateway's header forbids it.
"""


def missing(name: str) -> str | None:
    """Why this proxy cannot be tried here."""
    return None if shutil.which(name) else f"{name} is not installed (`apt-get install {name}`)"


@contextmanager
def proxy(
    name: str, folder: Path, gateways: Sequence[str], changes: Mapping[str, str] | None = None
) -> Iterator[str]:
    """The address of a running proxy before two gateways (`host:port`). `changes` are made to the file first; each must
    be of something in it.
    """
    port = free_port()
    listens = {
        "nginx": ("listen 8080", f"listen 127.0.0.1:{port}"),
        "haproxy": ("bind :8080", f"bind 127.0.0.1:{port}"),
    }
    addresses = dict(zip(("127.0.0.1:8000", "127.0.0.1:8001"), gateways, strict=True))
    text = FILES[name].read_text()
    for old, new in {**addresses, **dict([listens[name]]), **(changes or {})}.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    folder.mkdir(exist_ok=True)
    (folder / "site.conf").write_text(text)
    (folder / "nginx.conf").write_text(_MAIN.format(folder=folder))
    command = {
        "nginx": ["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf")],
        "haproxy": ["haproxy", "-f", str(folder / "site.conf")],
    }[name]
    with (folder / "output").open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        _wait_for(f"http://127.0.0.1:{port}/health", folder / "output")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)


def _wait_for(url: str, output: Path) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            httpx.get(url)
        except httpx.TransportError:
            time.sleep(0.02)
        else:
            return
    raise AssertionError(output.read_text())
