"""Records of a run and their evaluation: event log, timeline, summary, verdict and traces for Perfetto."""

from gemjax.telemetry.timeline import ALWAYS, ARRIVALS, TIMES, Columns, Timeline, timeline

__all__ = ["ALWAYS", "ARRIVALS", "TIMES", "Columns", "Timeline", "timeline"]
