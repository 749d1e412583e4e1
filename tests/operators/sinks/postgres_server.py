"""A real Postgres server for a module of tests, from the wheel `pgserver`, on a Unix socket.

Only the wheel's programs are used. The server is the child of a guard that ends it, and removes its
folder, once the test process closes a pipe or dies, however it dies.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg

from tests.runs import rest

_GUARD = """
"$@" >"$FOLDER/log" 2>&1 &
server=$!
cat >/dev/null
kill -QUIT $server
wait $server
rm -rf "$FOLDER"
"""
_START_TIMEOUT_S = 60.0


class PostgresServer:
    """A running server, which trusts everybody who reaches its folder.

    Attributes:
        folder: of its data and its socket.
        dsn: of its first database.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.dsn = f"host={folder} user=postgres dbname=postgres"
        self._guards: list[subprocess.Popen[bytes]] = []
        options = ["--auth=trust", "--encoding=utf8", "-U", "postgres", "--no-sync"]
        _run([*_program("initdb"), "-D", str(folder), *options])

    def start(self) -> None:
        """Start the server and wait until it answers."""
        server = [*_program("postgres"), "-D", str(self.folder), "-k", str(self.folder)]
        # Not for the leak checks of the run: the server's own processes come and go.
        plain = {key: value for key, value in os.environ.items() if "WHALE_RAY" not in key}
        guard = subprocess.Popen(
            ["sh", "-c", _GUARD, "guard", *server, "-c", "listen_addresses=", "-c", "fsync=off"],
            stdin=subprocess.PIPE,
            env={**plain, "FOLDER": str(self.folder)},
            start_new_session=True,
        )
        self._guards.append(guard)
        until_s = time.monotonic() + _START_TIMEOUT_S
        while not self._answers():
            assert time.monotonic() < until_s, (self.folder / "log").read_text()
            rest()

    def crash(self) -> None:
        """End the server at once, without a word to anybody; `start` recovers what it had."""
        pid = int((self.folder / "postmaster.pid").read_text().splitlines()[0])
        os.kill(pid, signal.SIGQUIT)
        until_s = time.monotonic() + _START_TIMEOUT_S
        while (self.folder / "postmaster.pid").exists() and time.monotonic() < until_s:
            rest()

    def close(self) -> None:
        """End the server and remove its folder."""
        for guard in self._guards:
            assert guard.stdin is not None
            guard.stdin.close()
            guard.wait()

    def _answers(self) -> bool:
        with suppress(psycopg.OperationalError), psycopg.connect(self.dsn):
            return True
        return False


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """Yield a server with an empty database."""
    server = PostgresServer(Path(tempfile.mkdtemp(prefix="pg-")))
    try:
        server.start()
        yield server
    finally:
        server.close()
        shutil.rmtree(server.folder, ignore_errors=True)


def ask(dsn: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn) as connection:
        return connection.execute(query).fetchall()


def do(dsn: str, statement: str) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute(statement)


def ids(dsn: str) -> list[int]:
    return [row[0] for row in ask(dsn, "SELECT id FROM t ORDER BY id")]


def staged_rows_left(dsn: str) -> int:
    tables = ask(dsn, "SELECT tablename FROM pg_tables WHERE tablename LIKE 'whale_stage_%'")
    return sum(ask(dsn, f"SELECT count(*) FROM {name}")[0][0] for (name,) in tables)


def _program(name: str) -> list[str]:
    """Return the call of a program of the wheel; none of them runs as root."""
    spec = find_spec("pgserver")
    assert spec and spec.origin
    path = Path(spec.origin).parent / "pginstall" / "bin" / name
    if os.geteuid() != 0:
        return [str(path)]
    return ["unshare", "--user", "--map-user=1000", "--map-group=1000", str(path)]


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
