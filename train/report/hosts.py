"""The hosts of a run on a cluster, and the time that its gradients spend on the network."""

import re

import numpy as np

from gemjax.engines.memory import readable
from gemjax.telemetry import Timeline
from gemjax.telemetry.verdict import duration
from train.report import page

DEVICE = re.compile(r":\w+:\d+(\+\w+:\d+)*(#\d+)?$")  # Behind the name of a host.
HEADER = ("host", "workers", "devices", "commits", "gradient", "network", "network, 95 %", "to host", "wire", "to device",
          "commit wait", "view wait")  # fmt: skip


def host_of(device: str) -> str:
    """Return the host in the name of a worker's device; empty for a device of this host.

    >>> host_of("node-7:gpu:0+gpu:1"), host_of("gpu:0")
    ('node-7', '')
    """
    return DEVICE.sub("", device) if DEVICE.search(device) else ""


def table(run: Timeline) -> str:
    """Return the table of hosts, with the bytes of a transfer; empty if the run names none. Times are medians per gradient."""
    hosts = np.array([host_of(device) for device in run.devices])
    if not any(hosts):
        return ""
    cycles = run.only("commit", "drop", "reject")
    unknown = np.full(len(cycles["worker"]), np.nan)
    times, *parts = (cycles.get(name, unknown) for name in ("network", "to_host", "wire", "to_device"))
    computing = cycles["ready"] - cycles["began"]
    waits = (cycles["time"] - cycles["ready"], cycles["began"] - cycles["dispatch"])
    rows = []
    for host in dict.fromkeys(hosts):
        workers = np.flatnonzero(hosts == host)
        mine = np.isin(cycles["worker"], workers)
        rows.append((
            host, len(workers), len({run.devices[worker] for worker in workers}),
            np.count_nonzero(cycles["event"][mine] == "commit"), _median(computing[mine]), _median(times[mine]),
            _percentile(times[mine]), *(_median(part[mine]) for part in (*parts, *waits)),
        ))  # fmt: skip
    words = ", ".join(f"{readable(size)} per {name.removesuffix('_bytes')}" for name, size in run.sizes.items())
    return page.table(HEADER, rows, (0,)) + (page.paragraph(f"Transferred: {words}.") if words else "")


def _median(times: np.ndarray) -> str:
    return _percentile(times, 50)


def _percentile(times: np.ndarray, percent: float = 95) -> str:
    known = times[np.isfinite(times)]
    return duration(max(float(np.percentile(known, percent)), 0.0)) if len(known) else "–"
