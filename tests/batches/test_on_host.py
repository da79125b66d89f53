"""Data in host memory give the run of data on the device."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from engines.problems import Abreast, assert_close, assert_same_bits, late

import gemjax
from gemjax import OnHost
from gemjax.batches.rows import Rows
from gemjax.engines import memory
from gemjax.engines.simulator import loops, simulate

N = 4
ROWS = 30
# So wide that XLA compiles even the smallest chunk in the usual way; float64, which has to be narrowed.
DATA = {"row": np.arange(ROWS), "x": np.sin(np.arange(64.0 * ROWS)).reshape(ROWS, 64)}
START = jnp.zeros(64)
GEM = gemjax.gem(0.05, num_workers=N)
LATE = late()
KINDS = {
    "epochs": gemjax.Epochs(DATA, 4, seed=1),
    "shards": gemjax.Shards(DATA, 3, N, seed=1, labels=DATA["row"] % 3, concentration=20.0),
    "stream": gemjax.Stream(DATA, 4, seed=1),
}
every_kind = pytest.mark.parametrize("batches", KINDS.values(), ids=KINDS)


def loss_fn(params, model_state, batch, key):
    del key
    loss = 0.1 * jnp.mean(jnp.sum((params[None] - jnp.sin(batch["x"])) ** 2, 1))
    return loss, (model_state + 1, {"rows": batch["row"].sum()})


def run(batches, tx=GEM, trace=LATE, **options):
    return gemjax.simulate(tx, loss_fn, START, batches, trace, model_state=0, **options)


def assert_same_run(found, expected):
    assert_same_bits(found.state, expected.state)
    assert found.history.keys() == expected.history.keys()
    for name, column in expected.history.items():
        assert found.history[name].dtype == column.dtype
        np.testing.assert_array_equal(found.history[name], column, err_msg=name)


@pytest.mark.slow
@every_kind
def test_the_run_is_that_of_data_on_the_device(batches):
    assert_same_run(run(OnHost(batches)), run(batches))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"callback_every": 1}, marks=pytest.mark.nightly),
        {"callback_every": 7},
        pytest.param({"window": 4, "callback_every": 9}, marks=pytest.mark.nightly),
    ],
    ids=str,
)
def test_chunks_and_windows(options):
    """The last chunk is not full: 24 commits and some late pulls."""
    assert len(LATE.events().worker) % options["callback_every"] or options["callback_every"] == 1
    batches = KINDS["stream"]
    assert_same_run(run(OnHost(batches), **options), run(batches, **options))
    if "window" not in options:
        assert_same_run(run(OnHost(batches), **options), run(batches))


@pytest.mark.slow
@pytest.mark.parametrize("period", [pytest.param(2, marks=pytest.mark.nightly), (1, 3, 2, 1)])
def test_local_steps(period):
    local, tx = gemjax.LocalSteps(optax.sgd(0.1), period), gemjax.downpour(num_workers=N)
    options = {"tx": tx, "local": local, "callback_every": 5}
    assert_same_run(run(OnHost(KINDS["epochs"]), **options), run(KINDS["epochs"], **options))


@pytest.mark.slow
def test_a_file_that_is_mapped_into_memory(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, DATA["x"])
    data = DATA | {"x": np.load(path, mmap_mode="r")}
    assert isinstance(data["x"], np.memmap)
    batches = OnHost(gemjax.Epochs(data, 4, seed=1))
    rows, _ = batches.gather(batches.select(np.array([0]), np.array([0])))
    assert type(rows["x"]) is np.ndarray  # A copy in memory.
    assert_same_run(run(batches), run(KINDS["epochs"]))


@pytest.mark.slow
def test_a_sweep():
    def sweep(batches):
        return gemjax.sweep(lambda rate: gemjax.gem(rate, num_workers=N), loss_fn, START, batches, LATE,
                            {"rate": [0.01, 0.05]}, model_state=0, callback_every=10)  # fmt: skip

    found, expected = sweep(OnHost(KINDS["stream"])), sweep(KINDS["stream"])
    assert_close(found.state, expected.state, rtol=1e-5)
    np.testing.assert_array_equal(found.history["rows"], expected.history["rows"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", [pytest.param("stream", marks=pytest.mark.nightly), "shards"])
def test_on_devices(kind):
    """Each gradient's batch comes to the device of its worker; the run replays with data on the device."""
    result = gemjax.run_on_devices(
        GEM, loss_fn, START, OnHost(KINDS[kind]), 30, num_workers=N, gate=Abreast(N), model_state=0
    )
    again = run(KINDS[kind], trace=result.trace)
    assert_close(result.params, jax.device_get(again.params), rtol=1e-4)
    np.testing.assert_array_equal(result.history["rows"], again.history["rows"])


