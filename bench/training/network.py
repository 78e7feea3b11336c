"""A real slow network on one machine: a namespace per worker, or per host of several workers, veth pairs, a bridge, and tc's tbf.

    worker 0 [eth0] ---- [w0]  bridge  [w1] ---- [eth0] worker 1
       10.77.0.1           (namespace of its own)          10.77.0.2

Both ends of each veth pair are shaped, so that a worker neither sends nor receives faster than the
link. Everything lives in namespaces named after this process, and goes with them.
"""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from bench.training import interrupts

NAME_PREFIX = "thinwire-"
NAMESPACE_FOLDER = Path("/run/netns")
WORKER_INTERFACE = "eth0"
_COMMAND_SECONDS = 20


class NetworkError(RuntimeError):
    """The network could not be made; says which command failed and why."""


@dataclass(frozen=True)
class Link:
    """What joins each worker to the switch. `bits_per_second` None: not shaped.

    `burst_kib` is what passes unshaped after a pause, so it is kept near the least with which the
    rate is still reached: a payload smaller than the burst would cross the link for free.
    """

    name: str
    bits_per_second: float | None = None
    burst_kib: int = 0

    @property
    def shaped(self) -> bool:
        return self.bits_per_second is not None


_UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_LEAST_BURST_KIB = 16
_BURST_SECONDS = 0.0006  # of traffic at full rate: 73 KiB at 1 Gb/s, one large TCP segment


def parse_link(text: str) -> Link:
    """Reads "none" or a rate such as "100mbit" or "2.5gbit"; ValueError names what is allowed."""
    text = text.strip().lower()
    if text == "none":
        return Link("none")
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(kbit|mbit|gbit)", text)
    if not match or float(match[1]) == 0:
        raise ValueError(f"link {text!r}: expected a rate such as 100mbit, 1gbit, 10gbit, or none")
    rate = float(match[1]) * _UNITS[match[2]]
    burst = max(_LEAST_BURST_KIB, round(rate * _BURST_SECONDS / 8 / 1024))
    return Link(text, rate, burst)


def remove_abandoned() -> list[str]:
    """Deletes namespaces of jobs whose process is gone (killed with -9); returns their names."""
    removed = []
    for path in sorted(NAMESPACE_FOLDER.glob(f"{NAME_PREFIX}*-*")):
        owner = re.fullmatch(rf"{NAME_PREFIX}(\d+)-.*", path.name)
        if owner and not Path("/proc", owner[1]).exists():
            _delete_namespace(path.name)
            if not path.exists():  # it may be another user's
                removed.append(path.name)
    return removed


class Loopback:
    """No network of its own: all workers on this machine's loopback, unshaped.

    The loopback's counters are shared with everything else on the machine, and by all workers.
    """

    interface = "lo"
    own_counters = False
    description = "loopback, unshaped"

    def address(self, rank: int) -> str:
        return "127.0.0.1"

    def __enter__(self) -> "Loopback":
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def command_prefix(self, rank: int) -> list[str]:
        """What to put before a worker's command: nothing."""
        return []


class Namespaces:
    """The network of the module's picture, for as long as the `with` block lasts."""

    interface = WORKER_INTERFACE
    own_counters = True

    def __init__(self, workers: int, link: Link, per_host: int = 1) -> None:
        """per_host: workers that share a namespace, one after another in rank order."""
        if workers % per_host:
            raise NetworkError(f"{workers} workers cannot be divided among hosts of {per_host}")
        self.workers = workers
        self.per_host = per_host
        self.hosts = workers // per_host
        self.link = link
        shared = f" of {per_host} workers each" if per_host > 1 else ""
        self.description = f"{self.hosts} network namespaces{shared} on a bridge, {link.name} both ways each"
        self._stem = f"{NAME_PREFIX}{os.getpid()}"
        self._bridge = f"{self._stem}-bridge"

    def namespace(self, rank: int) -> str:
        return self._namespace_of(rank // self.per_host)

    def _namespace_of(self, host: int) -> str:
        return f"{self._stem}-worker{host}"

    def address(self, rank: int) -> str:
        """Of worker `rank`, as the other workers see it."""
        return f"10.77.0.{rank // self.per_host + 1}"

    def command_prefix(self, rank: int) -> list[str]:
        """What to put before a command so that it runs in the namespace of worker `rank`."""
        return ["ip", "netns", "exec", self.namespace(rank)]

    def __enter__(self) -> "Namespaces":
        require_root()
        with interrupts.held():
            try:
                self._make_bridge()
                for host in range(self.hosts):
                    self._join(host)
            except NetworkError:
                self._delete()
                raise
        return self

    def __exit__(self, *exception: object) -> None:
        with interrupts.held():
            self._delete()

    def change(self, link: Link) -> None:
        """While workers are at work."""
        was_shaped, self.link = self.link.shaped, link
        for host in range(self.hosts):
            for namespace, interface in self._ends_of(host):
                if was_shaped:
                    _run("tc", "-n", namespace, "qdisc", "del", "dev", interface, "root")
                self._shape(namespace, interface)

    def _ends_of(self, host: int) -> list[tuple[str, str]]:
        """Of a veth pair: namespace and interface."""
        return [(self._namespace_of(host), WORKER_INTERFACE), (self._bridge, f"w{host}")]

    def _make_bridge(self) -> None:
        _run("ip", "netns", "add", self._bridge)
        _run("ip", "-n", self._bridge, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", self._bridge, "link", "set", "bridge", "up", "addrgenmode", "none")

    def _join(self, host: int) -> None:
        worker, port = self._namespace_of(host), f"w{host}"
        _run("ip", "netns", "add", worker)
        _run("ip", "-n", worker, "link", "set", "lo", "up")
        _run("ip", "-n", self._bridge, "link", "add", port, "type", "veth",
             "peer", "name", WORKER_INTERFACE, "netns", worker)
        _run("ip", "-n", worker, "address", "add", f"{self.address(host * self.per_host)}/24",
             "dev", WORKER_INTERFACE)
        _run("ip", "-n", self._bridge, "link", "set", port, "master", "bridge")
        for namespace, interface in self._ends_of(host):
            self._shape(namespace, interface)
            _run("ip", "-n", namespace, "link", "set", interface, "up", "addrgenmode", "none")

    def _shape(self, namespace: str, interface: str) -> None:
        if self.link.shaped:
            _run("tc", "-n", namespace, "qdisc", "add", "dev", interface, "root", "tbf",
                 "rate", f"{self.link.bits_per_second:.0f}bit",
                 "burst", f"{self.link.burst_kib}kb", "latency", "50ms")

    def _delete(self) -> None:
        for name in [self._namespace_of(host) for host in range(self.hosts)] + [self._bridge]:
            _delete_namespace(name)


def require_root() -> None:
    """NetworkError where this user may not make namespaces."""
    if os.geteuid() != 0:
        raise NetworkError("network namespaces need root, and this system gives users none")


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_SECONDS,
                              start_new_session=True)  # Ctrl-C must not reach half-done commands
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NetworkError(f"{' '.join(command)}: {error}") from error
    if done.returncode != 0:
        raise NetworkError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")


def _delete_namespace(name: str) -> None:
    if (NAMESPACE_FOLDER / name).exists():
        subprocess.run(["ip", "netns", "delete", name], capture_output=True,
                       start_new_session=True, timeout=_COMMAND_SECONDS)
