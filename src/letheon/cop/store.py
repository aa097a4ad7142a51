"""A file of bases that says where they come from, and is refused where they do not belong."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import safetensors
import safetensors.torch

from letheon import __version__, tree
from letheon.cop.basis import Basis, from_params, served, to_params
from letheon.cop.layers import Spaces
from letheon.errors import JournalError
from letheon.files import write
from letheon.journal import checksum

VERSION = "1"


@dataclass(frozen=True)
class Provenance:
    """Where bases come from. What each request added, and its energies, is in the bases themselves.

    Attributes:
        model: digest of the model as it was when the bases were saved, such as ``tree.digest`` of its parameters; after
            guarded training the model is another one, so save again.
        requests: an id for each request by its number: a digest of its forget set's ids, no name of a person.
        spaces: the layers of each space.
        settings: caps, weighting, and whatever else is worth knowing.
        code: version of Letheon that wrote the file.
    """

    model: str
    requests: tuple[str, ...]
    spaces: Mapping[str, tuple[str, ...]]
    settings: Mapping[str, bool | int | float | str | None]
    code: str = __version__


def save(path: Path, bases: Mapping[str, Basis], provenance: Provenance) -> None:
    """Write the bases and their provenance as one safetensors file: whole or not at all.

    One file and no sidecar, so that the two cannot part.

    Raises:
        ValueError: a basis and the provenance name different spaces, or a request has no id.
        JournalError: the file cannot be written.
    """
    if bases.keys() != provenance.spaces.keys():
        raise ValueError(f"cop: bases of {sorted(bases)}, but provenance of {sorted(provenance.spaces)}")
    known = served(bases)
    if known > len(provenance.requests):
        raise ValueError(f"cop: the bases are of {known} requests, provenance names {len(provenance.requests)}")
    tensors = {name: tensor.contiguous() for name, tensor in tree.clone(to_params(bases)).items()}
    told = {"version": VERSION, "provenance": json.dumps(asdict(provenance), sort_keys=True)}
    write(path, safetensors.torch.save(tensors, told | {"sha256": checksum(tensors, told)}))


def load(path: Path, *, model: str, spaces: Spaces | None = None) -> tuple[dict[str, Basis], Provenance]:
    """The inverse of ``save``, for the model that the bases belong to.

    Args:
        path: of the file.
        model: digest of the model at hand.
        spaces: if given, the spaces that the model at hand has.

    Raises:
        JournalError: the file is truncated, altered, of another kind, of another model, or of other spaces.
    """
    try:
        with safetensors.safe_open(str(path), framework="pt") as file:
            told = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except (OSError, safetensors.SafetensorError) as error:
        raise JournalError(f"{path}: missing, truncated or not a file of bases ({error})") from error
    if told.pop("sha256", None) != checksum(tensors, told) or told.get("version") != VERSION:
        raise JournalError(f"{path}: altered after it was written, or of another version than {VERSION}")
    content = json.loads(told["provenance"])
    content |= {
        "requests": tuple(content["requests"]),
        "spaces": {space: tuple(names) for space, names in content["spaces"].items()},
    }
    provenance = Provenance(**content)
    if provenance.model != model:
        raise JournalError(
            f"{path}: belongs to model {provenance.model[:12]}, not to {model[:12]}; use the model that it was saved "
            "with. If that model was trained further under a guard with these bases, save them again with it."
        )
    if spaces is not None and provenance.spaces != {space: tuple(names) for space, names in spaces.items()}:
        raise JournalError(f"{path}: has the spaces {dict(provenance.spaces)}, the model at hand has {dict(spaces)}")
    return from_params(tensors), provenance
