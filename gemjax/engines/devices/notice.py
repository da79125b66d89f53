"""What is said of a run in which nothing has happened for long."""

from gemjax.engines.devices.roster import Workers, numbers


def notice(workers: Workers, seconds: float) -> str:
    """What the run waits for; it may be for ever, and nobody would know why."""
    words = [
        f"{what}: {numbers(which)}"
        for what, which in (
            ("computing", workers.out),
            ("held by the policy", [arrival.worker for arrival in workers.held]),
            ("waiting to be sent off, or for their data", workers.waiting),
            ("have joined again, but still compute what they began before", workers.returning),
            ("have left", workers.absent),
        )
        if which
    ]
    if not (workers.out or workers.held or workers.waiting or workers.returning):
        words.append("it goes on when one joins (Members.join), and ends if none will (Members.close)")
    elif (workers.out or workers.returning) and workers.policy.deadline is None:
        words.append("a worker that is silent is given up if the policy has a deadline")
    return f"nothing has happened in this run for {seconds:g} s; workers {'; '.join(words)}"
