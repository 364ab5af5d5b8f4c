"""Measurement: what a Transformer does to its numbers, observed on any module and held against theory."""
