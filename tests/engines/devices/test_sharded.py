"""Central variables and workers on several devices."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from engines.problems import Abreast, assert_close, fading

import gemjax
from gemjax.engines.devices.hardware.placement import Placement
from gemjax.engines.devices.hardware.programs.host import Programs
from gemjax.engines.devices.hardware.sharding import cut_along, devices_of, in_parts, whole
from gemjax.engines.transition import Transition

PARAMS = {"w": jnp.full((24, 16), 0.1), "b": jnp.zeros(16), "odd": jnp.ones((3, 5)), "scale": jnp.ones([])}


def loss_fn(params, batch):
    predicted = params["scale"] * (batch @ params["w"] + params["b"][None])
    return jnp.mean((predicted - 1.0) ** 2) + 0.01 * jnp.sum(params["odd"] ** 2)


def batches(worker, step):
    return jnp.sin(jnp.arange(192.0).reshape(8, 24) + 3.0 * worker + step)


def run(tx, placement, num_commits=40, **options):
    workers = len(placement.workers)
    return gemjax.run_on_devices(
        tx, loss_fn, PARAMS, batches, num_commits, placement=placement, gate=Abreast(workers), **options
    )


METHODS = {
    "gem": (lambda: gemjax.gem(0.02, num_workers=3), {}),
    "dana": (lambda: gemjax.dana_zero(0.02, num_workers=3), {}),
    "adam": (lambda: gemjax.asynchronous(gemjax.per_worker(optax.adam(0.02), 3), 3), {}),
    "easgd": (lambda: gemjax.easgd(num_workers=3), {"local": gemjax.LocalSteps(optax.sgd(0.02, momentum=0.5), 2)}),
    "lsgd": (lambda: gemjax.lsgd(num_workers=3), {"local": gemjax.LocalSteps(optax.sgd(0.02), 2)}),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", ["gem", "lsgd", *(pytest.param(name, marks=pytest.mark.nightly) for name in list(METHODS)[1:4])]
)
def test_a_sharded_central_variable_follows_the_law(method):
    make, options = METHODS[method]
    devices = jax.devices()
    placement = Placement((devices[0], devices[1], devices[2]), tuple(devices[4:8]))
    result = run(make(), placement, **options)
    replay = gemjax.simulate(make(), loss_fn, PARAMS, batches, result.trace, **options)
    assert_close(jax.device_get(result.params), jax.device_get(replay.params), rtol=1e-4)
    assert_close(jax.device_get(result.opt_state), jax.device_get(replay.opt_state), rtol=1e-4)
    assert result.params["w"].sharding == in_parts(placement.central, (24, 16))


@pytest.mark.slow
def test_each_of_eight_devices_holds_an_eighth():
    """Every worker's copy and memory are also sharded, from the first commit to the last."""
    devices = jax.devices()
    placement = Placement((devices[0],) * 4, tuple(devices[1:9]))
    params = {"w": jnp.zeros((1024, 64)), "v": jnp.zeros((5, 5, 8, 16)), "b": jnp.zeros(64), "few": jnp.zeros(10)}
    loss = lambda params, batch: sum(jnp.sum(leaf * batch) for leaf in jax.tree.leaves(params))
    transition = Transition(tx=gemjax.gem(0.1, num_workers=4), loss_fn=loss, num_workers=4).bind(params)
    batches = gemjax.Computed(lambda worker, step: jnp.float32(step))
    programs = Programs(transition, batches, placement, transition.init(params))
    state_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves((programs.central.shared, programs.central.slots)))
    for round_ in range(3):
        held = dict.fromkeys(devices, 0)
        for leaf in jax.tree.leaves((programs.central.shared, programs.central.slots)):
            for shard in leaf.addressable_shards:
                held[shard.device] += shard.data.nbytes
        assert held[devices[0]] == 0
        for device in devices[1:]:
            assert held[device] == pytest.approx(state_bytes / 8, rel=0.01)
        if round_ < 2:
            programs.warm_up()
            for worker in range(4):
                gradient = programs.compute(worker, programs.select(worker))
                programs.read(programs.commit(worker, programs.bring(gradient)))
                programs.deliver(worker)


