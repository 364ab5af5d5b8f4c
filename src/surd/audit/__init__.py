"""Audit: what `surd check` says of a Transformer's scales, from what was observed."""
