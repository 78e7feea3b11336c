"""Root in namespaces of one's own: most Linux systems let any user have that, and so a network."""

from __future__ import annotations

import os
import subprocess
import sys

_INSIDE = "THINWIRE_ROOTLESS"
_UNSHARE = ("unshare", "--user", "--map-root-user", "--net", "--mount", "sh", "-c")
_TRIAL = ("mount -t tmpfs tmpfs /run && ip netns add trial && "
          "ip -n trial link add name end0 type veth peer name end1 && "
          "tc -n trial qdisc add dev end0 root tbf rate 1gbit burst 64kb latency 50ms && "
          "ip netns exec trial true")
_ENTER = 'mount -t tmpfs tmpfs /run && exec "$@"'  # `ip netns` keeps its names below /run
_TRIAL_SECONDS = 10


def enter(arguments: list[str]) -> None:
    """Starts this program anew, with `arguments`, where it may make a network.

    Returns only where that is not needed (root) or not allowed.
    """
    if os.geteuid() == 0 or _INSIDE in os.environ or not _allowed():
        return
    os.environ[_INSIDE] = "1"
    os.execvp(_UNSHARE[0], [*_UNSHARE, _ENTER, "sh", sys.executable, "-m", "bench.training",
                            *arguments])


def _allowed() -> bool:
    try:
        trial = subprocess.run([*_UNSHARE, _TRIAL], capture_output=True, timeout=_TRIAL_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return trial.returncode == 0
