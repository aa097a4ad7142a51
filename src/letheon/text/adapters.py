"""LoRA adapters as PEFT writes them: read from their folder and merged into the weights they were trained on."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from letheon.errors import ConfigError

CONFIG, WEIGHTS, PICKLED = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
PREFIX = "base_model.model."
HALVES = re.compile(r"(?P<layer>.+)\.(?P<kind>lora_|lora_embedding_)(?P<half>[AB])(\.weight)?")
OTHERWISE = "merge it where it was trained (peft: model.merge_and_unload(), then save_pretrained) and name that folder"
PLAIN_STARTS = (True, False, None, "gaussian", "eva")
"""Ways to begin an adapter that leave the model's own weights alone: W + s B A is then the whole of it."""
VARIANTS = (
    "use_dora",
    "use_qalora",
    "use_bdlora",
    "lora_bias",
    "layer_replication",
    "target_parameters",
    "trainable_token_indices",
    "alora_invocation_tokens",
    "arrow_config",
    "velora_config",
    "monteclora_config",
    "kasa_config",
    "ensure_weight_tying",
)
"""Settings under which the merged weight is not W + s B A, or there is none."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """A plain LoRA adapter in a folder.

    Attributes:
        folder: that holds it.
        base: the model it was trained on: a folder or a hub name.
        revision: of the base on the hub; None: the newest.
        settings: as PEFT wrote them.
    """

    folder: Path
    base: str
    revision: str | None
    settings: Mapping[str, Any]

    @classmethod
    def at(cls, name: str) -> Adapter | None:
        """The adapter in a folder; None if there is none, or no folder.

        Raises:
            ConfigError: it is of a kind that is not merged here, or damaged.
        """
        folder = Path(name).expanduser()
        if not (folder / CONFIG).is_file() or (folder / "config.json").is_file():
            return None
        try:
            settings = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
            base = settings["base_model_name_or_path"]
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{folder / CONFIG}: no adapter's settings ({error!r}); copy the folder again") from error
        if not isinstance(base, str) or not base:
            raise ConfigError(f"{folder / CONFIG}: names no base model; write it as base_model_name_or_path")
        found = cls(folder, base, settings.get("revision"), settings)
        if refused := found._refused():
            raise ConfigError(f"{folder}: an adapter with {refused} is not merged here; {OTHERWISE}")
        return found

    def _refused(self) -> str:
        told = self.settings
        if told.get("peft_type") != "LORA":
            return f"peft_type {told.get('peft_type')}"
        if told.get("bias", "none") != "none":
            return f"bias {told['bias']}"
        if (start := told.get("init_lora_weights", True)) not in PLAIN_STARTS:
            return f"init_lora_weights {start}"
        return next((name for name in VARIANTS if told.get(name)), "")

    @torch.no_grad()
    def merge(self, model: nn.Module) -> None:
        """Layers that were trained whole take their place, and W ← W + s B A for every adapted one.

        Raises:
            ConfigError: a tensor has no place in the model or another shape: the base is another one.
        """
        halves, whole = dict[str, dict[str, Tensor]](), dict[str, Tensor]()
        for name, tensor in self._tensors():
            found = HALVES.fullmatch(name)
            if found:
                halves.setdefault(found["layer"], {})[found["half"]] = tensor
            else:
                whole[name] = tensor
        if unpaired := [layer for layer, pair in halves.items() if len(pair) != 2]:
            raise ConfigError(f"{self.folder / WEIGHTS}: {unpaired[0]} has only one half; copy the file again")
        for name, tensor in whole.items():
            weight = self._weight(model, name)
            weight.copy_(self._fitting(name, tensor, weight))
        for layer, pair in halves.items():
            change = self._scale(layer, len(pair["A"])) * (pair["B"].float() @ pair["A"].float())
            weight = self._weight(model, f"{layer}.weight")
            turned = type(model.get_submodule(layer)).__name__ in ("Conv1D", "Embedding")
            weight += self._fitting(layer, change.mT if turned else change, weight)

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        path = self.folder / WEIGHTS
        if not path.is_file() and (self.folder / PICKLED).is_file():
            raise ConfigError(f"{self.folder / PICKLED}: a pickle can run code and is not opened; save as safetensors")
        try:
            tensors = safetensors.torch.load_file(path)
        except (OSError, safetensors.SafetensorError) as error:
            raise ConfigError(f"{path}: cannot be read ({error}); copy the folder again") from error
        for name, tensor in tensors.items():
            yield name.removeprefix(PREFIX).replace(".base_layer.", "."), tensor

    def _scale(self, layer: str, rank: int) -> float:
        """S = α/r, or α/√r with rsLoRA; α may be a layer's own."""
        own = self.settings.get("alpha_pattern") or {}
        alphas = [alpha for pattern, alpha in own.items() if re.fullmatch(rf"(.*\.)?({pattern})", layer)]
        alpha = float(alphas[0] if alphas else self.settings["lora_alpha"])
        return float(alpha / (rank**0.5 if self.settings.get("use_rslora") else rank))

    def _weight(self, model: nn.Module, name: str) -> Tensor:
        shared = dict(model.named_parameters(remove_duplicate=False))
        if name not in shared:
            raise ConfigError(f"{self.folder}: {name} is nowhere in {self.base}; the adapter is of another model")
        twins = [other for other, p in shared.items() if p is shared[name] and other != name]
        if twins:
            raise ConfigError(f"{self.folder}: {name} is tied to {twins[0]}, which would change too; {OTHERWISE}")
        return shared[name]

    def _fitting(self, name: str, tensor: Tensor, weight: Tensor) -> Tensor:
        if tensor.shape != weight.shape:
            raise ConfigError(
                f"{self.folder}: {name} is {tuple(tensor.shape)}, and {self.base} has {tuple(weight.shape)}; the "
                "adapter is of another model, or of one whose vocabulary was resized"
            )
        return tensor.to(weight)
