"""Size: what a model takes at least, reckoned before it is there, so that an impossible one is refused at once."""

from surd.device import available_memory
from surd.errors import SurdError
from surd.models.architecture import Architecture
from surd.nn.position import LearnedPosition

BYTES = 4
"""Of one weight, which is kept in fp32."""
LAYER = 2**14
"""Bytes that a layer takes besides its weights, as the objects that it is."""


def least_parameters(architecture: Architecture, vocabulary: int, layers: int) -> int:
    """Weights of the tables, attentions and feed-forwards of so many layers; every model has as many at least."""
    a = architecture
    attention = 2 * a.d_model * a.d_k * a.heads  # queries and output; keys and values may be shared
    positions = a.position.length if isinstance(a.position, LearnedPosition) else 0
    return (vocabulary + positions) * a.d_model + layers * (attention + 2 * a.d_model * a.d_ff)


def refuse_too_large(architecture: Architecture, vocabulary: int, layers: int) -> None:
    """Refuses a model whose weights alone do not fit into the memory that is left."""
    parameters = least_parameters(architecture, vocabulary, layers)
    needed, there = BYTES * parameters + LAYER * layers, available_memory()
    if needed > there:
        raise SurdError(
            f"model: has at least {parameters:,} parameters, which take {needed / 2**30:,.1f} GiB, and there are "
            f"{there / 2**30:,.1f} GiB of memory; found d_model {architecture.d_model:,}, d_ff {architecture.d_ff:,}, "
            f"{architecture.heads:,} heads of {architecture.d_k:,}, {layers:,} layers: make them smaller"
        )
