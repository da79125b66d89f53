"""Multi-ASGD against its reference; ``test_momentum_asgd.py`` has its limits."""

import numpy as np
from methods import reference, runs

import gemjax


def test_agrees_with_the_paper(x64):
    found, _ = runs.run(gemjax.multi_asgd(runs.schedule, momentum=0.7, num_workers=runs.NUM_WORKERS))
    expected = reference.multi_asgd(runs.THETA_0, runs.grad, runs.ORDER, runs.schedule, gamma=0.7)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
