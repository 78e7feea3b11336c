"""What `auto` would try first on a cluster: by the model, which is `thinwire plan`'s too, and the codecs of this machine."""

from __future__ import annotations

import json
import subprocess

from bench.scale.simulation import BUCKET, ROOT, Cluster
from thinwire.torch.auto import TRIED

PLAIN = "plain"
_HEADERS = 1514 / 1448  # `thinwire plan` counts them of a link's bytes
_ON_TWO_LEVELS = "hosts:"


def tried_by_auto(cluster: Cluster, elements: int) -> str:
    """Of what quality=safe may take, what is foretold to be shortest, if it is shorter than PLAIN."""
    specs, most_error = TRIED["safe"]
    on_two_levels = cluster.ranks_a_host > 1
    workers = ["--hosts", f"{cluster.hosts}x{cluster.ranks_a_host}"] if on_two_levels else ["--workers", str(cluster.ranks)]
    command = [str(ROOT / "build/thinwire"), "plan", "--json", "--link", f"{8 * cluster.bytes_per_second * _HEADERS / 1e9:g}gbit", *workers,
               "--latency", f"{1e6 * cluster.latency_seconds:g}us", "--elements", str(elements), "--bucket-mb", f"{BUCKET * 4 / 2**20:g}", "--lanes", "1"]  # fmt: skip
    for spec in (*specs, "none") if on_two_levels else specs:  # uncompressed on two levels may be best by itself
        command += ["--compressor", spec]
    rows = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["rows"]
    best = min((row for row in rows if row["nmse_worker"] <= most_error), key=lambda row: row["step_seconds"])["compressor"]
    return PLAIN if best == "none" else best.removeprefix(_ON_TWO_LEVELS)
