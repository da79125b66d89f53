"""The timeline in the Trace Event Format, as required by viewers."""

import json

import pytest
from cycles import cycle, free

import gemjax

EVENTS = [
    *free(3, rounds=5, wait=0.1, view=0.05),
    *cycle(0, 90, 30.0, 30.0, 31.0, 31.5, 15, 0, kind="reject", loss=None),
    *cycle(0, 91, 32.0, 32.0, 33.0, 33.0, 15, 0, kind="drop"),
    {"event": "dispatch", "time": 33.0, "worker": 2, "step": 9},
    {"event": "fault", "time": 34.0, "worker": 2, "step": 9, "error": "<b>boom</b>"},
    {"event": "retire", "time": 34.0, "worker": 2, "step": 9},
    {"event": "leave", "time": 34.5, "worker": 1},
    {"event": "join", "time": 34.75, "worker": 1},
    {"event": "pause", "time": 35.0, "seconds": 0.5},
]


def test_a_gradient_of_a_cluster_shows_its_time_on_the_network():
    events = cycle(0, 0, 0.0, 0.25, 1.0, 1.5, 0, 0)
    events[-1]["network"] = 0.125
    (gradient,) = (event for event in gemjax.chrome_trace(events)["traceEvents"] if event["name"] == "gradient")
    assert gradient["args"]["network"] == 0.125


@pytest.fixture
def events():
    return gemjax.chrome_trace(EVENTS)["traceEvents"]


def test_it_is_plain_json():
    trace = gemjax.chrome_trace(EVENTS)
    assert json.loads(json.dumps(trace, allow_nan=False)) == trace
    assert trace["displayTimeUnit"] in ("ms", "ns")


def test_every_event_has_what_its_phase_needs(events):
    assert {event["ph"] for event in events} == {"M", "X", "i", "C"}
    for event in events:
        assert isinstance(event["name"], str)
        assert isinstance(event["ts"], int)
        assert event["ts"] >= 0
        assert event["pid"] == 1
        if event["ph"] == "X":
            assert event["dur"] >= 0
        if event["ph"] == "i":
            assert event["s"] == "t"
        if event["ph"] == "C":
            assert all(isinstance(value, (int, float)) for value in event["args"].values())
        else:
            assert 0 <= event["tid"] <= 3


def test_slices_of_a_track_nest_and_begin_in_order(events):
    for track in range(4):
        open_slices, before = [], 0
        for event in (event for event in events if event["ph"] == "X" and event["tid"] == track):
            begin, end = event["ts"], event["ts"] + event["dur"]
            assert begin >= before
            while open_slices and open_slices[-1] <= begin:
                open_slices.pop()
            assert not open_slices or end <= open_slices[-1], "a slice reaches beyond the one it is in"
            open_slices.append(end)
            before = begin


def test_gradient_and_commit_wait_abut(events):
    gradients = [event for event in events if event["name"] == "gradient" and event["args"]["became"] == "commit"]
    waits = {(event["tid"], event["ts"]): event["dur"] for event in events if event["name"] == "commit wait"}
    assert len(gradients) == 15
    for event in gradients:
        assert waits[event["tid"], event["ts"] + event["dur"]] == pytest.approx(100_000, abs=1)
    assert sum(event["name"] == "waits for its view" for event in events) == 15


def test_incidents_are_instants_on_the_track_of_their_worker(events):
    found = {(event["name"], event["tid"]) for event in events if event["ph"] == "i"}
    assert found == {("reject", 1), ("drop", 1), ("fault", 3), ("retire", 3), ("leave", 2), ("join", 2)}
    assert [event["tid"] for event in events if event["name"] == "pause"] == [0]


def test_counters_follow_commits(events):
    for name in ("loss", "staleness"):
        assert sum(event["ph"] == "C" and event["name"] == name for event in events) == 15
    counts = [event["args"]["staleness"] for event in events if event["name"] == "staleness"]
    assert {type(count) for count in counts} == {int}
    assert max(counts) > 1


def test_tracks_are_named_after_worker_and_device(events):
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert names == {0: "central variable (gpu:3)", 1: "worker 0 (gpu:0)", 2: "worker 1 (gpu:1)", 3: "worker 2 (gpu:2)"}
    nameless = gemjax.chrome_trace([event for event in EVENTS if event["event"] != "start"])["traceEvents"]
    assert {event["args"]["name"] for event in nameless if event["name"] == "thread_name"} >= {
        "central variable",
        "worker 0",
    }
