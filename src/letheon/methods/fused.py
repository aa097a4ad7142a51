"""FUSED: knowledge overwritten by sparse adapters, on a model that is left as it was (Zhong et al., CVPR 2025)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from letheon import tree
from letheon.client import KINDS, Client, client_work, finite
from letheon.data import Data
from letheon.errors import ConfigError, MethodError
from letheon.methods.base import Method
from letheon.phase import Phase, State, seed_of
from letheon.tasks.base import Task, params_of
from letheon.training import Local, batches, clipped, stepper, train
from letheon.tree import Params
from letheon.work import Federation, Reply, Work, average

DOWN, UP, BASE = "fused/down/", "fused/up/", "fused/base/"
"""Scratch: for each adapted tensor the factors A ``(r, n)`` and B ``(m, r)``, and the frozen tensor itself."""
DISTANCE = "fused/distance/"
"""Of what ``locate`` asks for: ‖w_k − w‖₁ of each tensor, float64 scalars."""


def matrices(params: Params) -> list[str]:
    """The weights that can carry an adapter: two or more dimensions. Biases and norms have none."""
    return [name for name, tensor in params.items() if name.endswith("weight") and tensor.ndim > 1]


def adapters(params: Params, names: Sequence[str], rank: int) -> Params:
    """Fresh factors for the tensors in ``names``, a function of the model: A uniform in ±1/√n, B zero.

    A tensor counts as the matrix ``(m, n)`` of its first dimension by all others; the rank is at most min(m, n).
    """
    factors: Params = {}
    digest = tree.digest(params)
    for name in names:
        m, n = params[name].flatten(1).shape
        r = min(rank, m, n)
        generator = torch.Generator().manual_seed(seed_of(f"{digest}|{name}"))
        factors[DOWN + name] = torch.empty(r, n).uniform_(-(n**-0.5), n**-0.5, generator=generator)
        factors[UP + name] = torch.zeros(m, r)
    return factors


def merged(params: Params, factors: Mapping[str, Tensor], scale: float) -> Params:
    """The adapted tensors alone: W + scale·BA in the shape of W."""
    return {
        name: params[name] + scale * (factors[UP + name] @ down).view_as(params[name])
        for name, down in ((key.removeprefix(DOWN), down) for key, down in factors.items() if key.startswith(DOWN))
    }


@client_work("locate", KINDS["train"].cost, answers="extras")
def _locate(client: Client, work: Work, data: Data, module: nn.Module, seed: int) -> Reply:
    """Local training of which only ‖w_k − w‖₁ of each weight matrix leaves the client."""
    loss = train(module, client.task.loss, data, Local.from_options(work.options), seed=seed)
    trained = params_of(module)
    moved = {DISTANCE + n: (trained[n] - work.params[n]).double().abs().sum() for n in matrices(work.params)}
    return Reply(0, client.name, moved, metrics={"loss": finite(loss)})


def _lora_cost(task: Task, work: Work, n: int) -> dict[str, float]:
    """As training, from above: the frozen weights' gradients are not computed. And BA with its gradients, each step."""
    local = Local.from_options(work.options)
    pairs = [(t, work.extras[UP + key.removeprefix(DOWN)]) for key, t in work.extras.items() if key.startswith(DOWN)]
    products = sum(down.numel() * len(up) for down, up in pairs)
    samples = local.samples(n)
    return {"samples": samples, "flops": 3.0 * task.flops * samples + 6.0 * products * local.count(n)}


@client_work("train-lora", _lora_cost, answers="extras")
def _train_lora(client: Client, work: Work, data: Data, module: nn.Module, seed: int) -> Reply:
    """Train the factors in ``extras`` on a frozen model, in evaluation mode. Replies how they moved."""
    local, scale = Local.from_options(work.options), float(work.options["scale"])
    factors = {name: tensor.clone().requires_grad_() for name, tensor in work.extras.items()}
    values = list(factors.values())
    step, generator = stepper(values, local), torch.Generator().manual_seed(seed)
    module.eval()
    total, seen = 0.0, 0
    for index in batches(len(data), local, generator):
        outputs = functional_call(module, merged(work.params, factors, scale), (data.inputs[index],))
        value = client.task.loss(outputs, data.targets[index])
        step(clipped(torch.autograd.grad(value, values), local.clip))
        total, seen = total + value.item() * len(index), seen + len(index)
    update = tree.sub({name: tensor.detach() for name, tensor in factors.items()}, work.extras)
    return Reply(0, client.name, update, metrics={"loss": finite(total / seen)})


