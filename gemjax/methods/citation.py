"""Papers of the methods, as BibTeX."""

import functools
import inspect
import types
from collections.abc import Iterator
from typing import Any

import optax

from gemjax.protocol.checks import shown

# Fields in the order of the entry; ``eprint`` is the number at arXiv.
PAPERS: dict[str, tuple[str, dict[str, str]]] = {
    "dean2012large": ("inproceedings", {
        "author": "Dean, Jeffrey and Corrado, Greg and Monga, Rajat and Chen, Kai and Devin, Matthieu and Le, Quoc V. and "
        "Mao, Mark Z. and Ranzato, Marc'Aurelio and Senior, Andrew and Tucker, Paul and Yang, Ke and Ng, Andrew Y.",
        "title": "Large Scale Distributed Deep Networks", "booktitle": "Advances in Neural Information Processing Systems",
        "year": "2012",
        "url": "https://papers.nips.cc/paper/2012/hash/6aca97005c68f1206823815f66102863-Abstract.html"}),
    "zhang2015deep": ("inproceedings", {
        "author": "Zhang, Sixin and Choromanska, Anna and LeCun, Yann",
        "title": "Deep Learning with Elastic Averaging {SGD}",
        "booktitle": "Advances in Neural Information Processing Systems", "year": "2015", "eprint": "1412.6651"}),
    "zhang2016staleness": ("inproceedings", {
        "author": "Zhang, Wei and Gupta, Suyog and Lian, Xiangru and Liu, Ji",
        "title": "Staleness-aware {Async-SGD} for Distributed Deep Learning",
        "booktitle": "International Joint Conference on Artificial Intelligence", "year": "2016", "eprint": "1511.05950"}),
    "jiang2017heterogeneity": ("inproceedings", {
        "author": "Jiang, Jiawei and Cui, Bin and Zhang, Ce and Yu, Lele",
        "title": "Heterogeneity-aware Distributed Parameter Servers",
        "booktitle": "ACM International Conference on Management of Data", "year": "2017",
        "doi": "10.1145/3035918.3035933"}),
    "mishchenko2022asynchronous": ("inproceedings", {
        "author": "Mishchenko, Konstantin and Bach, Francis and Even, Mathieu and Woodworth, Blake",
        "title": "Asynchronous {SGD} Beats Minibatch {SGD} Under Arbitrary Delays",
        "booktitle": "Advances in Neural Information Processing Systems", "year": "2022", "eprint": "2206.07638"}),
    "koloskova2022sharper": ("inproceedings", {
        "author": "Koloskova, Anastasia and Stich, Sebastian U. and Jaggi, Martin",
        "title": "Sharper Convergence Guarantees for Asynchronous {SGD} for Distributed and Federated Learning",
        "booktitle": "Advances in Neural Information Processing Systems", "year": "2022", "eprint": "2206.08307"}),
    "hermans2017accumulated": ("inproceedings", {
        "author": "Hermans, Joeri and Spanakis, Gerasimos and M{\\\"o}ckel, Rico",
        "title": "Accumulated Gradient Normalization", "booktitle": "Asian Conference on Machine Learning", "year": "2017",
        "eprint": "1710.02368"}),
    "hermans2018gradient": ("article", {
        "author": "Hermans, Joeri and Louppe, Gilles",
        "title": "Gradient Energy Matching for Distributed Asynchronous Gradient Descent", "year": "2018",
        "eprint": "1805.08469"}),
    "hakimi2019taming": ("article", {
        "author": "Hakimi, Ido and Barkai, Saar and Gabel, Moshe and Schuster, Assaf",
        "title": "Taming Momentum in a Distributed Asynchronous Environment", "year": "2019", "eprint": "1907.11612"}),
    "barkai2020gap": ("inproceedings", {
        "author": "Barkai, Saar and Hakimi, Ido and Schuster, Assaf",
        "title": "Gap-Aware Mitigation of Gradient Staleness",
        "booktitle": "International Conference on Learning Representations", "year": "2020", "eprint": "1909.10802"}),
    "kosson2020pipelined": ("article", {
        "author": "Kosson, Atli and Chiley, Vitaliy and Venigalla, Abhinav and Hestness, Joel and K{\\\"o}ster, Urs",
        "title": "Pipelined Backpropagation at Scale: Training Large Models without Batches", "year": "2020",
        "eprint": "2003.11666"}),
    "zheng2017asynchronous": ("inproceedings", {
        "author": "Zheng, Shuxin and Meng, Qi and Wang, Taifeng and Chen, Wei and Yu, Nenghai and Ma, Zhi-Ming and "
        "Liu, Tie-Yan",
        "title": "Asynchronous Stochastic Gradient Descent with Delay Compensation",
        "booktitle": "International Conference on Machine Learning", "year": "2017", "eprint": "1609.08326"}),
    "teng2019leader": ("inproceedings", {
        "author": "Teng, Yunfei and Gao, Wenbo and Chalus, Francois and Choromanska, Anna and Goldfarb, Donald and "
        "Weller, Adrian",
        "title": "Leader Stochastic Gradient Descent for Distributed Training of Deep Learning Models",
        "booktitle": "Advances in Neural Information Processing Systems", "year": "2019", "eprint": "1905.10395"}),
    "douillard2023diloco": ("article", {
        "author": "Douillard, Arthur and Feng, Qixuan and Rusu, Andrei A. and Chhaparia, Rachita and Donchev, Yani and "
        "Kuncoro, Adhiguna and Ranzato, Marc'Aurelio and Szlam, Arthur and Shen, Jiajun",
        "title": "{DiLoCo}: Distributed Low-Communication Training of Language Models", "year": "2023",
        "eprint": "2311.08105"}),
    "wang2020slowmo": ("inproceedings", {
        "author": "Wang, Jianyu and Tantia, Vinayak and Ballas, Nicolas and Rabbat, Michael",
        "title": "{SlowMo}: Improving Communication-Efficient Distributed {SGD} with Slow Momentum",
        "booktitle": "International Conference on Learning Representations", "year": "2020", "eprint": "1910.00643"}),
    "douillard2025streaming": ("article", {
        "author": "Douillard, Arthur and Donchev, Yanislav and Rush, Keith and Kale, Satyen and Charles, Zachary and "
        "Garrett, Zachary and Teston, Gabriel and Lacey, Dave and McIlroy, Ross and Shen, Jiajun and "
        "Ram{\\'e}, Alexandre and Szlam, Arthur and Ranzato, Marc'Aurelio and Barham, Paul",
        "title": "Streaming {DiLoCo} with overlapping communication: Towards a Distributed Free Lunch", "year": "2025",
        "eprint": "2501.18512"}),
    "douillard2026decoupled": ("article", {
        "author": "Douillard, Arthur and Rush, Keith and Donchev, Yani and Charles, Zachary and Fallen, Nova and "
        "Dubey, Ayush and Gog, Ionel and Dean, Josef and Woodworth, Blake and Garrett, Zachary and Keating, Nate and "
        "Bishop, Jenny and Prior, Henry and Yvinec, Edouard and Szlam, Arthur and Ranzato, Marc'Aurelio and Dean, Jeff",
        "title": "Decoupled {DiLoCo} for Resilient Distributed Pre-training", "year": "2026", "eprint": "2604.21428"}),
    "ajanthan2025nesterov": ("inproceedings", {
        "author": "Ajanthan, Thalaiyasingam and Ramasinghe, Sameera and Zuo, Yan and Avraham, Gil and Long, Alexander",
        "title": "Nesterov Method for Asynchronous Pipeline Parallel Optimization",
        "booktitle": "International Conference on Machine Learning", "year": "2025", "eprint": "2505.01099"}),
    "liu2024asynchronous": ("article", {
        "author": "Liu, Bo and Chhaparia, Rachita and Douillard, Arthur and Kale, Satyen and Rusu, Andrei A. and "
        "Shen, Jiajun and Szlam, Arthur and Ranzato, Marc'Aurelio",
        "title": "Asynchronous Local-{SGD} Training for Language Modeling", "year": "2024", "eprint": "2401.09135"}),
    "ajanthan2025momentum": ("inproceedings", {
        "author": "Ajanthan, Thalaiyasingam and Ramasinghe, Sameera and Avraham, Gil and Zuo, Yan and Long, Alexander",
        "title": "Momentum Look-Ahead for Asynchronous Distributed Low-Communication Training",
        "booktitle": "ICLR Workshop on Modular, Collaborative and Decentralized Deep Learning", "year": "2025",
        "url": "https://openreview.net/forum?id=4O8nzTkHPI"}),
    "alasif2026heloco": ("article", {
        "author": "{Al Asif}, Abdullah and Diem, Patrick and Mu{\\~n}oz, Juan Pablo and Wolf, Felix and "
        "Jannesari, Ali and Mazaheri, Arya",
        "title": "{HeLoCo}: Efficient asynchronous low-communication training under data and device heterogeneity",
        "year": "2026", "eprint": "2606.00271"}),
    "zmushko2026one": ("inproceedings", {
        "author": "Zmushko, Philip and Petrov, Egor and Abdullaev, Nursultan and Khrushchev, Mikhail and "
        "Horv{\\'a}th, Samuel",
        "title": "One-Step Gradient Delay is Not a Barrier for Large-Scale Asynchronous Pipeline Parallel {LLM} Pretraining",
        "booktitle": "International Conference on Machine Learning", "year": "2026", "eprint": "2606.30634"}),
    "chang2025mitigating": ("article", {
        "author": "Chang, Xiangyu and Yao, Manyi and Krishnamurthy, Srikanth V. and Shelton, Christian R. and "
        "Chakraborty, Anirban and Swami, Ananthram and Oymak, Samet and {Roy-Chowdhury}, Amit",
        "title": "Mitigating Participation Imbalance Bias in Asynchronous Federated Learning", "year": "2025",
        "eprint": "2511.19066"}),
    "maranjyan2025ringleader": ("article", {
        "author": "Maranjyan, Artavazd and Richt{\\'a}rik, Peter",
        "title": "{Ringleader ASGD}: The First Asynchronous {SGD} with Optimal Time Complexity under Data Heterogeneity",
        "year": "2025", "eprint": "2509.22860"}),
    "maranjyan2025ringmaster": ("article", {
        "author": "Maranjyan, Artavazd and Tyurin, Alexander and Richt{\\'a}rik, Peter",
        "title": "{Ringmaster ASGD}: The First Asynchronous {SGD} with Optimal Time Complexity", "year": "2025",
        "eprint": "2501.16168"}),
    "tyurin2023optimal": ("article", {
        "author": "Tyurin, Alexander and Richt{\\'a}rik, Peter",
        "title": "Optimal Time Complexities of Parallel Stochastic Optimization Methods Under a Fixed Computation Model",
        "year": "2023", "eprint": "2305.12387"}),
    "nguyen2022federated": ("inproceedings", {
        "author": "Nguyen, John and Malik, Kshitiz and Zhan, Hongyuan and Yousefpour, Ashkan and Rabbat, Michael and "
        "Malek, Mani and Huba, Dzmitry",
        "title": "Federated Learning with Buffered Asynchronous Aggregation",
        "booktitle": "International Conference on Artificial Intelligence and Statistics", "year": "2022",
        "eprint": "2106.06639"}),
    "xie2019asynchronous": ("article", {
        "author": "Xie, Cong and Koyejo, Sanmi and Gupta, Indranil", "title": "Asynchronous Federated Optimization",
        "year": "2019", "eprint": "1903.03934"}),
    "zhang2019yellowfin": ("article", {
        "author": "Zhang, Jian and Mitliagkas, Ioannis", "title": "{YellowFin} and the Art of Momentum Tuning",
        "year": "2019", "eprint": "1706.03471"}),
}  # fmt: skip
# Papers of the functions that make the parts of a method; without any of these, those of what it is built on.
PARTS = {
    "match_energy": ("hermans2018gradient",), "compensate_delay": ("zheng2017asynchronous",),
    "dana_momentum": ("hakimi2019taming",), "look_ahead_momentum": ("hakimi2019taming", "kosson2020pipelined"),
    "inverse": ("zhang2016staleness",), "inverse_plus_one": ("jiang2017heterogeneity",),
    "delay_adaptive": ("mishchenko2022asynchronous", "koloskova2022sharper"), "scale_by_gap": ("barkai2020gap",),
    "correct_one_step_delay": ("zmushko2026one",), "average_elastically": ("zhang2015deep",),
    "follow_leader": ("teng2019leader",), "scale_by_local_steps": ("hermans2017accumulated",),
    "by_fragment": ("douillard2025streaming",), "merge_quorum": ("douillard2026decoupled", "douillard2023diloco"),
    "stage_momentum": ("ajanthan2025nesterov",), "delay_stages": ("ajanthan2025nesterov",),
    "in_rounds": ("douillard2023diloco", "wang2020slowmo"), "delay_momentum": ("liu2024asynchronous",),
    "discount_momentum": ("ajanthan2025momentum",), "align_with_momentum": ("alasif2026heloco",),
    "gather": ("nguyen2022federated",), "polynomial_weight": ("xie2019asynchronous",),
    "hinge_weight": ("xie2019asynchronous",),
    "mix_with_worker": ("xie2019asynchronous",), "gather_fresh": ("tyurin2023optimal",),
    "gather_per_worker": ("tyurin2023optimal",), "aggregate_last": ("chang2025mitigating", "maranjyan2025ringleader"),
    "take_turns": ("maranjyan2025ringleader",), "drop_stale": ("maranjyan2025ringmaster",),
    "tune_momentum": ("zhang2019yellowfin",),
}  # fmt: skip
BASES = {"displacements": ("dean2012large", "zhang2015deep"), "trace": ("hakimi2019taming",)}
PLAIN = ("dean2012large",)


