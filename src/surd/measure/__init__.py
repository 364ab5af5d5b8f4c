"""Measurement: what a Transformer does to its numbers, observed on any module and held against theory.

`calling` calls somebody else's module and leaves it as it was; `trace` notes what one forward did; `reading` tells
scales from the notes, and `listeners` hear what notes would be too many of. The `probe` is all of that in one call.
`trials` call a module again with one thing changed, `watching` listens in somebody's own training, for the `watch`. The
`ledger` holds what a probe reads against what `signal` and `moments` predict.
"""
