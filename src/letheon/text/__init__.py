"""Language models: pairs of question and answer, their encoding, the losses that unlearn, and what a model answers.

Only ``letheon.text.language`` imports transformers (the extra ``llm``).
"""
