"""The picture of a run, drawn from the records in its folder."""

import gemjax
from gemjax.telemetry import style
from train.common.files import write_picture
from train.config.config import Config
from train.run import figures
from train.run.folder import RunFolder


def draw_run(folder: RunFolder, config: Config, run: gemjax.Timeline) -> None:
    """Draw loss, test accuracy, staleness and the workers' timeline into `run.png`."""
    metrics = folder.read_metrics()
    with style.style():
        figure = style.picture(columns=2, height=5.2)
        axes = figure.subplots(2, 2)
        if len(run.only("commit")["worker"]):
            figures.draw_loss(axes[0, 0], run)
            figures.draw_staleness(axes[1, 0], run)
            figures.draw_timeline(axes[1, 1], run)
        if metrics:
            figures.draw_accuracy(axes[0, 1], metrics)
        about = (
            f"{config.method}, {config.workers} workers, learning rate {config.learning_rate:g}, engine {config.engine}"
        )
        style.heading(figure, config.dataset, about)
        write_picture(folder.picture, figure)
