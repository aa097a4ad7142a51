"""Metrics of language models as pure functions of token ids, log-probabilities and strings. No model is run here.

Each definition carries a version; a changed number raises it. Values of single items are in the field's units, a share
being in [0, 1]; a ``Measurement`` of shares is in per cent, as everywhere.
"""

VERSIONS: dict[str, int] = {
    "probability": 1,
    "option_probability": 1,
    "rouge_l_recall": 1,
    "log_truth_ratio": 1,
    "truth_ratio": 1,
    "model_utility": 1,
    "forget_quality": 1,
    "exact_memorization": 1,
    "extraction_strength": 1,
    "knowledge_retention": 1,
    "resurfacing": 1,
    "relapse": 1,
    "degenerate": 1,
    "fluency": 1,
    "mia_loss": 1,
    "mia_zlib": 1,
    "mia_min_k": 1,
    "mia_min_k_plus_plus": 1,
    "mia_reference": 1,
    "membership": 1,
}


def definition(name: str, form: str = "") -> str:
    """What a number is called in files, e.g. ``extraction_strength/1:strict``: name, version, which of its forms."""
    return f"{name}/{VERSIONS[name]}{':' if form else ''}{form}"
