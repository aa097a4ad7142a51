"""TFR-Net: close the channels that request after request finds at work, and open again what others need."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from letheon.client import Client, client_work, finite
from letheon.data import Data
from letheon.errors import MethodError
from letheon.methods.language import LanguageMethod
from letheon.methods.watch import WATCHED, held_out
from letheon.phase import Phase, State
from letheon.tasks.base import Task
from letheon.tasks.text import TextTask
from letheon.text import channels, trajectory
from letheon.text.channels import Track
from letheon.text.descent import mean_loss
from letheon.text.trajectory import Channel, Losses, Recovery, Suppression
from letheon.training import Local
from letheon.tree import Params
from letheon.work import Federation, Reply, Work, separate

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TFRNet(LanguageMethod):
    """Gates on the units inside a language model's MLPs, moved by what all requests so far say of them.

    A reconstruction of the Trajectory-guided Forget-Recover Network from its abstract: no more is public. There the
    channel-level risk is followed across requests, persistent channels are suppressed and transient ones are not, and
    dormant channels of high retained value and low risk are reactivated if a tolerance holds. What a channel and its
    risk are, every rule and every constant are choices made here. Nothing is trained: the abstract names no objective.

    ∂L/∂g of each channel's gate says its risk on the texts to forget and its value on retained ones, as ranks within
    the layer (see ``Suppression`` and ``Recovery``). A closed gate scales a column of ``down_proj``, so that the model
    stays a plain one. The columns as they were are in memory, since opening must give them back to the last bit:
    **together with the model, memory undoes the method**, and it holds, beside trajectories, hits and gates, the very
    weights that were suppressed. Without it the suppression is final, and the next request begins anew. Training
    that goes on afterwards is not held: it can fill a closed column again.

    Attributes:
        suppression: which channels are closed.
        recovery: which are opened again; None: none ever. It needs retained texts to hold out, which no reported
            question is about; where there are none, nothing is opened.
        local: has no effect here.
    """

    name: ClassVar[str] = "tfr-net"
    remembers: ClassVar[bool] = True
    may_rest: ClassVar[bool] = True

    suppression: Suppression = Suppression()
    recovery: Recovery | None = Recovery()
    local: Local | None = None

    @property
    def searches(self) -> bool:
        return self.recovery is not None

    def phases(self, start: State, task: Task) -> Sequence[Phase]:
        channels.demand(task.layers)
        self._check(start)
        recover = [Phase("recover", self._recover)] if self.recovery else []
        return [Phase("suppress", self._suppress), *recover]

    def _check(self, start: State) -> None:
        """Refuse budgets that hold no channel, and memory of other channels than the model has."""
        counts = {layer: shape[1] for layer, shape in channels.shapes(start.params).items()}
        for count in counts.values():
            for first in (True, False):
                self.suppression.room(count, first=first)
        before = {layer: len(track.gate) for layer, track in self.tracks(start).items()}
        if before and before != counts:
            raise MethodError(
                f"{self.name}: memory is of a model with other channels; hand over what the request before left with "
                "this very model, or no memory to begin anew"
            )

    def kept_bytes(self, params: Mapping[str, Tensor]) -> int:
        """Bytes of memory after a request, at most."""
        share = self.suppression.total
        return sum(16 * c + 4 * d * trajectory.counted(share, c) for d, c in channels.shapes(params).values())

    def tracks(self, state: State) -> dict[str, Track]:
        """What the requests so far left, by layer; empty before the first."""
        return channels.from_params(_own(state.memory, f"{self.name}/"))

    def undone(self, state: State) -> Params:
        """The model with every gate open: bit for bit the one before the first request, if nothing else moved it."""
        return channels.opened(state.params, self.tracks(state))

    def _remembered(self, state: State, params: Params, tracks: Mapping[str, Track]) -> State:
        """The state with these gates on whole ``params``."""
        moved, kept = channels.gated(params, tracks)
        memory = {f"{self.name}/{name}": tensor for name, tensor in channels.to_params(kept).items()}
        return replace(state, params=moved, memory=state.memory | memory)

    def _suppress(self, federation: Federation, state: State, t: int) -> State:
        before = self.tracks(state)
        gates = {layer: track.gate for layer, track in before.items()}
        options = {"texts": self.recovery.texts if self.recovery else 0}
        whole = channels.opened(state.params, before)
        reply = _one(federation, Work("attribute", whole, state.buffers, "forget", options=options, extras=gates))
        if not reply.tensors:  # a dry run answers without
            return state
        signals = {name: trajectory.ranks(tensor) for name, tensor in reply.tensors.items()}
        risks = _own(signals, "risk/")
        rules, first = self.suppression, not before
        tracks, hot = dict[str, Track](), list[int]()
        for layer, risk in risks.items():
            track = trajectory.followed(before.get(layer), risk, rules)
            tracks[layer] = trajectory.suppressed(track, risk, rules, first=first)
            hot.append(int(trajectory.transient(track, risk, rules, first=first).sum()))
        closed = _closed(tracks)
        new = closed - (_closed(before) if before else 0)
        if not new.any():
            log.warning("%s: no channel was persistent or within budget: this request suppressed nothing", self.name)
        found = self._remembered(state, whole, tracks)
        found = replace(found, scratch=found.scratch | signals)
        return found.logged(suppressed=new, transient=torch.tensor(hot), closed=closed)

    def _recover(self, federation: Federation, state: State, t: int) -> State:
        assert self.recovery is not None
        rules, tracks = self.recovery, self.tracks(state)
        risks, values = (_own(state.scratch, kind) for kind in ("risk/", "value/"))
        if not risks:  # a dry run: as many trials as there may be
            for _ in range(1 + rules.trials):
                _probed(federation, state, state.params)
            return state
        if not values:
            log.warning(
                "%s: no retained text can be held out (there are none, or reported questions ask for all of them), so "
                "that no recovery can be judged: nothing is opened again",
                self.name,
            )
            return state.logged()
        order = trajectory.candidates(tracks, risks, values, rules)
        if not order:
            return state.logged(reopened=torch.zeros(len(tracks), dtype=torch.int64))
        whole = channels.opened(state.params, tracks)
        looks = [_probed(federation, state, state.params)]

        def accepts(chosen: Sequence[Channel]) -> bool:
            trial, _ = channels.gated(whole, trajectory.reopening(tracks, chosen))
            looks.append(_probed(federation, state, trial))
            return rules.accepts(looks[0], looks[-1])

        kept = trajectory.accepted(order, accepts, block=rules.block, trials=rules.trials)
        opened = trajectory.reopening(tracks, kept)
        probes = torch.tensor([[look.forget, look.retained] for look in looks], dtype=torch.float64)
        found = self._remembered(state, whole, opened)
        return found.logged(reopened=_closed(tracks) - _closed(opened), probes=probes)


def _own(tensors: Mapping[str, Tensor], prefix: str) -> Params:
    """Those whose names begin so, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _closed(tracks: Mapping[str, Track]) -> Tensor:
    """``(layers,)`` how many gates are closed."""
    return torch.stack([track.closed.sum() for track in tracks.values()])


