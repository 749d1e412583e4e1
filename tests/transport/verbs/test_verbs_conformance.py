"""Streams between hosts over queue pairs do what every channel must do, whichever way data take."""

from __future__ import annotations

import pytest

from tests.transport.links import Hosts
from tests.transport.test_tcp_conformance import LinkConformance
from tests.transport.verbs.conftest import Machine


class VerbsConformance(LinkConformance):
    """Derive from it, and name the way."""

    data: str

    @pytest.fixture(autouse=True)
    def _devices(self, machine: Machine) -> None:
        self.machine = machine
        self.stride = machine.stride

    def hosts(self) -> Hosts:
        return self.machine.hosts(verbs_data=self.data)


class TestRead(VerbsConformance):
    data = "read"


class TestWrite(VerbsConformance):
    data = "write"


class TestSend(VerbsConformance):
    data = "send"
