"""What a training shows: a bar, and a line an epoch.

Imports Keras, so commands import this module when they run.
"""

import collections
import itertools
import math
import statistics
import time

import keras
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from kzoo.cli.console import check_signals, err

# Reading the loss waits for the device, so not at every batch.
_SECONDS_BETWEEN_LOSSES = 0.5
_STEPS_BETWEEN_RATES, _STEPS_OF_PACE = 10, 20


class EpochLines(keras.callbacks.Callback):
    """A bar while an epoch runs, and one line when it ends.

    Without a terminal there is no bar, so that a log gets the lines alone.

    Args:
        epochs: the last epoch's number.
    """

    def __init__(self, epochs):
        super().__init__()
        self.epochs = epochs
        self._bar = self._task = None
        self._start = self._shown = 0.0

    def on_epoch_begin(self, epoch, logs=None):
        """Starts the bar."""
        self._start = time.perf_counter()
        self._bar = Progress(
            TextColumn(f"epoch {epoch + 1}/{self.epochs}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[loss]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=err,
            transient=True,
            disable=not err.is_terminal,
        )
        # Nothing moves while the step is compiled, which takes seconds.
        loss = "compiling" if self._shown == 0.0 else ""
        self._task = self._bar.add_task("", total=self.params["steps"], loss=loss)
        self._bar.start()

    def on_train_batch_end(self, batch, logs=None):
        """Moves the bar."""
        check_signals()
        fields = {}
        now = time.perf_counter()
        if err.is_terminal and now - self._shown > _SECONDS_BETWEEN_LOSSES:
            self._shown = now
            fields["loss"] = f"loss {float((logs or {}).get('loss', math.nan)):.4f}"
        self._bar.update(self._task, advance=1, **fields)

    def on_epoch_end(self, epoch, logs=None):
        """Prints the epoch's line."""
        self.stop()
        measures = {name: float(value) for name, value in (logs or {}).items()}
        seconds = time.perf_counter() - self._start
        shown = [f"epoch {epoch + 1}/{self.epochs}"]
        shown += [
            f"{name.replace('_', ' ')} {value:.4f}"
            for name, value in measures.items()
            if name != "learning_rate"
        ]
        err.print("  ".join([*shown, f"{seconds:.1f} s"]), soft_wrap=True)

    def stop(self):
        """Takes the bar away; what an interrupted `fit` does not."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


class CosineWithinTime(keras.callbacks.Callback):
    """A rate that rises, then falls to 0 on a cosine, over the steps that time allows.

    On a fast machine these are all steps, and equal seeds give equal weights. On a slow
    one they are as many as fit at the pace of the last ones, so that the training still
    ends with a small rate; what compiling takes is lost, but does not count as steps.

    Args:
        peak: the largest rate.
        steps: of the whole training.
        seconds: of the whole training, by the clock; compiling counts.
        warmup: share of the training during which the rate rises.
    """

    def __init__(self, peak, steps, seconds, warmup=0.1):
        super().__init__()
        self.peak, self.steps, self.seconds = peak, steps, seconds
        self.warmup = warmup
        self.step = 0
        self._ends = collections.deque(maxlen=_STEPS_OF_PACE + 1)

    def _done(self):
        """The share of the training that is behind."""
        left = self.seconds - (time.perf_counter() - self._start)
        if left <= 0:
            return 1.0
        took = [after - before for before, after in itertools.pairwise(self._ends)]
        if not took:
            return self.step / self.steps
        return self.step / min(self.steps, self.step + left / statistics.median(took))

    def on_train_begin(self, logs=None):
        """Starts the clock."""
        self._start = time.perf_counter()

    def on_train_batch_begin(self, batch, logs=None):
        """Sets the rate."""
        if self.step % _STEPS_BETWEEN_RATES:
            return
        done = self._done()
        if done < self.warmup:
            rate = self.peak * (done + 1 / self.steps) / self.warmup
        else:
            rest = (done - self.warmup) / (1 - self.warmup)
            rate = self.peak * 0.5 * (1 + math.cos(math.pi * rest))
        if hasattr(self.model, "jax_state_sync"):
            # On JAX the variables are copies while an epoch runs.
            self.model.jax_state_sync()
        self.model.optimizer.learning_rate = min(rate, self.peak)

    def on_train_batch_end(self, batch, logs=None):
        """Ends the training when the time is used up."""
        self.step += 1
        self._ends.append(time.perf_counter())
        if self._ends[-1] - self._start > self.seconds:
            self.model.stop_training = True
