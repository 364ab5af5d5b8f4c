"""The trace of one forward: every call of torch that matters, and where its tensors stand in the autograd graph."""
