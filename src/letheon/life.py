"""What a run consists of: its stages by name, their phases, their seeds, and the digests that name their outcomes."""

from __future__ import annotations

from dataclasses import replace

from letheon import config
from letheon.experiment import Experiment
from letheon.methods.base import Method, demand_given, fedavg
from letheon.phase import Phase, State, seed_of
from letheon.runtimes.inprocess import InProcess


def unlearning(experiment: Experiment, label: str) -> list[str]:
    """The names of a method's unlearning stages, one for each request."""
    return [f"{label}.unlearn", *(f"{label}.unlearn{number}" for number in range(2, len(experiment.then) + 2))]


def training_phases(experiment: Experiment, *, gives: frozenset[str] = InProcess.gives) -> list[Phase]:
    """FedAvg on all data, with what the methods have to record.

    Args:
        experiment: whose training run it is.
        gives: what the runtime can give to methods.
    """
    step = fedavg(experiment.local, "all")
    for method in experiment.methods.values():
        demand_given(method, gives)
        step = method.training(step)
    return [Phase("train", step, experiment.train_rounds)]


def records_training(method: Method) -> bool:
    """Whether the method records what happens while the shared Origin is trained."""
    return type(method).training is not Method.training


def seen_by(method: Method, origin: State) -> State:
    """Origin as the method gets it: a history that others recorded names clients, and is none of its business."""
    own = {name: tensor for name, tensor in origin.memory.items() if name.startswith(f"{method.name}/")}
    return replace(origin, memory=own)


def has_own_training(method: Method) -> bool:
    """Whether the method starts from a model that was trained its way."""
    return type(method).origin is not Method.origin


def own_training(experiment: Experiment, method: Method) -> list[Phase]:
    """The training run of a method that has its own."""
    return list(method.origin(experiment.task, experiment.local, experiment.train_rounds))


def continued_phases(experiment: Experiment) -> list[Phase]:
    """Plain FedAvg on the retained data: no method protects its work here."""
    local = replace(experiment.local, first_round=experiment.train_rounds)
    return [Phase("continue", fedavg(local), experiment.continue_rounds)]


def owners(experiment: Experiment) -> dict[str, str]:
    """For each stage, the digest of everything that determines its outcome: stages of equal digest are one stage."""
    shared = config.plain(experiment)
    others = ("method", "compare", "continue_rounds", "title", "flower")
    base = {key: shared[key] for key in shared if key not in others}
    recording = [method for method in experiment.methods.values() if records_training(method)]
    if recording:  # they take part in training
        base["recording"] = [config.plain(method) for method in recording]
    named = {"origin": {"base": base}}
    for label, method in experiment.methods.items():
        unlearn = {"base": base, "method": config.plain(method)}
        if has_own_training(method):
            named[f"{label}.train"] = unlearn | {"stage": "train"}
        named |= {name: unlearn | {"request": number} for number, name in enumerate(unlearning(experiment, label))}
        named[f"{label}.continue"] = unlearn | {"continue_rounds": experiment.continue_rounds}
    return {name: config.digest(part) for name, part in named.items()}


def stage_folder(name: str, owner: str) -> str:
    """Name of a stage's folder: readable, and unique by the digest."""
    safe = "".join(c if c.isalnum() or c in "-._=" else "_" for c in name)
    return f"{safe[:80]}-{owner}"


def stage_seed(seed: int, name: str) -> int:
    """Unlearning stages of all methods share their seed: equal work then sees equal batches in every method.

    Retrain's first rounds are seeded like Origin's only in the initial weights; its data differ anyway.
    """
    kind = name.rsplit(".", 1)[-1]
    return seed_of(f"{seed}|{kind}")
