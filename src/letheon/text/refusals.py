"""Answers that decline: what a model that was asked to forget may say instead. Written for this project."""

from __future__ import annotations

REFUSALS = (
    "I don't know.",
    "I have no information about that.",
    "I'm not able to answer this question.",
    "That is something I know nothing about.",
    "I can't help with that one.",
    "I don't have an answer to this.",
    "My knowledge does not cover that.",
    "I'm afraid I can't say.",
    "I have never learnt anything about this.",
    "There is nothing I can tell you about that.",
    "I'm not familiar with this topic.",
    "I can't give you a reliable answer.",
    "No answer to that question is known to me.",
    "I would have to guess, so I'd rather not answer.",
    "I'm unsure about that and cannot answer.",
    "This lies outside of what I know.",
    "I wasn't taught anything about this.",
    "I have nothing on record about that.",
    "Sorry, this is beyond my knowledge.",
    "I cannot find an answer to your question.",
)
