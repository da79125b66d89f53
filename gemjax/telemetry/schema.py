"""Events of a run: their fields and kinds, parsed from one line of an untrusted log."""

import json
import sys
from typing import Any

EVENTS = (
    "start", "dispatch", "ready", "commit", "drop", "reject", "fault", "interrupt", "retire", "hang", "late", "join", "leave",
    "end", "pause", "idle", "evaluation",
)  # fmt: skip
OUTCOMES = ("commit", "drop", "reject")  # Of a gradient that arrives at the central variable.

# Fields that an event must have besides its time, and kinds of fields; any other measurement is a number or null.
NEEDED = (
    dict.fromkeys(("dispatch", "ready", "fault", "interrupt", "hang", "late"), ("worker", "step"))
    | dict.fromkeys(OUTCOMES, ("worker", "step", "pulled_at", "staleness"))
    | dict.fromkeys(("retire", "join", "leave", "end"), ("worker",))
    | dict.fromkeys(("pause", "idle"), ("seconds",))
    | {"evaluation": ("commits", "seconds")}
)
KINDS = {"event": "text", "time": "time", "draw": "count"} | dict.fromkeys(NEEDED["commit"], "count")
KINDS_OF = {
    "start": KINDS
    | dict.fromkeys(("num_workers", "commits", "rejected", "dropped"), "count")
    | {"devices": "list of names", "central": "text"},
    "ready": KINDS | {"began": "time"},
    "fault": KINDS | {"error": "text"},
    "leave": KINDS | {"error": "text"},
    "pause": KINDS | {"seconds": "time"},
    "idle": KINDS | {"seconds": "time"},
    "evaluation": KINDS | {"commits": "count", "seconds": "time"},
}
FOREIGN = {
    "dispatch",
    "dispatched",
    "began",
    "ready",
}  # Times of a cycle, logged by its earlier events alone.
LONGEST_LINE = 1 << 20  # Bytes; an event has a few hundred.
LATEST = 2.0**43  # Seconds, or units of virtual time: its microseconds are integers of 64 bits.
SLACK = 2e-6  # Times are rounded to microseconds.
EARLIER_DIGITS = 5e-9  # Relative; earlier versions wrote ``began`` with nine significant digits.


def parse(line: bytes) -> dict[str, Any]:
    """Parse one line of a log and return its event.

    Raises:
      ValueError: if there is none; the message says what is wrong.
    """
    if len(line) >= LONGEST_LINE:
        raise ValueError(f"it is longer than {LONGEST_LINE} bytes")
    try:
        record = _DECODE(line.decode())
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON ({error.msg} at column {error.colno})") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(record, dict):
        raise ValueError(f"it is a JSON {type(record).__name__}, expected an object")
    event = record.get("event")
    if not isinstance(event, str) or event not in EVENTS:
        raise ValueError(f"event is {event!r}, expected one of {', '.join(EVENTS)}")
    for field in ("time", *NEEDED.get(event, ())):
        if field not in record:
            raise ValueError(f"a {event} has a {field}, and this one has none")
    kinds = KINDS_OF.get(event, KINDS)
    for field, value in record.items():
        kind = kinds.get(field, "number or null")
        if not _is(kind, value):
            # As Python writes it: a name may hold control sequences of a terminal.
            named = field if field.isidentifier() else ascii(field)[:60]
            raise ValueError(f"{named} is {ascii(value)[:60]}, expected a {kind}")
    if event in OUTCOMES and not FOREIGN.isdisjoint(record):
        raise ValueError(f"a {event} does not have times of {' and '.join(sorted(FOREIGN & record.keys()))}")
    return record


def _is(kind: str, value: Any) -> bool:
    if kind == "text":
        return isinstance(value, str)
    if kind == "list of names":
        return isinstance(value, list) and all(isinstance(name, str) for name in value)
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and -_LARGEST <= value <= _LARGEST
    if kind == "count":
        return number and isinstance(value, int) and 0 <= value < 2**31
    if kind == "time":
        return number and 0 <= value <= LATEST
    return number or value is None or isinstance(value, bool)


def _refuse_constant(constant: str) -> float:
    raise ValueError(f"{constant} is not JSON")


_LARGEST = sys.float_info.max
_DECODE = json.JSONDecoder(parse_constant=_refuse_constant).decode
