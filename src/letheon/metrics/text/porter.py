"""The Porter stemmer, in the dialect that the field's ROUGE numbers rest on.

The algorithm is Porter's (Program 14, 1980). The dialect is NLTK's: a dozen irregular words, ``-ies`` and ``-ied``
of four letters keep ``ie``, a final y turns to i after any consonant but the first letter, two letters of vowel and
consonant count as a short syllable, and step 2 knows ``-bli``, ``-fulli`` and ``-logi``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise

Rule = tuple[str, str, Callable[[str], bool]]

IRREGULAR = {
    "skies": "sky", "sky": "sky", "dying": "die", "lying": "lie", "tying": "tie", "news": "news", "innings": "inning",
    "inning": "inning", "outings": "outing", "outing": "outing", "cannings": "canning", "canning": "canning",
    "howe": "howe", "proceed": "proceed", "exceed": "exceed", "succeed": "succeed",
}  # fmt: skip
STEP2 = {
    "ational": "ate", "tional": "tion", "enci": "ence", "anci": "ance", "izer": "ize", "bli": "ble", "alli": "al",
    "entli": "ent", "eli": "e", "ousli": "ous", "ization": "ize", "ation": "ate", "ator": "ate", "alism": "al",
    "iveness": "ive", "fulness": "ful", "ousness": "ous", "aliti": "al", "iviti": "ive", "biliti": "ble",
    "fulli": "ful",
}  # fmt: skip
STEP3 = {"icate": "ic", "ative": "", "alize": "al", "iciti": "ic", "ical": "ic", "ful": "", "ness": ""}
STEP4 = (
    "al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "ou", "ism", "ate", "iti", "ous",
    "ive", "ize",
)  # fmt: skip


@lru_cache(maxsize=65536)
def stem(word: str) -> str:
    """The stem of a word in lower case. Words of one or two letters are their own."""
    if word in IRREGULAR:
        return IRREGULAR[word]
    if len(word) <= 2:
        return word
    for step in (_plural, _past, _final_y, _double_suffix, _suffix, _long_suffix, _final_e, _final_l):
        word = step(word)
    return word


def _is_consonant(word: str, i: int) -> bool:
    if word[i] == "y":
        return i == 0 or not _is_consonant(word, i - 1)
    return word[i] not in "aeiou"


def _measure(part: str) -> int:
    """How often a vowel is followed by a consonant: m of [C](VC)^m[V]."""
    kinds = [_is_consonant(part, i) for i in range(len(part))]
    return sum(after and not before for before, after in pairwise(kinds))


def _has_vowel(part: str) -> bool:
    return not all(_is_consonant(part, i) for i in range(len(part)))


def _ends_short(word: str) -> bool:
    """Ends consonant, vowel, consonant other than w, x, y; or is a vowel and a consonant."""
    n = len(word)
    if n == 2:
        return not _is_consonant(word, 0) and _is_consonant(word, 1)
    return (
        n > 2
        and _is_consonant(word, n - 3)
        and not _is_consonant(word, n - 2)
        and _is_consonant(word, n - 1)
        and word[-1] not in "wxy"
    )


def _ends_double(word: str) -> bool:
    return len(word) > 1 and word[-1] == word[-2] and _is_consonant(word, len(word) - 1)


def _by_rules(word: str, rules: list[Rule]) -> str:
    """The first rule whose ending fits decides, whether its condition holds or not."""
    for ending, replacement, condition in rules:
        if word.endswith(ending):
            part = word[: len(word) - len(ending)]
            return part + replacement if condition(part) else word
    return word


def _plural(word: str) -> str:
    if word.endswith("ies") and len(word) == 4:
        return word[:-1]
    if word.endswith(("sses", "ies")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _past(word: str) -> str:
    if word.endswith("ied"):
        return word[:-1] if len(word) == 4 else word[:-2]
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    for ending in ("ed", "ing"):
        part = word.removesuffix(ending)
        if part != word and _has_vowel(part):
            return _repaired(part)
    return word


def _repaired(part: str) -> str:
    """What -ed or -ing was taken from: hop(p)ing, fil(e)ing."""
    if part.endswith(("at", "bl", "iz")):
        return part + "e"
    if _ends_double(part):
        return part if part[-1] in "lsz" else part[:-1]
    return part + "e" if _measure(part) == 1 and _ends_short(part) else part


def _final_y(word: str) -> str:
    is_after_consonant = len(word) > 2 and _is_consonant(word, len(word) - 2)
    return word[:-1] + "i" if word.endswith("y") and is_after_consonant else word


def _double_suffix(word: str) -> str:
    if word.endswith("alli") and _measure(word[:-4]) > 0:
        return _double_suffix(word[:-2])
    if word.endswith("logi"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    return _by_rules(word, [(ending, new, lambda part: _measure(part) > 0) for ending, new in STEP2.items()])


def _suffix(word: str) -> str:
    return _by_rules(word, [(ending, new, lambda part: _measure(part) > 0) for ending, new in STEP3.items()])


def _long_suffix(word: str) -> str:
    rules: list[Rule] = [(ending, "", lambda part: _measure(part) > 1) for ending in STEP4]
    rules.append(("ion", "", lambda part: _measure(part) > 1 and part[-1] in "st"))
    return _by_rules(word, rules)


def _final_e(word: str) -> str:
    part = word.removesuffix("e")
    m = _measure(part)
    return part if part != word and (m > 1 or (m == 1 and not _ends_short(part))) else word


def _final_l(word: str) -> str:
    return word[:-1] if word.endswith("ll") and _measure(word[:-1]) > 1 else word
