"""Several hosts on one machine, for tests and benchmarks: network namespaces, Ray nodes in them.

::

    with NamespaceHosts(4, rate_mbit=100) as hosts, RayNodes(hosts) as nodes:
        driver = nodes.popen([sys.executable, "job.py"])   # runs in host 0, finds Ray by itself
        hosts[2].cut()
        …
        hosts[2].heal()

`capability().lack` says why this machine cannot (no root, no iproute2, no such kernel).
"""

from .host import Host
from .namespaces import NamespaceHosts
from .nodes import RayNodes
from .owners import sweep
from .probe import Capability, capability

__all__ = ["Capability", "Host", "NamespaceHosts", "RayNodes", "capability", "sweep"]