def _one(federation: Federation, work: Work) -> Reply:
    replies = separate(federation.run(work), 1)[0]
    if len(replies) != 1:
        raise MethodError(f"tfr-net: {len(replies)} clients hold data of the request; it serves one holder")
    return replies[0]


def _probed(federation: Federation, state: State, params: Params) -> Losses:
    """How a model does on the texts to forget and on those held out."""
    metrics = _one(federation, Work("probe", params, state.buffers, "forget")).metrics
    return Losses(metrics.get("forget", 0.0), metrics.get("retained", 0.0))  # a dry run tells none


def _spent(task: Task, texts: float, passes: float) -> dict[str, float]:
    return {"samples": float(texts), "flops": passes * task.flops * texts}


def _attribute_cost(task: Task, work: Work, n: int) -> dict[str, float]:
    """If there are as many retained texts as may be looked at. A pass forward and one back; no weight's gradient."""
    return _spent(task, n + int(work.options["texts"]), 2.0)


@client_work("attribute", _attribute_cost, answers="free")
def _attribute(client: Client, work: Work, data: Data, module: nn.Module, seed: int) -> Reply:
    """What each channel does to the loss: ``risk/LAYER`` on the texts to forget, ``value/LAYER`` on retained ones.

    ``extras`` are the gates. Without retained texts to hold out, or on the option ``texts = 0``, there are no values.
    """
    texts = {"risk": data}
    retained, apart = _retained(client, work)
    if limit := int(work.options["texts"]) if apart.any() else 0:
        drawn = torch.randperm(int((~apart).sum()), generator=torch.Generator().manual_seed(seed))[:limit]
        texts["value"] = retained.take(~apart).take(drawn.sort().values)
    tensors = {
        f"{kind}/{layer}": found
        for kind, part in texts.items()
        for layer, found in channels.attributions(module, part, work.extras).items()
    }
    return Reply(0, client.name, tensors, metrics=_spent(client.task, sum(map(len, texts.values())), 2.0))


def _probe_cost(task: Task, work: Work, n: int) -> dict[str, float]:
    """If as many retained texts are held out as may be."""
    return _spent(task, n + WATCHED, 1.0)


@client_work("probe", _probe_cost, answers="free")
def _probe(client: Client, work: Work, data: Data, module: nn.Module, seed: int) -> Reply:
    """Mean losses on the texts to forget and on retained ones that are held out."""
    retained, apart = _retained(client, work)
    parts = {"forget": data, "retained": retained.take(apart)}
    losses = {name: finite(mean_loss(module, part)) for name, part in parts.items()}
    return Reply(0, client.name, {}, metrics=losses | _spent(client.task, sum(map(len, parts.values())), 1.0))


def _retained(client: Client, work: Work) -> tuple[Data, Tensor]:
    """The retained texts, and ``(n,)`` bool which of them are held out."""
    if not isinstance(client.task, TextTask):
        raise MethodError("tfr-net: is for language models; the task has no text")
    retained = client.part(replace(work, part="retain"))
    return retained, held_out(client.task, retained.ids)
