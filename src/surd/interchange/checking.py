"""A whole check: opens its subject, lets the rules look, and tells in one message where nothing could be judged."""

import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, redirect_stdout

from surd.audit.judge import Report, judge
from surd.audit.refuse import refuse_numberless
from surd.audit.subject import Subject
from surd.audit.theirs import theirs
from surd.errors import SurdError
from surd.measure.sites import Trace

LOOKED_FOR = (
    "looked for scaled_dot_product_attention, nn.MultiheadAttention and flex attention, for a softmax whose input is a "
    "product of two activations, and for an output that depends on other positions than its own"
)


def judged(
    open_subject: Callable[[], Subject], select: Sequence[str] = (), ignore: Sequence[str] = (), static: bool = False
) -> Report:
    """The report. What a model prints goes to stderr, for stdout is the report's."""
    with redirect_stdout(sys.stderr), told():
        subject = open_subject()
        refuse_numberless(subject.weights)
        with _silenced():
            report = judge(subject, select, ignore, static)
    if subject.module is not None and not static:
        _refuse_blind(report, subject)
    return report


@contextmanager
def _silenced() -> Generator[None]:
    """Hugging Face's library does not remark on calls that are ours."""
    logging = sys.modules.get("transformers.utils.logging")
    if logging is None:
        yield
        return
    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)


@contextmanager
def told() -> Generator[None]:
    """What the model raises where no rule listens, and a memory that is too small, become one message."""
    try:
        yield
    except SurdError:
        raise
    except SystemExit as error:
        raise SurdError(f"the model ended the program (SystemExit {error.code})") from error
    except Exception as error:
        if (reason := theirs(error)) is None:
            raise
        raise SurdError(reason) from error


def _refuse_blind(report: Report, subject: Subject) -> None:
    """Where the model could not be run, or is no Transformer, an empty report would look like a healthy one."""
    if report.failing:
        return
    if report.blind:
        raise SurdError(f"{subject.name}: {report.blind}")
    if report.trace is not None and subject.declared.family is None and _without_attention(report.trace):
        raise SurdError(f"{subject.name}: no attention was found: {LOOKED_FOR}")


def _without_attention(trace: Trace) -> bool:
    """Neither attention nor anything else that joins positions."""
    return not trace.attention and not any(flow.sees_earlier or flow.sees_later for flow in trace.flows)
