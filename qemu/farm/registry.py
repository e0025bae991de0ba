"""A container registry on this machine, and releases put into it from their archives."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import io
import json
import shutil
import socket
import subprocess
import tarfile
import tempfile
import time
import urllib.parse
from pathlib import Path
from types import TracebackType
from typing import IO

from place import FarmError, NotRun

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG = "application/vnd.docker.container.image.v1+json"
LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"
CHUNK = 1 << 20


class Registry:
    """`docker-registry`, as long as the context lasts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Registry":
        program = shutil.which("docker-registry")
        if program is None:
            raise NotRun("no docker-registry here: install it")
        self.folder.mkdir(parents=True, exist_ok=True)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        config = {
            "version": 0.1,
            "log": {"level": "warn"},
            "storage": {"filesystem": {"rootdirectory": str(self.folder / "data")}},
            "http": {"addr": f"127.0.0.1:{self.port}"},
        }
        # JSON is YAML.
        (self.folder / "config.yml").write_text(json.dumps(config))
        with (self.folder / "log").open("wb") as log:
            argv = ["setpriv", "--pdeathsig", "KILL", "--", program, "serve", str(self.folder / "config.yml")]
            self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        end = time.monotonic() + 20
        while True:
            try:
                self.ask("GET", "/v2/", (200,))
                return self
            except OSError:
                if self.process.poll() is not None or time.monotonic() > end:
                    text = (self.folder / "log").read_text(errors="replace")[-1000:]
                    self.stop()
                    raise FarmError(f"the registry does not answer on port {self.port}: {text}") from None
                time.sleep(0.1)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        """Ends it; what it holds stays until the run's folder goes."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def ask(
        self, method: str, path: str, expected: tuple[int, ...], body: IO[bytes] | bytes | None = None, kind: str = "", length: int = 0
    ) -> http.client.HTTPResponse:
        """One request of its API."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        headers = {"Content-Type": kind} if kind else {}
        if length:
            headers["Content-Length"] = str(length)
        connection.request(method, path, body=body, headers=headers)
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        if answer.status not in expected:
            raise FarmError(f"the registry answers {method} {path} with {answer.status}: {text[:500].decode(errors='replace')}")
        return answer

    def blob(self, name: str, digest: str, data: IO[bytes] | bytes, length: int) -> None:
        """One layer or configuration."""
        if self.ask("HEAD", f"/v2/{name}/blobs/{digest}", (200, 404)).status == 200:
            return
        place = self.ask("POST", f"/v2/{name}/blobs/uploads/", (202,)).headers["Location"]
        parts = urllib.parse.urlsplit(place)
        query = f"{parts.query}&" if parts.query else ""
        path = f"{parts.path}?{query}digest={urllib.parse.quote(digest)}"
        self.ask("PUT", path, (201,), data, "application/octet-stream", length)

    def layer(self, name: str, tar: IO[bytes]) -> dict[str, object]:
        """Puts a layer there; its entry in a manifest."""
        # As registries have them: an engine keeps what it has pulled until it is unpacked, and the slot is small.
        with tempfile.TemporaryFile(dir=self.folder) as packed:
            with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=1, mtime=0) as into:
                shutil.copyfileobj(tar, into, CHUNK)
            length = packed.tell()
            packed.seek(0)
            total = hashlib.sha256()
            while piece := packed.read(CHUNK):
                total.update(piece)
            digest = f"sha256:{total.hexdigest()}"
            packed.seek(0)
            self.blob(name, digest, packed, length)
        return {"mediaType": LAYER, "size": length, "digest": digest}

    def push(self, archive: Path, tag: str, name: str = "hostapp", changes: dict[str, bytes | None] | None = None) -> None:
        """Puts the one image of an archive there, as NAME:TAG; with `changes` of files, in a layer of their own, where nothing takes a file away."""
        with tarfile.open(archive) as tar:

            def member(path: str) -> tuple[IO[bytes], int]:
                info = tar.getmember(path)
                while info.issym() or info.islnk():
                    at = info.linkname if info.islnk() else str(Path(info.name).parent / info.linkname)
                    info = tar.getmember(str(Path(at)))
                file = tar.extractfile(info)
                assert file is not None
                return file, info.size

            described = json.load(member("manifest.json")[0])[0]
            config = member(described["Config"])[0].read()
            layers = [self.layer(name, member(path)[0]) for path in described["Layers"]]
            if changes:
                top = layer_of(changes)
                layers.append(self.layer(name, io.BytesIO(top)))
                image = json.loads(config)
                image["rootfs"]["diff_ids"].append(f"sha256:{hashlib.sha256(top).hexdigest()}")
                image["history"].append(image["history"][-1])
                config = json.dumps(image, sort_keys=True).encode()
            digest = f"sha256:{hashlib.sha256(config).hexdigest()}"
            self.blob(name, digest, config, len(config))
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": {"mediaType": CONFIG, "size": len(config), "digest": digest},
            "layers": layers,
        }
        self.ask("PUT", f"/v2/{name}/manifests/{tag}", (201,), json.dumps(manifest).encode(), MANIFEST)


def layer_of(changes: dict[str, bytes | None]) -> bytes:
    """A layer with these files; a file of the layers below that is taken away has an entry of its own (OCI, image layer filesystem changeset)."""
    to = io.BytesIO()
    with tarfile.open(fileobj=to, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for path, data in changes.items():
            folder, _, last = path.rpartition("/")
            info = tarfile.TarInfo(path if data is not None else f"{folder}/.wh.{last}")
            info.mode, info.size = 0o644, len(data or b"")
            tar.addfile(info, io.BytesIO(data or b""))
    return to.getvalue()
