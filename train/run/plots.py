"""The picture of a run, drawn from what its folder holds."""

from matplotlib.figure import Figure

import gemjax
from gemjax.telemetry import eventlog
from train.common.files import write_picture
from train.config.config import Config
from train.run import figures
from train.run.folder import RunFolder


def draw_run(folder: RunFolder, config: Config) -> None:
    """Draws loss, test accuracy, staleness and the workers' timeline into `run.png`."""
    run = gemjax.timeline(eventlog.read(folder.events), config.workers)
    metrics = folder.read_metrics()
    figure = Figure(figsize=(11, 7), layout="constrained")
    axes = figure.subplots(2, 2)
    if len(run.only("commit")["worker"]):
        figures.draw_loss(axes[0, 0], run)
        figures.draw_staleness(axes[1, 0], run)
        figures.draw_timeline(axes[1, 1], run)
    if metrics:
        figures.draw_accuracy(axes[0, 1], metrics)
    figure.suptitle(
        f"{config.dataset}: {config.method}, {config.workers} workers, learning rate {config.learning_rate:g}, "
        f"engine {config.engine}"
    )
    write_picture(folder.picture, figure)
