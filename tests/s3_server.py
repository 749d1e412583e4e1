"""An S3 server on this machine for a module of tests: moto's, over HTTP.

It is a process of its own, since some clients hold Python's lock while they wait for an answer. It
ends when this process closes a pipe or dies, however it dies.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from s3fs import S3FileSystem

NEVER = 1 << 60
_SERVER = """
import os, sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
server.start()
sys.__stdout__.write("http://{}:{}\\n".format(*server.get_host_and_port()))
sys.__stdout__.flush()
sys.stdin.read()
os._exit(0)
"""


@dataclass(frozen=True)
class S3Server:
    """A running server.

    Attributes:
        endpoint: its address.
    """

    endpoint: str

    @property
    def delta_options(self) -> dict[str, str]:
        """What `sinks.delta` needs to reach it, beside what is in the environment."""
        return {"AWS_ENDPOINT_URL": self.endpoint, "AWS_ALLOW_HTTP": "true"}

    @contextlib.contextmanager
    def strict(self) -> Iterator[None]:
        """Let the server check credentials and what they permit in the block: it knows none."""
        self._check_requests_behind(0)
        try:
            yield
        finally:
            self._check_requests_behind(NEVER)

    def _check_requests_behind(self, count: int) -> None:
        asked = urllib.request.Request(
            f"{self.endpoint}/moto-api/reset-auth",
            data=str(count).encode(),
            headers={"Content-Type": "text/plain"},
        )
        with urllib.request.urlopen(asked) as answer:
            assert answer.status == 200


@contextlib.contextmanager
def s3_server(*buckets: str) -> Iterator[S3Server]:
    """Run a server that has some buckets, and let the environment lead every client to it."""
    # Not for the leak checks of the run.
    plain = {key: value for key, value in os.environ.items() if "WHALE_RAY" not in key}
    with (
        subprocess.Popen(
            [sys.executable, "-c", _SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=plain,
            text=True,
        ) as server,
        pytest.MonkeyPatch.context() as patch,
    ):
        assert server.stdout is not None
        endpoint = server.stdout.readline().strip()
        patch.setenv("AWS_ENDPOINT_URL", endpoint)
        patch.setenv("AWS_ACCESS_KEY_ID", "key")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("AWS_MAX_ATTEMPTS", "1")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        S3FileSystem.clear_instance_cache()
        for bucket in buckets:
            S3FileSystem().mkdir(bucket)
        yield S3Server(endpoint)
        S3FileSystem.clear_instance_cache()
