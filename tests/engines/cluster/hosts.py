"""Hosts in namespaces of this one, joined by a bridge, with a Ray on each that is started again whenever it ends.

As a script it runs a command on the first of two hosts, whose links have a rate: ``python hosts.py RATE COMMAND …``.
"""

import json
import os
import shutil
import subprocess
import sys

LIMIT = 900  # Seconds after which a host ends by itself.
ENVIRONMENT = {"RAY_AUTH_MODE": "disabled"}  # Nothing else can reach these hosts.
# A host has its own network interfaces, name, processes and folder of Ray. It shares the other files.
OWN = ["unshare", "--net", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
# A host waits for its cable. The loop stands for the service manager, which starts a Ray that has ended.
HOST = """
hostname {name} && mount -t tmpfs tmpfs /tmp/ray && ip link set lo up && echo up && read -r cable || exit
while true; do
  unshare --pid --fork --kill-child --mount-proc ray start --block --disable-usage-stats --node-ip-address={address} \
    --num-cpus=2 --object-store-memory=1000000000 {options} 2>&1
  sleep 1
done
"""
SWITCH = "ip link add name bridge type bridge && ip link set bridge up && echo up && read -r cable"


def missing():
    """Return why there can be no hosts here, or ``None``."""
    if os.name != "posix" or os.geteuid():
        return "namespaces need root"
    lacking = [name for name in ("ip", "tc", "unshare", "nsenter", "setpriv") if shutil.which(name) is None]
    if lacking or subprocess.run([*OWN, "true"], capture_output=True).returncode:
        return f"namespaces need {', '.join(lacking) or 'a kernel that allows them here'}"
    return None


class Network:
    """A switch and the hosts at it, without a way to any other network.

    A host has room for two workers. The first one, 0, has Ray's controller and the driver.

    Args:
      health: settings with which the controller declares a host dead; default those of Ray.
    """

    address = "10.77.0.1:6379"

    def __init__(self, health=None):
        self._health, self._hosts = health or {}, {}
        os.makedirs("/tmp/ray", exist_ok=True)
        self._switch = _isolated(SWITCH)

    def start(self, host):
        """Start a host and its Ray, which answers some seconds later."""
        address, options = f"10.77.0.{host + 1}", f"--address={self.address}"
        if host == 0:
            options = f"--head --port=6379 --include-dashboard=false --system-config='{json.dumps(self._health)}'"
        self._hosts[host] = process = _isolated(HOST.format(name=f"host{host}", address=address, options=options))
        self._at_switch(f"ip link add port{host} type veth peer name eth0 netns {process.pid}")
        self._at_switch(f"ip link set port{host} master bridge up")
        _inside(process, f"ip addr add {address}/24 dev eth0")
        _inside(process, "ip link set eth0 up")
        _inside(process, "ip route add default dev eth0")  # By which Ray finds its own address.
        process.stdin.write("plugged in\n")
        process.stdin.flush()

    def await_ray(self, host):
        """Wait until the Ray of a host has begun for the first time."""
        assert any("Ray runtime started" in line for line in self._hosts[host].stdout)

    def kill(self, host):
        """End all processes of a host at once."""
        _end(self._hosts.pop(host))

    def cut(self, host):
        """Let no packet from or to a host pass, without an error at either end."""
        self._at_switch(f"ip link set port{host} nomaster")

    def mend(self, host):
        """Undo :meth:`cut`."""
        self._at_switch(f"ip link set port{host} master bridge")

    def limit(self, host, rate):
        """Limit what a host sends and what it receives to a rate each, such as "100mbit"."""
        shaped = f"root tbf rate {rate} burst 64kb latency 100ms"
        _inside(self._hosts[host], f"tc qdisc replace dev eth0 {shaped}")
        self._at_switch(f"tc qdisc replace dev port{host} {shaped}")

    def command(self, host):
        """Return the words before a command that run it on a host."""
        pid = self._hosts[host].pid
        return ["nsenter", f"--target={pid}", "--net", "--mount", "--uts", f"--pid=/proc/{pid}/ns/pid_for_children"]

    def close(self):
        """End all hosts."""
        for process in (*self._hosts.values(), self._switch):
            _end(process)

    def _at_switch(self, command):
        _inside(self._switch, command)


def _isolated(script):
    command = ["setpriv", "--pdeathsig=KILL", *OWN, "timeout", "--signal=KILL", str(LIMIT), "bash", "-c", script]
    environment = os.environ | ENVIRONMENT
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout.readline() == "up\n"
    return process


def _inside(process, command):
    subprocess.run(["nsenter", f"--target={process.pid}", "--net", *command.split()], check=True)


def _end(process):
    with process:
        process.kill()


def main(rate, *command):
    network = Network()
    try:
        for host in (0, 1):
            network.start(host)
            network.await_ray(host)
            network.limit(host, rate)
        return subprocess.run([*network.command(0), *command], env=os.environ | ENVIRONMENT).returncode
    finally:
        network.close()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