def citation(tx: Any) -> str:
    """Return the BibTeX entries of the papers behind a method.

    Args:
      tx: a method such as ``gemjax.gem(0.1)``, or a chain of optax transformations with parts of methods in it at any depth,
        or a function that makes one, such as ``gemjax.gem``.

    Returns:
      One entry per paper. Papers of a chain are those of all its parts. Optax's own transformations have no entries,
      unless the chain has no part of a method: it is then asynchronous SGD, without or with momentum.

    Raises:
      TypeError: if ``tx`` is neither an optax transformation nor a function that makes a method.

    >>> import gemjax, optax
    >>> print(gemjax.citation(optax.chain(optax.clip(1.0), gemjax.gem(0.1, num_workers=8))))
    @article{hermans2018gradient,
      author = {Hermans, Joeri and Louppe, Gilles},
      title = {Gradient Energy Matching for Distributed Asynchronous Gradient Descent},
      year = {2018},
      eprint = {1805.08469},
      archiveprefix = {arXiv},
      url = {https://arxiv.org/abs/1805.08469},
    }
    """
    if not isinstance(tx, (optax.GradientTransformation, optax.MultiSteps)) and not _is_method(tx):
        raise TypeError(
            f"tx must be an optax transformation, or the function of a whole method such as gemjax.gem, got {shown(tx)}"
        )
    used = list(_functions(tx, set()))
    own = "gather_fresh" not in used  # Which keeps its sum in the buffer of `gather`.
    keys = [key for name in used if own or name != "gather" for key in PARTS.get(name, ())]
    keys = keys or [key for base, papers in BASES.items() if base in used for key in papers] or list(PLAIN)
    return "\n\n".join(_entry(key) for key in dict.fromkeys(keys))