@pytest.mark.slow
def test_a_run_keeps_no_other_copy_of_what_is_sharded():
    """Neither the default device, where the state is made, nor the given parameters keep a copy."""
    devices = jax.devices()
    placement = Placement(tuple(devices[:2]) * 8, tuple(devices[2:6]))
    params = {"w": np.ones((512, 64), np.float32)}
    size, before, most = params["w"].nbytes, _held(), {}

    def callback(progress):
        for device, held in _held().items():
            most[device] = max(most.get(device, 0), held - before.get(device, 0))

    loss = lambda params, batch: jnp.mean((params["w"] - batch) ** 2)
    gemjax.run_on_devices(
        gemjax.gem(0.01, num_workers=16), loss, params, lambda worker, step: jnp.float32(step), 40, placement=placement,
        callback=callback, callback_every=20,
    )  # fmt: skip
    # Eight views, eight gradients, and as many in transfer; the state is 33 copies, of which each central device has a fourth.
    assert max(most[device] for device in devices[:2]) < 30 * size
    for device in devices[2:6]:
        assert most[device] < (33 / 4 + 4) * size


def _held():
    held = {}
    for leaf in jax.live_arrays():
        for shard in leaf.addressable_shards:
            held[shard.device] = held.get(shard.device, 0) + shard.data.nbytes
    return held


@pytest.mark.slow
@pytest.mark.parametrize("central", [pytest.param(1, marks=pytest.mark.nightly), 2])
def test_workers_of_several_devices_share_their_batches(central):
    placement = gemjax.place(3, "dedicated", worker_devices=2, central_devices=central)
    assert [len(devices_of(worker)) for worker in placement.workers] == [2, 2, 2]
    tx = gemjax.gem(0.02, num_workers=3)
    result = run(tx, placement)
    replay = gemjax.simulate(tx, loss_fn, PARAMS, batches, result.trace)
    assert_close(jax.device_get(result.params), jax.device_get(replay.params), rtol=1e-4)


@pytest.mark.slow
def test_unequal_workers_in_one_run():
    devices = jax.devices()
    placement = Placement((devices[0], tuple(devices[1:5]), devices[5]), devices[8])
    tx, local = gemjax.downpour(num_workers=3), gemjax.LocalSteps(fading(0.02), 2)
    result = run(tx, placement, local=local)
    replay = gemjax.simulate(tx, loss_fn, PARAMS, batches, result.trace, local=local)
    assert set(result.trace.worker) == {0, 1, 2}
    assert_close(jax.device_get(result.params), jax.device_get(replay.params), rtol=1e-4)


@pytest.mark.slow
def test_a_run_continues_with_another_number_of_central_devices(tmp_path):
    devices, tx = jax.devices(), gemjax.gem(0.02, num_workers=3)
    placements = [Placement((devices[0],) * 3, home) for home in (tuple(devices[1:5]), devices[1], tuple(devices[1:9]))]
    state = recorded = None
    for placement, num_commits in zip(placements, (20, 30, 40), strict=True):
        result = run(tx, placement, num_commits, state=state, recorded=recorded)
        with gemjax.Checkpoints(tmp_path / "checkpoints") as checkpoints:
            checkpoints.save(result.state, result.trace)
            like = gemjax.initial_state(tx, PARAMS, num_workers=3)
            state, recorded, _ = checkpoints.load(like)
    replay = gemjax.simulate(tx, loss_fn, PARAMS, batches, recorded)
    assert_close(jax.device_get(state.params), jax.device_get(replay.params), rtol=1e-4)


def test_the_axis_of_each_cut():
    for shape, parts in itertools.product([(), (7,), (8,), (3, 16), (16, 16), (0, 8), (64, 3, 128)], (1, 4, 8)):
        axis = cut_along(shape, parts)
        if parts == 1 or all(size % parts or not size for size in shape):
            assert axis is None
        else:
            assert shape[axis] % parts == 0
            assert shape[axis] == max(size for size in shape if size % parts == 0)
    devices = tuple(jax.devices()[:4])
    array = jax.device_put(np.zeros((3, 16)), in_parts(devices, (3, 16)))
    assert {shard.data.shape for shard in array.addressable_shards} == {(3, 4)}
    assert in_parts(devices, (3, 5)) == whole(devices)
