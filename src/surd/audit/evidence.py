"""Evidence: what the rules of one check share, each observation made once, when the first rule asks for it."""

from collections.abc import Callable, Mapping
from functools import cached_property
from math import prod
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from surd.audit.declared import Declared
from surd.audit.finding import Unobserved
from surd.audit.heads import Heads, head_values
from surd.audit.subject import Subject
from surd.audit.theirs import theirs
from surd.audit.weights import Weights
from surd.errors import SurdError, raised
from surd.measure.calling.backends import backend, has_other, switched
from surd.measure.calling.building import build_inputs
from surd.measure.calling.hearing import hear
from surd.measure.calling.inputs import Inputs, arguments, replaced, signature_of, tensors
from surd.measure.calling.restore import preserved
from surd.measure.drawn import has_learned, is_drawn
from surd.measure.listeners.extremes import Hearing
from surd.measure.listeners.norms import Norm, Norms
from surd.measure.listeners.rotation import Rotations
from surd.measure.listeners.temperature import Temperatures
from surd.measure.listeners.twice import Softmaxes
from surd.measure.probe import probe, unwrapped
from surd.measure.sites import Attention, Head, Trace
from surd.measure.tensors import dense, rms
from surd.measure.trials.mixing import Mixing, observe
from surd.measure.trials.padded import Padded, read_padding
from surd.measure.trials.target_weights import TargetWeights, weights_of_labels, weights_of_loss

SPOILT = "a row of the given batch sees no key, so that outputs are not finite: mend that first"
IGNORED = -100
"""A label that is no target, to torch and to Hugging Face's library."""


