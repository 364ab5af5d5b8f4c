"""Whole models, built from the parts of `surd.nn`, and their weight files."""