@dataclass(frozen=True)
class FUSED(Method):
    """Low-rank adapters in the layers that retained data moves most, trained on it; everything else is frozen.

    Reversible by design: the model under the adapter still is Origin, with all that it knows, and whoever takes the
    adapter off has it back. The result carries the adapter merged, so that names and shapes are kept and the factors
    are gone, but it differs from Origin in a few matrices by a low rank only. It hides; it does not erase. Take it as
    the control for methods that claim to.

    The factors A and B are averaged each on its own, as FedAvg does it: mean(B)·mean(A), which is not the mean of the
    clients' BA. BatchNorm statistics are frozen with the rest, and the adapter is trained in evaluation mode on them.
    No dropout.

    Attributes:
        layers: how many weights get an adapter: those with the largest mean over the retained clients of ‖w_k − w‖₁
            after one round of ordinary training, of which nothing but these numbers is kept; at most as many as there
            are.
        rank: r of an adapter, cut to the smaller side of its matrix; a convolution is (out, in·height·width).
        alpha: the adapter's product is scaled by alpha/r, also where the rank is cut.
        rounds: of FedAvg on the adapters.
        local: local recipe; None: the experiment's.
    """

    name: ClassVar[str] = "fused"
    known_failures: ClassVar[Mapping[str, str]] = {
        "forgets": "a control: an adapter that sees retained data only overwrites by chance, as fine-tuning does",
        "single-replies": "the small model's layers rank the same whatever a client weighs; elsewhere they need not",
    }

    layers: int = 2
    rank: int = 16
    alpha: float = 32.0
    rounds: int = 7
    local: Local | None = None

    def __post_init__(self) -> None:
        for name in ("layers", "rank", "alpha", "rounds"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"fused.{name}: must be positive, got {getattr(self, name)}")

    @property
    def scale(self) -> float:
        """Of an adapter's product."""
        return self.alpha / self.rank

    @property
    def needed(self) -> frozenset[str]:
        return self.needs | {"per-client"}  # in locate each reply counts once; where one client is all, it is the mean

    def phases(self, start: State, task: Task) -> Sequence[Phase]:
        if not matrices(start.params):
            raise MethodError("fused: the model has no weight of two dimensions that an adapter could go to")
        return [Phase("locate", self.locate), Phase("adapt", self.adapt, self.rounds)]

    def locate(self, federation: Federation, state: State, t: int) -> State:
        """Choose the layers and attach fresh adapters, which change nothing yet."""
        names = matrices(state.params)
        options, extras = self.recipe.options(t), {DISTANCE + n: torch.zeros((), dtype=torch.float64) for n in names}
        work = Work("locate", state.params, state.buffers, "retain", options=options, extras=extras)
        # The mean over clients, not over samples: whoever took part counts once.
        mean = average(replace(reply, weight=float(reply.weight > 0)) for reply in federation.run(work))
        chosen = sorted(names, key=lambda name: -float(mean.tensors[DISTANCE + name]))[: self.layers]
        base = {BASE + name: state.params[name] for name in chosen}
        return replace(state, scratch=state.scratch | base | adapters(state.params, chosen, self.rank))

    def adapt(self, federation: Federation, state: State, t: int) -> State:
        """A round of FedAvg on the factors; the model is the frozen one with the new adapter merged."""
        factors = {name: tensor for name, tensor in state.scratch.items() if name.startswith((DOWN, UP))}
        base = {n.removeprefix(BASE): tensor for n, tensor in state.scratch.items() if n.startswith(BASE)}
        frozen = state.params | base
        options = self.recipe.options(t) | {"scale": self.scale}
        work = Work("train-lora", frozen, state.buffers, "retain", options=options, extras=factors)
        factors = tree.add(factors, average(federation.run(work)).tensors)
        params = frozen | merged(frozen, factors, self.scale)
        return replace(state, params=params, scratch=state.scratch | factors)
