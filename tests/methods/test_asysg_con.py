"""AsySG-con (Lian et al., 2015), a server that sums M gradients per step, is a chain of parts."""

import numpy as np
import optax
from methods.runs import NUM_WORKERS, ORDER, THETA_0, grad, run

import gemjax


def asysg_con(theta_0, grad, order, gamma, M):
    """x_{k+1} = x_k - gamma sum_{m=1..M} G(x_{k - tau_{k,m}}); a worker goes on from the x of its commit."""
    x, received, steps, gathered, history = theta_0, {}, dict.fromkeys(order, 0), [], []
    for i in order:
        gathered.append(grad(received.get(i, theta_0), i, steps[i]))
        steps[i] += 1
        if len(gathered) == M:
            x, gathered = x - gamma * sum(gathered), []
        received[i] = x
        history.append(x)
    return np.stack(history)


def test_the_recipe_is_the_papers_loop(x64):
    chain = optax.chain(gemjax.rules.gather(4), optax.scale(4), optax.sgd(0.02))
    found, _ = run(gemjax.asynchronous(chain, NUM_WORKERS))
    np.testing.assert_allclose(found, asysg_con(THETA_0, grad, ORDER, 0.02, 4), rtol=0, atol=1e-12)
