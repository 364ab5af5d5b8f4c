"""Metrics: how good an output is beside its references, each number with the signature of how it was made."""
