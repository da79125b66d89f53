"""DANA keeps one worker's accuracy on a wide network, too: the accuracy by number of workers on WRN-16-4.

Claim: as on ResNet-20 (`dana_accuracy`): with the hyper-parameters of one worker DANA-Slim and DANA-DC stay near its accuracy
as workers are added, and the asynchronous methods with other momenta fail with many.

Setting (full): CIFAR-10 with crops and mirror images, WRN-16-4, 200 epochs of data of all workers together, batches of 128,
η = 0.1 (a fifth from epochs 60, 120 and 160 on), warm-up over 5 epochs from η / N, γ = 0.9, weight decay 5e-4, λ = 2; 4 to 32
workers, five seeds.
Setting (small): digits, a WRN-10-4 of a quarter of the channels, 5 epochs, η = 0.05, 4 and 32 workers, one seed.

Cost (full): 285 runs, 22,230,000 commits; for accelerators: a gradient has ten times the products
of ResNet-20's.
Expected: as on ResNet-20, at a higher accuracy (one worker about 95 %; recalled, low).

Deviations:
  1. Those of `dana_accuracy`.
  2. No published number could be read: statements are on our own one worker alone.
  3. The schedule is recalled (medium to high), as no program of the authors' for this network is known to us.
"""

import dataclasses
from typing import Any

from train.claims.claim import Claim
from train.claims.papers import dana_accuracy
from train.claims.papers.cifar_setting import CIFAR10
from train.config.config import Config

WIDE = dataclasses.replace(CIFAR10, model="wrn_16_4")
DIGITS = Config(dataset="digits", engine="simulate", batch_size=32, model="wrn_16_4", depth=10, width=0.25)
SCHEDULE: dict[str, Any] = {
    "warmup_epochs": 5.0,
    "decay_epochs": (60.0, 120.0, 160.0),
    "decay_factor": 0.2,
    "weight_decay": 5e-4,
}


CLAIM = Claim(
    name="dana_wide_resnet",
    title="DANA keeps one worker's accuracy on WRN-16-4",
    source="Hakimi et al., 2019, WRN-16-4 on CIFAR-10",
    runs={
        "full": dana_accuracy.runs(WIDE, 200.0, dana_accuracy.WORKERS, range(5), (), learning_rate=0.1, **SCHEDULE),
        "small": dana_accuracy.runs(DIGITS, 5.0, (4, 32), (0,), (), learning_rate=0.05, warmup_epochs=1.0),
    },
    judge=dana_accuracy.judge_order,
    draw=dana_accuracy.draw_accuracy,
    paper_note="none could be read",
    minutes={"full": 1_500_000, "small": 6},
    setting={"small": "digits, WRN-10-4 of a quarter of the channels"},
)