# --- Gathering ahead


class Noted(Rows):
    """Epochs that record each call, and may raise."""

    def __init__(self, notes, refuse=None):
        self.inner, self.data, self.notes, self.refuse = KINDS["epochs"], DATA, notes, refuse
        self.asked = 0

    def select(self, worker, step):
        self.asked += 1
        self.notes.append("select")
        if self.asked == self.refuse:
            raise OSError("the disk is gone")
        return self.inner.select(worker, step)


def noted_run(monkeypatch, refuse=None, **options):
    """Return the order of calls, and the error if there was one."""
    notes, read = [], simulate._history
    monkeypatch.setattr(simulate, "_history", lambda *args: notes.append("read") or read(*args))

    def callback(progress):
        notes.append("callback")
        return options.get("stop_at", np.inf) <= progress.commits

    error = None
    try:
        run(OnHost(Noted(notes, refuse)), trace=gemjax.arrivals.Gamma(N).trace(20), callback_every=8, callback=callback)
    except OSError as raised:
        error = raised
    return notes, error


def test_a_failed_read_loses_no_earlier_chunk(monkeypatch):
    """The callback, which may save the state, comes first."""
    notes, error = noted_run(monkeypatch, refuse=3)
    assert "the disk is gone" in str(error)
    assert notes == ["select", "select", "select", "read", "callback"]


def test_large_batches_make_small_chunks(monkeypatch):
    """512 B of rows and 16 B of their numbers are selected for a commit."""
    data = {"x": np.zeros((8, 32), np.float32)}
    batches, events = OnHost(gemjax.Epochs(data, 4)), gemjax.arrivals.RoundRobin(2).trace(5000).events()
    assert loops.width_for(events, batches) == 1024
    monkeypatch.setattr(loops, "CHUNK_BYTES", 10 * 528 + 1)
    assert loops.width_for(events, batches) == 10
    monkeypatch.setattr(loops, "CHUNK_BYTES", 1)
    assert loops.width_for(events, batches) == 2


# --- Data that do not fit

ROOMY = gemjax.Epochs({"x": np.sin(np.arange(3000, dtype=np.float32)).reshape(1000, 3)}, 20)
ASGD = gemjax.asgd(0.001, 2)


def squares(params, batch):
    return jnp.sum((params[None] - batch["x"]) ** 2)


def simulated(batches=ROOMY, trace=gemjax.arrivals.RoundRobin(2).trace(40)):  # noqa: B008
    return gemjax.simulate(ASGD, squares, jnp.zeros(3), batches, trace)


def test_data_that_do_not_fit_stay_on_the_host(monkeypatch):
    """12,000 B of data and a state of a few hundred."""
    taken = []
    monkeypatch.setattr(memory, "OnHost", lambda batches: taken.append(batches) or OnHost(batches))
    monkeypatch.setattr(memory, "_capacity", lambda device: 12_500)
    expected = simulated()
    assert not taken
    monkeypatch.setattr(memory, "_capacity", lambda device: 12_000)
    assert_same_run(simulated(), expected)
    assert taken == [ROOMY]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the central variable shares its device")
def test_data_that_do_not_fit_on_devices_stay_on_the_host(monkeypatch):
    """CPU devices share one memory, in which each has its copy."""
    taken = []
    for devices, expected in ((jax.devices()[:1], []), (jax.devices()[:2], [ROOMY])):
        with monkeypatch.context() as patched:
            patched.setattr(memory, "OnHost", lambda batches: taken.append(batches) or OnHost(batches))
            patched.setattr(memory, "_capacity", lambda device: 20_000)
            placement = gemjax.place(2, "colocated", devices)
            result = gemjax.run_on_devices(ASGD, squares, jnp.zeros(3), ROOMY, 12, placement=placement)
        assert taken == expected
        assert_close(jax.device_get(result.params), jax.device_get(simulated(trace=result.trace).params), rtol=1e-5)
