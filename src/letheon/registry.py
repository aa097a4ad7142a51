"""The names of methods and tasks, and the way from a name to its class.

Listing imports nothing heavy: a class is imported when it is asked for, and torch with it. Packages outside Letheon
add to the tables by entry points in the groups ``letheon.methods`` and ``letheon.tasks``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import reduce
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Literal

from letheon.errors import ConfigError, LetheonError, MethodError

Kind = Literal["method", "task"]

_ALL_SCOPES = ("client", "class", "samples")


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a table.

    Attributes:
        target: where the class lives, ``module:Class``.
        summary: one line for listings.
        scopes: what a method can forget; empty for tasks, and for methods of other packages until they are imported.
        language: whether it is for language models only.
    """

    target: str
    summary: str
    scopes: tuple[str, ...] = ()
    language: bool = False


def _language(target: str, summary: str) -> Entry:
    return Entry(target, f"Language models: {summary}", ("samples",), language=True)


METHODS: dict[str, Entry] = {
    "retrain": Entry(
        "letheon.methods.retrain:Retrain",
        "Train anew on the retained data only: the reference every other method is compared with.",
        _ALL_SCOPES,
    ),
    "fine-tuning": Entry(
        "letheon.methods.fine_tuning:FineTuning",
        "Keep training on the retained data and leave forgetting to chance: a lower bound.",
        _ALL_SCOPES,
    ),
    "lethe": Entry(
        "letheon.methods.lethe:Lethe",
        "Amplify what is to be forgotten in an adapter, rectify the model against it, then restore.",
        _ALL_SCOPES,
    ),
    "not": Entry(
        "letheon.methods.negate:NoT",
        "Negate the weights of chosen layers, then restore on the retained data; reads no forgotten data.",
        _ALL_SCOPES,
    ),
    "puf": Entry(
        "letheon.methods.puf:PUF",
        "Subtract a multiple of one ordinary update on the data to forget, then restore.",
        _ALL_SCOPES,
    ),
    "noise": Entry(
        "letheon.methods.noise:Noise",
        "Move the model by random noise of a given norm: the control for mere distance.",
        _ALL_SCOPES,
    ),
    "fedosd": Entry(
        "letheon.methods.fedosd:FedOSD",
        "Step where no retained client's update points, then train without going back; reads each update.",
        _ALL_SCOPES,
    ),
    "fedau": Entry(
        "letheon.methods.fedau:FedAU",
        "Blend a last layer trained on wrong labels into the model, then restore; features stay as they are.",
        _ALL_SCOPES,
    ),
    "fedau-in-training": Entry(
        "letheon.methods.fedau:FedAUInTraining",
        "FedAU with the wrong-label layers of all clients trained while the model learns.",
        ("client",),
    ),
    "pga": Entry(
        "letheon.methods.pga:PGA",
        "Ascend on the data to forget inside a ball around a model without it, then restore.",
        ("client", "class"),
    ),
    "federaser": Entry(
        "letheon.methods.federaser:FedEraser",
        "Replay the training run without a client, with steps of the recorded lengths; needs a history.",
        ("client",),
    ),
    "rapid-retraining": Entry(
        "letheon.methods.rapid:RapidRetraining",
        "Train anew on the retained data with Newton steps, for fewer rounds.",
        _ALL_SCOPES,
    ),
    "fused": Entry(
        "letheon.methods.fused:FUSED",
        "Overwrite with adapters on a frozen model: reversible, a control for methods that erase.",
        _ALL_SCOPES,
    ),
    "detach": Entry(
        "letheon.methods.detach:Detach",
        "Leave, and nothing else: the control for what continued training forgets by itself.",
        _ALL_SCOPES,
    ),
    "weight-distortion": Entry(
        "letheon.methods.distortion:WeightDistortion",
        "Add Gaussian noise to all weights, then restore on the retained data.",
        _ALL_SCOPES,
    ),
    "weight-distance": Entry(
        "letheon.methods.distance:WeightDistance",
        "Train on the retained data and be paid for the distance to the old model.",
        _ALL_SCOPES,
    ),
    "suppressed-recovery": Entry(
        "letheon.methods.suppressed:SuppressedRecovery",
        "Ascend without harm to the retained data, then recover without steps back; an ablation like FedCARE.",
        _ALL_SCOPES,
    ),
    "fedu": Entry(
        "letheon.methods.fedu:FedU",
        "Subtract the influence of the data to forget, balanced with training; an approximation of FedU.",
        _ALL_SCOPES,
    ),
    "ridge": Entry(
        "letheon.methods.ridge:Ridge",
        "Subtract samples exactly from a ridge head on a frozen random extractor; trains its own Origin.",
        _ALL_SCOPES,
    ),
    "fats": Entry(
        "letheon.methods.fats:FATS",
        "Train in small random draws; run again, exactly, from the first that the data were in; own Origin.",
        _ALL_SCOPES,
    ),
    "cop": Entry(
        "letheon.methods.held:Held",
        "Hold what earlier requests settled while another method (base) serves the next: COP for federations.",
        _ALL_SCOPES,
    ),
    "ga": _language("letheon.methods.ascent:GA", "ascend on the texts to forget."),
    "graddiff": _language("letheon.methods.ascent:GradDiff", "ascend there, descend on retained texts."),
    "ga-kl": _language("letheon.methods.ascent:GAKL", "ascend there, stay near the old model elsewhere."),
    "wga": _language("letheon.methods.ascent:WGA", "ascend, and leave alone what is unlikely already."),
    "npo": _language("letheon.methods.preference:NPO", "the old answer as the one not preferred."),
    "simnpo": _language("letheon.methods.preference:SimNPO", "NPO by length, without a reference model."),
    "dpo": _language("letheon.methods.preference:DPO", "a refusal preferred to the old answer."),
    "idk": _language("letheon.methods.refusal:IDK", "learn to refuse the questions."),
    "rmu": _language("letheon.methods.steering:RMU", "steer a block's output on the texts to forget."),
    "undial": _language("letheon.methods.steering:UNDIAL", "distil the old model with answers lowered."),
    "alkn": _language("letheon.methods.alkn:ALKN", "tune towards the texts in chosen entries, then negate."),
    "tfr-net": _language("letheon.methods.tfr:TFRNet", "close channels that requests share; after an abstract."),
}

