"""Parts from which methods are composed, and what the author of a rule needs.

A rule is an optax transformation inside of :func:`gemjax.asynchronous`, usually chained with a learning rate. The page
``methods/compose.md`` lists the parts with their place in a chain; ``methods/add.md`` explains how to write one.

>>> import gemjax, math, optax
>>> tx = gemjax.asynchronous(
...     optax.chain(gemjax.rules.drop_stale(math.inf), optax.scale_by_adam(), gemjax.rules.scale_by_staleness(),
...                 optax.scale_by_learning_rate(0.001)),
...     num_workers=16)
"""

from gemjax.methods.dana import dana_momentum
from gemjax.methods.dc_asgd import compensate_delay
from gemjax.methods.decoupled_diloco import merge_quorum
from gemjax.methods.delayed_nesterov import delay_momentum, dynamic_periods
from gemjax.methods.downpour import scale_by_local_steps
from gemjax.methods.easgd import average_elastically
from gemjax.methods.effective_sample_size import effective_sample_size, scale_by_effective_sample_size
from gemjax.methods.error_feedback import round_to, sparsify
from gemjax.methods.fedasync import mix_with_worker
from gemjax.methods.fragments import by_fragment
from gemjax.methods.gap_aware import scale_by_gap
from gemjax.methods.gather import gather, hinge_weight, polynomial_weight
from gemjax.methods.gem import match_energy
from gemjax.methods.heloco import align_with_momentum
from gemjax.methods.incremental import aggregate_last, aggregate_recent
from gemjax.methods.lsgd import average_position, follow_leader
from gemjax.methods.lwp import momentum_horizon
from gemjax.methods.malenia import gather_per_worker
from gemjax.methods.momentum_asgd import look_ahead_momentum
from gemjax.methods.momentum_lookahead import discount_momentum
from gemjax.methods.no_loco import average_in_pairs
from gemjax.methods.one_step_delay import correct_one_step_delay
from gemjax.methods.ordered_momentum import order_momentum
from gemjax.methods.pipeline import delay_stages, stage_momentum
from gemjax.methods.ratios import importance_weights, proximal_log_probs
from gemjax.methods.rennala import gather_fresh
from gemjax.methods.rescaled_asgd import scale_by_participation
from gemjax.methods.ringleader import take_turns
from gemjax.methods.ringmaster import drop_stale
from gemjax.methods.saga import correct_by_last
from gemjax.methods.samples import weigh_samples
from gemjax.methods.staleness_aware import StalenessSchedule, scale_by_staleness
from gemjax.methods.staleness_distribution import exponential_weight, scale_by_staleness_distribution
from gemjax.methods.svrg import reduce_variance, reduced_loss
from gemjax.methods.yellowfin import tune_momentum
from gemjax.protocol import diagnostics
from gemjax.protocol.delays import spread_blocks
from gemjax.protocol.hooks import LookAhead, MadeFor, Position, ReadsStaleParams, Refusals, where_present
from gemjax.protocol.local_steps import displacements, pull_to_anchors, scale_by_progress
from gemjax.protocol.nodes import StalenessState
from gemjax.protocol.slots import SharedRows, Slots, match_mask
from gemjax.protocol.staleness import require_protocol

__all__ = [
    "LookAhead",
    "MadeFor",
    "Position",
    "ReadsStaleParams",
    "Refusals",
    "SharedRows",
    "Slots",
    "StalenessSchedule",
    "StalenessState",
    "aggregate_last",
    "aggregate_recent",
    "align_with_momentum",
    "average_elastically",
    "average_in_pairs",
    "average_position",
    "by_fragment",
    "compensate_delay",
    "correct_by_last",
    "correct_one_step_delay",
    "dana_momentum",
    "delay_momentum",
    "delay_stages",
    "diagnostics",
    "discount_momentum",
    "displacements",
    "drop_stale",
    "dynamic_periods",
    "effective_sample_size",
    "exponential_weight",
    "follow_leader",
    "gather",
    "gather_fresh",
    "gather_per_worker",
    "hinge_weight",
    "importance_weights",
    "look_ahead_momentum",
    "match_energy",
    "match_mask",
    "merge_quorum",
    "mix_with_worker",
    "momentum_horizon",
    "order_momentum",
    "polynomial_weight",
    "proximal_log_probs",
    "pull_to_anchors",
    "reduce_variance",
    "reduced_loss",
    "require_protocol",
    "round_to",
    "scale_by_effective_sample_size",
    "scale_by_gap",
    "scale_by_local_steps",
    "scale_by_participation",
    "scale_by_progress",
    "scale_by_staleness",
    "scale_by_staleness_distribution",
    "sparsify",
    "spread_blocks",
    "stage_momentum",
    "take_turns",
    "tune_momentum",
    "weigh_samples",
    "where_present",
]