class Evidence:
    """Observations of one subject. What cannot be had raises `Unobserved`, and the rule that asked is skipped.

    A measurement that several rules share is a cached property here; one that a single rule makes stands in its file,
    or in `surd.measure` where it is worth having by itself.
    """

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.shared: dict[str, Any] = {}

    @property
    def declared(self) -> Declared:
        """What is stated of the model."""
        return self.subject.declared

    @property
    def weights(self) -> Weights:
        """Its tensors, for static rules."""
        return self.subject.weights

    @cached_property
    def module(self) -> nn.Module:
        """The live module, without wrappers."""
        if self.subject.module is None:
            still = self.weights.in_memory
            raise Unobserved(
                "nothing is to be run" if still else "only a file of weights was given: nothing can be run"
            )
        return unwrapped(self.subject.module)

    @cached_property
    def inputs(self) -> Inputs:
        """Of one call: those given, or built from the signature."""
        if self.subject.inputs is not None:
            return self.subject.inputs
        return once(self.shared, "inputs", lambda: build_inputs(self.module))

    @cached_property
    def trace(self) -> Trace:
        """What one probe saw."""
        return once(self.shared, "trace", lambda: probe(self.module, self.inputs, self.subject.loss))

    @cached_property
    def trained(self) -> bool:
        """Whether the model has been trained, as far as its weights tell."""
        if self.subject.trained is not None:
            return self.subject.trained
        vectors = (self.weights.tensor(name) for name in self.weights.names() if len(self.weights.shape(name)) == 1)
        return has_learned(vectors) or self.grown

    @cached_property
    def grown(self) -> bool:
        """Whether training shows in its matrices, so that one of them that is as it was drawn stands out."""
        return not is_drawn(self.weights.top(name) for name, _ in self.weights.matrices())

    def size(self, site: str) -> float | None:
        """The rms that was measured at a site; of scores, their deviation from the mean of the row."""
        return self._sizes.get(site)

    @cached_property
    def _sizes(self) -> dict[str, float]:
        return {reading.site.name: reading.rms for reading in self.trace.readings}

    @cached_property
    def outputs(self) -> list[Tensor]:
        """What one forward in eval mode returns, in order."""
        return self.run()

    @cached_property
    def spoilt(self) -> str:
        """Why the numbers of the forward say nothing: a row of the given batch sees no key; empty where they do."""
        try:
            if all(bool(x.isfinite().all()) for x in self.outputs if x.is_floating_point()):
                return ""
            return SPOILT if any(one.empty for one in self.mixing.scores) else ""
        except Unobserved:
            return ""

    @cached_property
    def dtype(self) -> torch.dtype:
        """The type that most of the model's numbers have."""
        counts: dict[torch.dtype, int] = {}
        for name in self.weights.names():
            if (dtype := self.weights.dtype(name)).is_floating_point:
                counts[dtype] = counts.get(dtype, 0) + self.weights.shape(name).numel()
        return max(counts, key=lambda dtype: counts[dtype]) if counts else torch.float32

    @cached_property
    def attention(self) -> tuple[Attention, ...]:
        """Every attention of the probe; a model that mixes positions by what was not seen is not judged healthy."""
        if not self.trace.attention:
            raise Unobserved("; ".join(f"{one.what}: {one.reason}" for one in self.trace.unseen) or "no attention")
        return self.trace.attention

    @cached_property
    def attended(self) -> tuple[Attention, ...]:
        """The same; the report shows what the softmax of each of their heads does."""
        shown = [one for one in self.attention if one.softmax is not None]
        self.shared["heads"] = tuple(Heads(site=one.name, values=head_values(one)) for one in shown)
        return self.attention

    @cached_property
    def head(self) -> Head:
        """The pre-softmax projection."""
        if self.trace.head is None:
            raise Unobserved("no head was seen: no output as wide as a table of tokens comes from one projection")
        return self.trace.head

    @cached_property
    def logits(self) -> Tensor:
        """What the head makes of the probe's inputs, the classes on the last axis."""
        assert self.head is not None, "without one there are no logits, and nobody is told of any"
        rows = {table.rows for table in self.trace.embeddings}
        found = [x for x in self.outputs if x.is_floating_point() and x.dim() and {x.shape[-1], x.shape[-1] + 1} & rows]
        if not found:
            raise Unobserved("the logits are not among what the model returns")
        return found[0].float()

    @cached_property
    def tokens(self) -> Tensor | None:
        """The ids that stand at the positions of the logits; those of the decoder, where there is one.

        They are what its table was asked for: of the arguments, labels and masks have the same shape.
        """
        *shape, classes = self.logits.shape
        fit = [x for x, rows in self._looked_up(tuple(shape)) if rows in (classes, classes + 1)]
        return fit[-1] if fit else None

    def _looked_up(self, shape: tuple[int, ...]) -> list[tuple[Tensor, int]]:
        """Ids that stand at so many places, in this order, and how many rows their table has; not one id everywhere."""
        found = []
        for table in self.trace.embeddings:
            ids = table.ids
            if ids is None or ids.numel() != prod(shape) or bool((ids == ids.flatten()[0]).all()):
                continue
            if ids.dim() == 2 and len(shape) == 2 and tuple(ids.shape) != shape:
                ids = ids.mT if tuple(ids.mT.shape) == shape else None
            if ids is not None:
                found.append((ids.reshape(shape).long(), table.rows))
        return found

    @cached_property
    def targets(self) -> TargetWeights:
        """How much each position counts in the loss that was given, or in the one that the model makes of labels."""
        return once(self.shared, "targets", self._targets)

    def _targets(self) -> TargetWeights:
        loss = self._loss
        if loss is not None:
            found = weights_of_loss(self.module, self.inputs, loss)
        elif "labels" in signature_of(self.module).parameters and isinstance(self.inputs, Mapping):
            found = weights_of_labels(self.module, self.inputs, self._labels)
        else:
            raise SurdError("no loss was given")
        if found is None:
            raise SurdError("the loss is no cross-entropy of what the model returns")
        return found

    @cached_property
    def _loss(self) -> Callable[[Any], Tensor] | None:
        """The one that was given, or that of a forward which takes its targets and returns a number beside logits."""
        if self.subject.loss is not None:
            return self.subject.loss
        numbers = [place for place, x in enumerate(self.outputs) if x.is_floating_point() and x.dim() == 0]
        if len(numbers) != 1 or len(self.outputs) < 2:
            return None
        return lambda output: list(tensors(output))[numbers[0]]

    @cached_property
    def _labels(self) -> Tensor:
        """Random ones; what is to be ignored, at the ends of every other row, as Hugging Face's library writes it."""
        shape = self.logits.shape[:-1]
        labels = torch.randint(self.logits.shape[-1], shape, generator=torch.Generator().manual_seed(3))
        labels[1::2, shape[1] // 2 :] = IGNORED
        return labels.to(self.logits.device)

    @cached_property
    def untargeted(self) -> Tensor | None:
        """Which positions of the loss are padding and are followed by padding, so that no target stands there."""
        if self._loss is None:
            return _with_next(self._labels == IGNORED) if len(self._labels) > 1 else None
        tables = [x for x in self.module.modules() if isinstance(x, nn.Embedding) and x.padding_idx is not None]
        stated = self.declared.padding
        padding = stated.value if stated is not None else tables[0].padding_idx if tables else None
        given = self.subject.inputs is not None
        # A mask of ones and zeros, or the labels, has the shape of the tokens, and is none of them.
        fit = [ids for ids, _ in self._looked_up(self.targets.shape) if ids.dim() == 2 and int(ids.max()) > 1]
        if padding is None and fit and given:
            padding = _run_at_ends(fit[-1])
        return None if padding is None or not fit else _with_next(fit[-1] == padding)

    @cached_property
    def heard(self) -> tuple[Hearing, Rotations, Temperatures, Softmaxes]:
        """Largest numbers, angles, learned temperatures and repeated softmaxes, of one forward and of the loss."""
        listeners = Hearing(self.module), Rotations(self.module), Temperatures(self.module), Softmaxes(self.module)
        try:
            hear(self.module, self.inputs, self.subject.loss, *listeners)
        except Exception as error:
            raise Unobserved(f"the forward raised {raised(error)}") from error
        return listeners

    @cached_property
    def norms(self) -> list[Norm]:
        """Every norm of one forward, as it really computes."""
        listener = Norms(self.module)
        try:
            hear(self.module, self.inputs, None, listener)
        except Exception as error:
            raise Unobserved(f"the forward raised {raised(error)}") from error
        return listener.finished()

    @cached_property
    def mixing(self) -> Mixing:
        """What positions, heads and rows of the batch pass to each other in one forward."""
        return once(self.shared, "mixing", lambda: observe(self.module, self.inputs, self.subject.loss))

    @cached_property
    def padded(self) -> Padded:
        """What one forward shows with padding in the first row."""
        stated = self.declared.padding
        tables = [x.padding_idx for x in self.module.modules() if isinstance(x, nn.Embedding)]
        ids = [stated.value] if stated else [number for number in tables if number is not None]
        padding = ids[0] if ids else None
        plain = self.mixing.outputs
        return once(self.shared, "padded", lambda: read_padding(self.module, self.inputs, plain, padding))

    @cached_property
    def other_backend(self) -> tuple[str, Trace] | None:
        """Its attention computed the other way, where it has one and it gives other outputs: its name, and a probe."""
        if not has_other(self.module):
            return None
        usual = self.outputs  # before the switch
        with switched(self.module):
            try:
                if all(map(_same, usual, self.run())):
                    return None
                return backend(self.module), probe(self.module, self.inputs)
            except (Unobserved, SurdError, RuntimeError):
                return None  # this side of the switch is not open here

    def run(self, inputs: Inputs | None = None) -> list[Tensor]:
        """The tensors that one forward returns, in eval mode and without a graph; the model stays as it was."""
        given = replaced(self.inputs if inputs is None else inputs, lambda x: x.clone())
        args, kwargs = arguments(given)
        with preserved(self.module), torch.no_grad():
            try:
                return [dense(x.detach()).clone() for x in tensors(self.module(*args, **kwargs))]
            except Exception as error:
                raise Unobserved(f"the forward raised {raised(error)}") from error


def _run_at_ends(ids: Int[Tensor, "batch length"]) -> int | None:
    """The id with which shorter rows are filled up: it stands at their ends, in runs, and nowhere else."""
    ends = (ids == ids[:, -1:]).flip(1).cummin(1).values.flip(1)
    filled = ends.sum(1) > 1
    found = ids[filled, -1].unique()
    if len(found) != 1 or bool(filled.all()) or int(ends[filled].sum()) < 3:
        return None
    return None if bool(((ids == found) & ~ends).any()) else int(found)


def _with_next(here: Bool[Tensor, "batch length"]) -> Bool[Tensor, " positions"]:
    """Where something is, and is at the next place too: a loss may look one place ahead."""
    return (here & torch.cat([here[:, 1:], here[:, -1:]], 1)).flatten()


def _same(one: Tensor, other: Tensor) -> bool:
    """Up to the order of summation."""
    return one.shape == other.shape and rms(one.float() - other.float()) <= 1e-5 * rms(other.float())


def once(shared: dict[str, Any], name: str, make: Any) -> Any:
    """The value that was made before, or the reason it could not be, without trying again."""
    if name not in shared:
        try:
            shared[name] = make()
        except SurdError as error:
            shared[name] = Unobserved(str(error))
        except Exception as error:
            if (reason := theirs(error)) is None:
                raise
            shared[name] = Unobserved(reason)
    if isinstance(shared[name], Unobserved):
        raise shared[name]
    return shared[name]
