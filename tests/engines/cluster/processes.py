"""Processes of this host: the tree below one, the addresses on which it listens, and their ends."""

import os
import select
import time
from pathlib import Path

LISTENING = "0A"
LOOPBACK = {
    "0100007F",
    "00000000000000000000000001000000",
    "0000000000000000FFFF00000100007F",
}  # 127.0.0.1, ::1, mapped.


def tree(root):
    """Return the process ids of ``root`` and everything below it."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            after_name = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # It has ended.
            continue
        parents[int(folder.name)] = int(after_name[1])
    found = [root]
    for pid in found:  # Grows meanwhile.
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def listening(pids):
    """Return, per process, the local addresses on which it accepts TCP connections, as in ``/proc/net/tcp``."""
    addresses = {}
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING:
                addresses[f"socket:[{fields[9]}]"] = fields[1]
    found = {}
    for pid in pids:
        try:
            held = [os.readlink(file) for file in Path(f"/proc/{pid}/fd").iterdir()]
        except OSError:
            continue
        found[pid] = [addresses[file] for file in held if file in addresses]
    return found


def is_loopback(address):
    return address.split(":")[0] in LOOPBACK


def name(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:120].strip()
    except OSError:
        return ""


def lives(pid):
    """Return True if the process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def marked(mark):
    """Return the processes whose environment has the mark, such as all those below a process that was given it."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (folder / "environ").read_text(errors="replace"):
                found.append(int(folder.name))
        except OSError:  # It has ended, or belongs to another user.
            continue
    return found


def left_of(mark, seconds=180.0):
    """Return the names of marked processes that have not ended after ``seconds``.

    If a driver was killed, two of Ray's agents first try for 60 s to report to its controller, which has ended, too.
    """
    until, late = time.monotonic() + seconds, {}
    while (found := marked(mark)) and not late:  # A process may have started another one.
        late = left(found, until - time.monotonic())
    return late


def left(pids, seconds):
    """Return the names of those processes that have not ended after ``seconds``."""
    until, late = time.monotonic() + seconds, {}
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
                late[pid] = name(pid)
        finally:
            os.close(descriptor)
    return late
