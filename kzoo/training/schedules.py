"""Learning-rate schedules."""

import keras
from keras import ops

from kzoo.arguments import check_count
from kzoo.training.losses import KeepsArguments


@keras.saving.register_keras_serializable(package="kzoo")
class WarmupInverseSquareRoot(
    KeepsArguments, keras.optimizers.schedules.LearningRateSchedule
):
    """Linear warm-up, then decay by the inverse square root of the step.

        scale * hidden_dim ** -0.5 * min(step ** -0.5, step * warmup_steps ** -1.5)

    Paper: Attention Is All You Need, Vaswani et al., 2017,
    https://arxiv.org/abs/1706.03762, section 5.3. Its steps count from 1 while Keras
    counts from 0, so step = iterations + 1: the first update is not lost on rate 0.

    Args:
        hidden_dim: width D of the model.
        warmup_steps: updates until the peak.
        scale: multiplies the paper's rate.
        name: of the schedule.

    Raises:
        ValueError: an argument is not positive.
    """

    def __init__(
        self,
        hidden_dim,
        warmup_steps=4000,
        scale=1.0,
        name="warmup_inverse_square_root",
    ):
        super().__init__()
        for argument, value in (
            ("hidden_dim", hidden_dim),
            ("warmup_steps", warmup_steps),
            ("scale", scale),
        ):
            if not value > 0:
                raise ValueError(
                    f"WarmupInverseSquareRoot.{argument} must be positive. "
                    f"Received: {value!r}."
                )
        self.hidden_dim = hidden_dim
        self.warmup_steps = warmup_steps
        self.scale = scale
        self.name = name

    @classmethod
    def from_peak(cls, peak, warmup_steps=4000):
        """The schedule whose largest rate, at `warmup_steps`, is `peak`."""
        return cls(
            hidden_dim=1, warmup_steps=warmup_steps, scale=peak * warmup_steps**0.5
        )

    @property
    def peak(self):
        """The largest rate, at `warmup_steps`."""
        return self.scale * (self.hidden_dim * self.warmup_steps) ** -0.5

    def __call__(self, step):
        """The rate of update `step`, counted from 0: a float32 scalar."""
        step = ops.cast(step, "float32") + 1.0
        # In units of the peak: step * warmup_steps ** -1.5 alone loses digits.
        relative = step / self.warmup_steps
        return self.peak * ops.minimum(ops.rsqrt(relative), relative)


@keras.saving.register_keras_serializable(package="kzoo")
class Restarts(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule that begins anew, its warm-up included.

    Paper: SGDR: Stochastic Gradient Descent with Warm Restarts, Loshchilov and Hutter,
    2017, https://arxiv.org/abs/1608.03983, section 3, with cycles of one length.

    Args:
        schedule: a `LearningRateSchedule`, of a cycle.
        steps: updates of a cycle.
        name: of the schedule.

    Raises:
        TypeError: `schedule` is none.
        ValueError: `steps` is not a positive int.
    """

    def __init__(self, schedule, steps, name="restarts"):
        super().__init__()
        if not isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule):
            raise TypeError(
                "Restarts.schedule must be a schedule of Keras. "
                f"Received: {schedule!r}."
            )
        check_count("Restarts.steps", steps)
        self.schedule = schedule
        self.steps = int(steps)
        self.name = name

    def __call__(self, step):
        """The rate of update `step`, counted from 0: a float32 scalar."""
        return self.schedule(step % self.steps)

    def get_config(self):
        """The arguments of `__init__`."""
        schedule = keras.saving.serialize_keras_object(self.schedule)
        return {"schedule": schedule, "steps": self.steps, "name": self.name}

    @classmethod
    def from_config(cls, config):
        """The schedule of a `get_config`."""
        schedule = keras.saving.deserialize_keras_object(config["schedule"])
        return cls(**{**config, "schedule": schedule})
