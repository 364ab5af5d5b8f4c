"""The loop: updates, looks at held-out text, checkpoints and the end, told as events."""

import math
import time
from collections.abc import Iterator
from dataclasses import asdict, replace

import torch

from surd.errors import SurdError, raised
from surd.files import flush
from surd.measure.ledger import ledger
from surd.measure.watch import watch
from surd.measure.watching.alarms import NON_FINITE
from surd.measure.watching.vitals import Alarm
from surd.run import Run
from surd.run.checked import checked, keep
from surd.run.lock import held
from surd.training.checkpoint import Evaluation, State, all_tensors, random_tensors
from surd.training.disk import refusals_told
from surd.training.evaluate import Stop, Stopped, held_out_nll, never
from surd.training.events import (
    Alarmed,
    Checked,
    Evaluated,
    Event,
    Interrupted,
    Preparing,
    Progress,
    Saved,
    Started,
    Verdict,
    Weighed,
)
from surd.training.fingerprint import Fingerprints
from surd.training.finish import finish
from surd.training.journal import Journal
from surd.training.pace import Clock, Costs
from surd.training.session import Session, Update, advance, begin
from surd.training.step import StepResult
from surd.training.verdict import beats_frequencies, judge

LOG_EVERY = 10
"""Updates between two lines of the journal."""
SAVE_SECONDS = 600.0
"""Longest time between two checkpoints: what a power cut can cost."""
LATEST_VERDICT = (50, 1000)
"""The update by which the first sentence about learning is said: a fifth of all, but not outside these."""


def train(run: Run, stop: Stop = never, costs: Costs | None = None) -> Iterator[Event]:
    """Trains, or goes on training, the run in its folder until its recipe says it is done.

    `stop` is asked after every update; once it says yes, a checkpoint is written and the last event is `Interrupted`.
    `costs` are what a calibration has measured, for the time estimate. While it lasts, the folder is locked.
    """
    with held(run.folder):
        yield from _train(run, stop, costs)


def _train(run: Run, stop: Stop, costs: Costs | None) -> Iterator[Event]:
    yield Preparing(doing="the model")
    for leftover in run.folder.glob(".*.partial"):  # what a kill left half written
        leftover.unlink()
    session = begin(run)
    state = session.resume()
    notes = (*session.too_long(), *session.notes(state))
    if state.start is None:
        state = replace(state, start=held_out_nll(session.model, session.held_out, session.device))
    scales = (Weighed(ledger=ledger(session.model)), _check(session)) if state.step == 0 else ()  # no clock runs yet
    with refusals_told(run, session.checkpoints):
        loop = _Loop(session, replace(state, setting=session.setting()), Clock(state.seconds, costs), stop)
        yield loop.started(notes)
        yield from scales
        yield from loop.events()


def _check(session: Session) -> Checked:
    """Judges the model that the training begins with, and leaves the report in the run's folder."""
    try:
        report = checked(session.model, trained=bool(session.run.about.get("origin")))
    except Exception as error:  # whatever is wrong with the check is no reason not to train
        return Checked(report=None, reason=raised(error))
    keep(session.run, report)
    return Checked(report=report)


