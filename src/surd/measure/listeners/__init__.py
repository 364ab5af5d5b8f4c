"""Listeners: each hears one kind of call in a forward, and computes nothing of the model again."""