TASKS: dict[str, Entry] = {
    "digits": Entry(
        "letheon.tasks.vision:Digits", "Handwritten digits of 8 by 8 pixels: small enough to train in seconds."
    ),
    "mnist5k": Entry("letheon.tasks.vision:MNIST5k", "A sample of 5,000 images of MNIST."),
    "mnist": Entry("letheon.tasks.vision:MNIST", "MNIST: 60,000 images to train on, 10,000 to test."),
    "cifar10": Entry("letheon.tasks.cifar:CIFAR10", "CIFAR-10: colour images of 32 by 32; ResNet-18 or HSViT."),
    "tiny-imagenet": Entry(
        "letheon.tasks.tiny_imagenet:TinyImageNet",
        "Tiny-ImageNet: colour images of 64 by 64 in 200 classes; HSViT or ResNet-18.",
    ),
    "people": Entry(
        "letheon.tasks.people:People",
        "Invented people, made by rule: language models without any download.",
        language=True,
    ),
    "tofu": Entry(
        "letheon.tasks.tofu:Tofu",
        "TOFU: questions about fictitious authors, forgotten in a stream of requests.",
        language=True,
    ),
    "rwku": Entry(
        "letheon.tasks.rwku:Rwku",
        "RWKU: what is known of famous people, forgotten in a stream of requests.",
        language=True,
    ),
}


def names(kind: Kind, *, language: bool | None = None) -> list[str]:
    """All names of a kind: the built-in ones in table order, then those of other packages in alphabetical order.

    Args:
        kind: of what.
        language: only what is for language models only (True), or only what is not (False).

    Raises:
        MethodError: two entries claim the same name (``ConfigError`` for tasks).
    """
    return [name for name, entry in _table(kind).items() if language in (None, entry.language)]


def entry(kind: Kind, name: str) -> Entry:
    """The entry called ``name``.

    Raises:
        MethodError: there is none, or two claim the name (``ConfigError`` for tasks).
    """
    table = _table(kind)
    if name not in table:
        known = ", ".join(table)
        raise _error(kind)(f"unknown {kind} {name!r}{did_you_mean(name, table)} Known {kind}s: {known}")
    return table[name]


def get(kind: Kind, name: str) -> type:
    """Import the class called ``name``.

    Raises:
        MethodError: there is none, or it cannot be imported (``ConfigError`` for tasks).
    """
    target = entry(kind, name).target
    module, _, path = target.partition(":")
    if not module or not path:
        raise _error(kind)(f"{kind} {name!r}: the entry {target!r} is not of the form 'module:Class'; correct it")
    try:
        found: object = reduce(getattr, path.split("."), import_module(module))
    except Exception as cause:  # whatever the module of another package raises while it is imported
        raise _error(kind)(
            f"{kind} {name!r}: {target} cannot be imported: {type(cause).__name__}: {cause}. "
            "Install what it needs, or correct the entry."
        ) from cause
    if not isinstance(found, type):
        raise _error(kind)(f"{kind} {name!r}: {target} is {found!r}, not a class; correct the entry")
    return found


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """How to end a complaint about ``word``: ``; did you mean 'x'?``, or a full stop if no known name is near."""
    near = get_close_matches(word.lower(), sorted(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else "."


def _error(kind: Kind) -> type[LetheonError]:
    return MethodError if kind == "method" else ConfigError


def _table(kind: Kind) -> Mapping[str, Entry]:
    table = dict(METHODS if kind == "method" else TASKS)
    for point in sorted(entry_points(group=f"letheon.{kind}s"), key=lambda point: (point.name, point.value)):
        new = Entry(point.value.partition("[")[0].strip(), f"From {_origin(point)}.")
        old = table.setdefault(point.name, new)
        if old.target != new.target:
            raise _error(kind)(
                f"{kind} {point.name!r} is claimed twice: by {old.target} and by {new.target} of {_origin(point)}. "
                "Rename the entry point, or uninstall its package."
            )
    return table


def _origin(point: EntryPoint) -> str:
    return f"the package {point.dist.name}" if point.dist is not None else "an unnamed package"