class _Loop:
    """The moving parts of `train`."""

    def __init__(self, session: Session, state: State, clock: Clock, stop: Stop) -> None:
        self.session, self.state, self.clock, self.stop = session, state, clock, stop
        self.training = session.recipe.training
        assert self.training.steps is not None, "its first rate was asked for"
        self.steps = self.training.steps
        self.journal = Journal(session.run.folder, keep=state.journal)
        self.fingerprints = Fingerprints(session.run.folder)
        self.fingerprints.cut(state.step)
        assert state.start is not None, "a state is measured before its first update"
        self.yardsticks = session.yardsticks(state.start)
        self.saved = state if state.step else None
        self.saved_at = time.monotonic()
        self.epoch = (state.epoch, session.epoch_batches(state.epoch))
        self.window, self.norm = math.inf, 0.0
        self.alarms: list[Alarm] = []
        every = self.training.watch_every
        self.watch = (
            watch(
                session.model,
                session.optimizer,
                every=every,
                tell=self.alarms.append,
                start=state.step,
                memory=state.watch,
            )
            if every
            else None
        )

    def started(self, notes: tuple[str, ...]) -> Started:
        session, costs = self.session, self.clock.costs
        parameters, shared = session.model.parameter_counts()
        return Started(
            step=self.state.step,
            steps=self.steps,
            sequences=session.data.sequences,
            held_out=session.data.held_out_sequences,
            units=session.data.units,
            epoch_batches=self.epoch[1],
            parameters=parameters,
            shared=shared,
            device=str(session.device),
            precision=session.precision,
            threads=torch.get_num_threads(),
            costs=costs,
            seconds=costs.expected(self.steps, self.training.evaluate_every) if costs else None,
            start=self.yardsticks.start,
            uniform=self.yardsticks.uniform,
            frequencies=self.yardsticks.frequencies,
            notes=notes,
        )

    def events(self) -> Iterator[Event]:
        updates = self.session.updates(self.state)
        self._make_best_usable()
        try:
            while True:
                if self.stop():
                    raise Stopped
                if self._evaluation_due():
                    began = time.monotonic()
                    yield from self._evaluate(updates)
                    yield from self._save()
                    self.clock.evaluated(time.monotonic() - began)
                elif why := self._end():
                    yield from finish(self.session, self.state, why, self.clock.spent(), self.stop)
                    return
                else:
                    yield self._update(next(updates))
                    yield from self._alarms()
                    yield from self._verdict()
                    if time.monotonic() - self.saved_at > SAVE_SECONDS and not self._evaluation_due():
                        yield from self._save()
        except Stopped:
            yield from self._save()
            yield Interrupted(step=self.state.step, run=self.session.run.folder)
        finally:
            if self.watch is not None:
                self.watch.close()

    def _evaluation_due(self) -> bool:
        step = self.state.step
        on_time = step % self.training.evaluate_every == 0 or step >= self.steps
        return step > 0 and on_time and self.state.evaluated != step

    def _end(self) -> str:
        """Why training is over; empty while it is not."""
        if self.state.step >= self.steps:
            return f"its {self.steps:,} updates are done"
        if self.training.patience and self.state.waited >= self.training.patience:
            return f"the held-out score has not improved for {self.state.waited} evaluations"
        return ""

    def _update(self, update: Update) -> Progress:
        step, session = self.state.step + 1, self.session
        rate = session.rate(step)
        result = session.step(step, update, self.watch.before_update if self.watch is not None else lambda: None)
        if self.watch is not None:
            self.watch.step(result.loss)
        if not result.finite:
            raise SurdError(self._not_finite(step, rate, result))
        tokens = result.source_tokens + result.target_tokens
        self.state = advance(self.state, update, result.loss, result.nll, result.target_tokens, tokens)
        self.fingerprints.update(step, all_tensors(session.model, session.optimizer))
        self.clock.updated(tokens)
        progress = self._progress(rate, result)
        if step % LOG_EVERY == 0:
            self.journal.write({"event": "update", **asdict(progress), "seconds": self.clock.spent()})
            self.window, self.norm = progress.nll, result.gradient_norm
            self.state = replace(self.state, window=(0.0, 0.0, 0), journal=self.journal.length)
        return progress

    def _progress(self, rate: float, result: StepResult) -> Progress:
        loss, nll, tokens = self.state.window
        if self.epoch[0] != self.state.epoch:
            self.epoch = (self.state.epoch, self.session.epoch_batches(self.state.epoch))
        return Progress(
            step=self.state.step,
            steps=self.steps,
            epoch=self.state.epoch + self.state.batches / self.epoch[1],
            loss=loss / tokens,
            nll=nll / tokens,
            rate=self.clock.rate(),
            learning_rate=rate,
            gradient_norm=result.gradient_norm,
            left=self.clock.left(self.state.step, self.steps, self.training.evaluate_every),
        )

    def _not_finite(self, step: int, rate: float, result: StepResult) -> str:
        what = "gradient" if math.isfinite(result.loss) else "loss"
        first = "".join(f" It came up first at {a.site}. {a.advice}" for a in self.alarms if a.kind == NON_FINITE)
        return self._stopped(f"at step {step}: the {what} is not a number (rate {rate:.2g})", first)

    def _stopped(self, where: str, first: str = "") -> str:
        steps = self.session.checkpoints.steps()
        good = f"The checkpoint of step {steps[-1]} is good and stays." if steps else "There is no checkpoint yet."
        return (
            f"training stopped {where}.{first} {good} "
            "Train again with a lower training.schedule.rate, a longer warm-up, or training.precision=fp32."
        )

    def _alarms(self) -> Iterator[Alarmed]:
        """What the watch has noticed in the last update."""
        for alarm in self.alarms:
            self._record({"event": "alarm", **asdict(alarm)})
            yield Alarmed(alarm=alarm)
        self.alarms.clear()

    def _verdict(self) -> Iterator[Verdict]:
        """Says once that it learns, as soon as that is sure, and once that it does not, when it is late."""
        step, said = self.state.step, self.state.verdict
        if said or step % LOG_EVERY:
            return
        earliest, last = LATEST_VERDICT
        latest = max(LOG_EVERY, min(max(earliest, self.steps // 5), last, self.steps) // LOG_EVERY * LOG_EVERY)
        good = beats_frequencies(self.window, self.yardsticks)
        if not ((said is None and (good or step >= latest)) or (said is False and good and step % latest == 0)):
            return
        held_out = held_out_nll(self.session.model, self.session.held_out, self.session.device, self.stop)
        learning, sentence = judge(self.window, held_out, self.norm, self.yardsticks)
        self.state = replace(self.state, verdict=learning)
        self.clock.pause()
        if learning or said is None:
            self._record({"event": "verdict", "step": step, "learning": learning, "sentence": sentence})
            yield Verdict(step=step, learning=learning, sentence=sentence)

    def _evaluate(self, updates: Iterator[Update]) -> Iterator[Evaluated]:
        session, training, state = self.session, self.training, self.state
        nll = held_out_nll(session.model, session.held_out, session.device, self.stop)
        if not math.isfinite(nll):
            self._update(next(updates))  # stops at its own loss, and says where that is lost
            raise SurdError(self._stopped(f"at step {state.step}: the held-out loss is not a number"))
        look = session.scorer.watch(session.model, nll, self.stop)
        now = Evaluation(step=state.step, score=look.scores[0].value, nll=nll)
        best = state.best is None or better(now, state.best, look.scores[0].higher_is_better)
        waited = 0 if best else state.waited + 1
        event = Evaluated(step=state.step, nll=nll, **vars(look), best=best, waited=waited)
        self.state = replace(
            state,
            evaluated=state.step,
            best=now if best else state.best,
            recent=(*state.recent, now)[-max(1, training.average) :],
            waited=waited,
        )
        self._record({"event": "evaluation", **asdict(event)})
        yield event

    def _record(self, record: dict) -> None:
        self.journal.write(record)
        self.state = replace(self.state, journal=self.journal.length)

    def _save(self) -> Iterator[Saved]:
        memory = self.watch.memory if self.watch is not None else None
        self.state = replace(self.state, seconds=self.clock.spent(), watch=memory)
        if self.saved is None or replace(self.saved, seconds=self.state.seconds) != self.state:
            session, checkpoints = self.session, self.session.checkpoints
            tensors = all_tensors(session.model, session.optimizer) | random_tensors()
            self.fingerprints.checkpoint(self.state.step, tensors)
            for path in (self.journal.path, self.fingerprints.path):  # on disk before the checkpoint that counts on it
                flush(path)
            self.state = checkpoints.save(self.state, session.model, session.optimizer)
            self.saved, self.saved_at = self.state, time.monotonic()
            self._make_best_usable()
            yield Saved(step=self.state.step, folder=checkpoints.path(self.state.step))
        self.clock.pause()

    def _make_best_usable(self) -> None:
        """Makes the weights of this update the model for use where they are the best ones so far, and are not it yet.

        A kill may have come between their checkpoint and this.
        """
        run, step = self.session.run, self.state.step
        if self.state.best is not None and self.state.best.step == step and run.model_step() != step:
            run.save_model(self.session.model, {"step": step, "finished": False})


def better(new: Evaluation, old: Evaluation, higher: bool) -> bool:
    """Whether an evaluation is the better one; equal scores (0 BLEU, say, early on) are told apart by their nll."""
    if new.score != old.score:
        return (new.score > old.score) == higher
    return new.nll < old.nll