def _entry(key: str) -> str:
    kind, fields = PAPERS[key]
    if "eprint" in fields:
        fields = fields | {"archiveprefix": "arXiv", "url": f"https://arxiv.org/abs/{fields['eprint']}"}
    lines = "".join(f"  {name} = {{{value}}},\n" for name, value in fields.items())
    return f"@{kind}{{{key},\n{lines}}}"


def _is_method(value: Any) -> bool:
    """Return True for a function of the library that makes a method."""
    return (
        isinstance(value, types.FunctionType)
        and value.__module__.startswith("gemjax.methods.")
        and {"learning_rate", "num_workers"} <= {*inspect.signature(value).parameters}
    )


def _functions(value: Any, seen: set[int]) -> Iterator[str]:
    """Yield the names of the functions of which a transformation is made, from outside to inside."""
    if id(value) in seen:
        return
    seen.add(id(value))
    inner: Any = ()
    if isinstance(value, types.FunctionType):
        yield value.__qualname__.split(".")[0]
        cells = [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
        inner = [*cells, value(learning_rate=1.0, num_workers=2)] if _is_method(value) else cells
    elif isinstance(value, types.MethodType):
        inner = (value.__func__, value.__self__)
    elif isinstance(value, functools.partial):
        inner = (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, (tuple, list)):
        inner = value
    elif isinstance(value, dict):
        inner = value.values()
    elif type(value).__module__.startswith(("gemjax.", "optax.")):  # Such as MultiSteps, and a schedule of staleness.
        inner = getattr(value, "__dict__", {}).values()
    for one in inner:
        yield from _functions(one, seen)


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - an empty cell raises.
    except ValueError:
        return False
    return True
