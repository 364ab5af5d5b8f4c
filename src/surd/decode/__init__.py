"""From a model to sequences: greedy search, beam search, and whole lists of sources in batches."""
