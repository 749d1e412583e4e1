"""The Postgres server of a run, and an empty database of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import psycopg
import pytest

from tests.operators.sinks.postgres_server import PostgresServer, postgres_server

_NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def server(_temporary_folder_of_the_run: None) -> Iterator[PostgresServer]:
    with postgres_server() as running:
        yield running


@pytest.fixture
def database(server: PostgresServer) -> Iterator[str]:
    """Return the dsn of an empty database."""
    name = f"d{next(_NUMBERS)}"
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        yield server.dsn.replace("dbname=postgres", f"dbname={name}")
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
