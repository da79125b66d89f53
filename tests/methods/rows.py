"""The rows of all methods: those below, and ``ROWS`` of each test file ``tests/methods/test_*.py`` that has one."""

import importlib
import pathlib

import optax
import pytest
from methods.row import Row

import gemjax

IN_TEST_FILES = [
    row
    for path in sorted(pathlib.Path(__file__).parent.glob("test_*.py"))
    if "\nROWS = " in path.read_text(encoding="utf-8")
    for row in importlib.import_module(f"methods.{path.stem}").ROWS
]


def adam_with_matched_energy(learning_rate: optax.ScalarOrSchedule, num_workers: int = 1):
    """Return one Adam for all workers with updates scaled by GEM."""
    return gemjax.asynchronous(optax.chain(optax.adam(learning_rate), gemjax.rules.match_energy()), num_workers)


def adam_per_worker(learning_rate: optax.ScalarOrSchedule, num_workers: int = 1):
    """Return one Adam per worker."""
    return gemjax.per_worker(optax.adam(learning_rate), num_workers)


def ringmaster_muon(learning_rate: optax.ScalarOrSchedule, num_workers: int = 1):
    """Return Ringmaster with one Muon for all workers: matrices are orthogonalised, other parameters have Adam."""
    tx = optax.chain(gemjax.rules.drop_stale(3 * num_workers), optax.contrib.muon(learning_rate))
    return gemjax.asynchronous(tx, num_workers)


def async_pipeline(learning_rate: optax.ScalarOrSchedule, num_workers: int = 1):
    """Return a pipeline of three stages with momentum by stage, delay compensation and weight prediction."""
    return gemjax.async_pipeline(
        learning_rate, 0.5, num_workers, num_stages=3, highest=0.8, horizon=0.5, strength=0.002
    )


def agn(learning_rate: optax.ScalarOrSchedule, num_workers: int = 1):
    """Return AGN with two local steps as the default."""
    return of_steps(2, gemjax.agn(learning_rate, num_workers))


def of_steps(default: int, tx: optax.GradientTransformationExtraArgs):
    """Return ``tx`` with a number of local steps as the default."""

    def update(updates, state, params=None, *, local_steps=default, **extra_args):
        return tx.update(updates, state, params, local_steps=local_steps, **extra_args)

    return optax.GradientTransformationExtraArgs(tx.init, update)


def _judged_by_length(tx: optax.GradientTransformationExtraArgs):
    """Return ``tx`` with the length of a displacement as the default loss."""

    def update(updates, state, params=None, *, value=None, **extra_args):
        value = optax.tree.norm(updates) if value is None else value
        return tx.update(updates, state, params, value=value, **extra_args)

    return optax.GradientTransformationExtraArgs(tx.init, update)


def lsgd(learning_rate: optax.ScalarOrSchedule, num_workers: int = 1):
    """Return LSGD with one group."""
    return _judged_by_length(gemjax.lsgd(learning_rate, num_workers))


def lsgd_in_groups(learning_rate: optax.ScalarOrSchedule, num_workers: int = 1):
    """Return LSGD with groups of two workers, or of one if the number of workers is odd."""
    groups = num_workers // 2 if num_workers % 2 == 0 else num_workers
    if groups == 1:
        return lsgd(learning_rate, num_workers)
    tx = gemjax.lsgd(learning_rate, num_workers, groups=groups, global_period=2, global_strength=0.2)
    return _judged_by_length(tx)


def _matrices_apart(path: str, leaf) -> int:
    """Return the number of a leaf's fragment: 1 for matrices, 0 for the rest."""
    del leaf
    return int(path.endswith("w"))


def _in_smaller_units(tx: optax.GradientTransformationExtraArgs):
    """Return ``tx`` for displacements in units of 1/4: workers go on from their own parameters, so a unit step may be long."""
    return optax.with_extra_args_support(optax.chain(optax.scale(0.25), tx))


