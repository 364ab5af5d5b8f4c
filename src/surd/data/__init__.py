"""From raw text to batches: reading, cleaning, holding out, tokenising and batching pairs of text."""