def streaming_diloco(learning_rate: optax.ScalarOrSchedule, num_workers: int = 1):
    """Return Streaming DiLoCo with two fragments, of which workers keep a part."""
    return _in_smaller_units(
        gemjax.streaming_diloco(learning_rate, 0.5, num_workers, fragments=_matrices_apart, keep=0.25)
    )


def decoupled_diloco(learning_rate: optax.ScalarOrSchedule, num_workers: int = 1):
    """Return Decoupled DiLoCo with two fragments, a delay, pairs of displacements and one local step as the default."""
    tx = gemjax.decoupled_diloco(
        learning_rate, 0.5, num_workers, buffer_size=2, fragments=_matrices_apart, keep=0.5, delay=1, every=2
    )
    return of_steps(1, _in_smaller_units(tx))


OF_FRAGMENTS = {"gathers": True, "takes_displacements": True, "measures_ahead": True}

METHODS = (
    Row("asgd", gemjax.asgd, 0.02),
    Row("multi-asgd", gemjax.multi_asgd, 0.01, {"momentum": 0.5}),
    Row("staleness-aware", gemjax.staleness_aware, 0.25, factor=lambda staleness, _: 1 / max(1, staleness)),
    Row("dynsgd", gemjax.dynsgd, 0.25, factor=lambda staleness, _: 1 / (staleness + 1)),
    Row("gem", gemjax.gem, 0.02),
    Row("gem-code", gemjax.gem, 0.02, {"reading": "code"}),
    Row("gem-algorithm", gemjax.gem, 0.02, {"reading": "algorithm"}),
    # The equations without a clamp reverse updates where the others have moved far, and diverge.
    Row("gem-unclamped", gemjax.gem, 0.01, {"clamp": None, "momentum": 0.5}, converges_stale=False),
    Row("adam-matched-energy", adam_with_matched_energy, 0.005),
    Row("adam-per-worker", adam_per_worker, 0.001),
    Row("ringmaster-muon", ringmaster_muon, 0.002, variant=True, partitioned=True),
    # The first gradients of a stage are zero, so a commit moves what others have begun.
    Row("async-pipeline", async_pipeline, 0.02, variant=True, gathers=True, measures_ahead=True),
    Row("momentum-asgd", gemjax.momentum_asgd, 0.01, {"momentum": 0.5}, variant=True),
    Row("nag-asgd", gemjax.nag_asgd, 0.01, {"momentum": 0.5}, variant=True),
    Row("delay-adaptive", gemjax.delay_adaptive, 0.02, variant=True, factor=lambda staleness, n: n / max(n, staleness)),
    Row("dana-slim", gemjax.dana_slim, 0.01, {"momentum": 0.5}, variant=True),
    Row("dana-zero", gemjax.dana_zero, 0.01, {"momentum": 0.5}),
    # The authors' strength outweighs the large gradients at the start of these objectives.
    Row("dc-asgd", gemjax.dc_asgd, 0.02, {"strength": 0.002}, variant=True),
    Row("dc-asgd-adaptive", gemjax.dc_asgd, 0.02, {"variant": "adaptive", "strength": 0.02}),
    Row("dana-dc", gemjax.dana_dc, 0.01, {"momentum": 0.5, "strength": 0.002}, variant=True, measures_ahead=True),
    Row("gap-aware", gemjax.gap_aware, 0.03, {"momentum": 0.5}),
    Row("dana-ga", gemjax.dana_ga, 0.03, {"momentum": 0.5}, variant=True, measures_ahead=True),
    Row("lwp", gemjax.lwp, 0.005, {"momentum": 0.5}, variant=True),
    Row("downpour", gemjax.downpour, 0.02, variant=True, takes_displacements=True),
    Row("agn", agn, 0.04, variant=True, takes_displacements=True),
    Row("easgd", gemjax.easgd, 0.1, {"strength": 0.3}, variant=True, takes_displacements=True, moves_at_rest=True),
    Row("eamsgd", gemjax.eamsgd, 0.05, {"momentum": 0.5, "strength": 0.3}, variant=True, moves_at_rest=True),
    Row("lsgd", lsgd, 0.1, variant=True, takes_displacements=True, moves_at_rest=True),
    Row("lsgd-groups", lsgd_in_groups, 0.1, variant=True, takes_displacements=True, moves_at_rest=True),
    Row("ringmaster", gemjax.ringmaster, 0.1, {"threshold": 2}, variant=True, refuses=True),
    Row("rennala", gemjax.rennala, 0.3, gathers=True, refuses=True, variant=True),
    Row(
        "rennala-momentum",
        gemjax.rennala,
        0.1,
        {"inner": optax.trace(0.5, nesterov=True)},
        gathers=True,
        refuses=True,
        variant=True,
    ),
    Row("incremental", gemjax.incremental, 0.01, gathers=True, variant=True),
    Row("malenia", gemjax.malenia, 0.3, gathers=True, refuses=True, variant=True),
    Row("ringleader", gemjax.ringleader, 0.05, gathers=True, variant=True),
    Row("fedbuff", gemjax.fedbuff, 0.05, {"buffer_size": 2}, variant=True, gathers=True, takes_displacements=True),
    Row(
        "fedbuff-adam",
        gemjax.fedbuff,
        0.02,
        {"buffer_size": 2, "inner": optax.scale_by_adam()},
        variant=True,
        gathers=True,
        takes_displacements=True,
    ),
    Row(
        "fedasync",
        gemjax.fedasync,
        0.05,
        variant=True,
        takes_displacements=True,
        factor=lambda staleness, _: (1 + staleness) ** -0.5,
    ),
    Row("delayed-nesterov", gemjax.delayed_nesterov, 0.1, {"momentum": 0.5}, variant=True, takes_displacements=True),
    Row(
        "diloco",
        gemjax.diloco,
        0.1,
        {"momentum": 0.5},
        variant=True,
        gathers=True,
        takes_displacements=True,
        in_rounds=True,
    ),
    Row(
        "muloco",
        gemjax.diloco,
        0.1,
        {"momentum": 0.6},
        variant=True,
        gathers=True,
        takes_displacements=True,
        in_rounds=True,
        local_optimizer=optax.contrib.muon(0.01),
    ),
    Row("streaming-diloco", streaming_diloco, 0.4, variant=True, in_rounds=True, **OF_FRAGMENTS),
    Row("decoupled-diloco", decoupled_diloco, 0.1, variant=True, **OF_FRAGMENTS),
    Row("momentum-lookahead", gemjax.momentum_lookahead, 0.01, variant=True, takes_displacements=True),
    Row("heloco", gemjax.heloco, 0.03, variant=True, takes_displacements=True),
    Row("gap-aware-adam", gemjax.gap_aware_adam, 0.001, variant=True),
    Row("one-step-delay", gemjax.one_step_delay, 0.01, {"momentum": 0.5}, variant=True, moves_at_rest=True),
    # Without noise the gradients and the measured curvature vanish, and the rate grows without bound.
    Row("yellowfin", gemjax.yellowfin, 0.01, converges_stale=False, variant=True),
    *IN_TEST_FILES,
)

# One of each kind. In CI the others are tested by the law, golden histories, references and the contract alone.
KINDS = ("asgd", "gem", "adam-per-worker", "dana-dc", "lsgd-groups", "rennala", "diloco", "streaming-diloco")

every_method = pytest.mark.parametrize("row", [pytest.param(row, id=row.name, marks=row.marks) for row in METHODS])

# Of the whole contract, what takes long.
each_kind = pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, id=row.name, marks=(*row.marks, *([] if row.name in KINDS else [pytest.mark.nightly])))
        for row in METHODS
    ],
)
