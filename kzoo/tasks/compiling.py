"""What `compile` of a task gives and checks: losses and metrics without padding."""

import inspect
import warnings

import keras

from kzoo.training import Adam, MaskedCrossEntropy, MaskedLoss, TokenAccuracy
from kzoo.training.loss_tracker import WeightedLoss
from kzoo.training.metrics import TokenMean
from kzoo.training.optimizers import LossScaleOptimizer

# What computes losses and metrics of a batch; the last ones are JAX's.
_STEPS = (
    *("train_step", "test_step", "compute_loss", "compute_metrics"),
    *("make_train_function", "make_test_function"),
    *("compute_loss_and_updates", "stateless_compute_loss"),
)


class Compiles(keras.Model):
    """Mixin of tasks: an optimizer, a loss and metrics that suit the targets."""

    ignore_id = -1  # the target that losses and metrics leave out
    _losses_leave_out_filling = True  # whether all losses and metrics do
    target_per_example = False  # else a sequence of them, some of `ignore_id`
    needs_targets = False  # else they do not follow from the inputs

    def compile(
        self,
        optimizer="auto",
        loss="auto",
        metrics="auto",
        label_smoothing=0.0,
        **kwargs,
    ):
        """Keras's `compile`; what is left out suits the task.

        Args:
            optimizer: by default Adam with gradients clipped to norm 1; in a language
                model as in the paper (beta_2 0.98, epsilon 1e-9, section 5.3's
                schedule), else with a learning rate of 5e-4.
            loss: by default the task's, such as `MaskedCrossEntropy`, which is reported
                as a mean over the targets of an epoch; another loss is as Keras does,
                over its rows, and has to leave out targets of `ignore_id` by itself;
                one of Keras that does not, or a cross-entropy without
                `from_logits=True`, is a warning.
            metrics: by default the task's, such as accuracy; weighted by targets. Of a
                task whose targets are sequences `"accuracy"` leaves out those of
                `ignore_id`, and Keras's other metrics, which do not, are a warning.
            label_smoothing: of a default loss that is a cross-entropy.
            **kwargs: of Keras's `compile`.

        Raises:
            ValueError: `label_smoothing` with a loss of your own; or a loss or a metric
                whose `ignore_id` is not the task's.
        """
        if label_smoothing and loss != "auto":
            advice = f"Give MaskedCrossEntropy({label_smoothing}, ignore_id="
            advice += f"{self.ignore_id}), or leave out one of the two."
            raise ValueError(
                f"label_smoothing={label_smoothing} is of the default loss, and a loss "
                f"was given: {loss!r}. "
                + (advice if self.ignore_id == self.ignore_id else "Leave it out.")
            )
        choose = kwargs.get("jit_compile", "auto") == "auto"
        if choose and keras.backend.backend() == "tensorflow":
            # Buckets have many shapes and XLA compiles each; on CPUs TensorFlow's own
            # kernels are also the faster ones (export/benchmarks/fit.py).
            import tensorflow as tf

            kwargs["jit_compile"] = bool(tf.config.list_physical_devices("GPU"))
        if optimizer == "auto":
            optimizer = self.default_optimizer()
        optimizer = keras.optimizers.get(optimizer)
        scales = kwargs.get("auto_scale_loss", True) and optimizer is not None
        if scales and self.dtype_policy.name == "mixed_float16":
            optimizer = LossScaleOptimizer.around(optimizer)
        if loss == "auto":
            loss = self.default_loss(label_smoothing)
        if metrics == "auto":
            metrics = self.default_metrics()
        elif metrics is None:
            metrics = []  # with `None` Keras keeps those of the `compile` before
        metrics = self._without_filling(metrics)
        if "weighted_metrics" in kwargs:
            kwargs["weighted_metrics"] = self._without_filling(
                kwargs["weighted_metrics"]
            )
        given = keras.tree.flatten([loss, metrics, kwargs.get("weighted_metrics")])
        self._check_ignored(given)
        self._check_reads_logits(keras.tree.flatten(loss))
        super().compile(optimizer=optimizer, loss=loss, metrics=metrics, **kwargs)
        if choose:  # where the file is loaded may have another backend
            self._compile_config.config["jit_compile"] = "auto"
        all_metrics = keras.tree.flatten([metrics, kwargs.get("weighted_metrics")])
        self._losses_leave_out_filling = isinstance(loss, MaskedLoss) and all(
            metric is None or isinstance(metric, TokenMean) for metric in all_metrics
        )
        if isinstance(loss, MaskedLoss):
            # Past Layer.__setattr__, which would list it a second time in `metrics`.
            object.__setattr__(self, "_loss_tracker", WeightedLoss(loss.weights))

    @property
    def leaves_out_filling(self):
        """Whether all losses and metrics do, and all steps are kzoo's or Keras's."""
        kinds = type(self).__mro__
        own = [k for k in kinds if not k.__module__.startswith(("kzoo.", "keras."))]
        given = {*vars(self)}.union(*map(vars, own))
        return self._losses_leave_out_filling and given.isdisjoint(_STEPS)

    def _check_ignored(self, given):
        """Raises `ValueError` where a loss or metric leaves out a class, or no padding.

        Args:
            given: losses and metrics.
        """
        for each in given:
            ignored = getattr(each, "ignore_id", None)
            if ignored is not None and ignored != self.ignore_id:
                raise ValueError(
                    f"{self.name} leaves out targets of ignore_id={self.ignore_id}. "
                    f"Received: {type(each).__name__} with ignore_id={ignored}, which "
                    f"would count those and leave out others. Give it ignore_id="
                    f"{self.ignore_id}."
                )

    def _check_reads_logits(self, losses):
        """Warns of a loss of Keras that takes logits for probabilities, or padding."""
        for each in losses:
            loss = keras.losses.get(each) if isinstance(each, str) else each
            parts = loss, getattr(loss, "fn", loss)  # a class, and what it wraps
            modules = [getattr(part, "__module__", "") for part in parts]
            if not all(module.startswith("keras.") for module in modules):
                continue
            reads_logits = getattr(loss, "from_logits", True)
            if not isinstance(loss, keras.losses.Loss):
                known = inspect.signature(loss).parameters.get("from_logits")
                reads_logits = known is None or known.default
            if not reads_logits:
                warnings.warn(
                    f"{self.name} gives logits, and the loss reads probabilities: "
                    f"{each!r}. Leave the loss out, or give a class of keras.losses "
                    "with from_logits=True.",
                    stacklevel=3,
                )
            elif (
                self.ignore_id == self.ignore_id
                and not self.target_per_example
                and getattr(loss, "ignore_class", None) is None
            ):
                warnings.warn(
                    f"{self.name} has targets of {self.ignore_id} where there is none, "
                    f"and this loss of Keras counts them: {each!r}. Leave the loss out,"
                    " or give SparseCategoricalCrossentropy(from_logits=True, "
                    f"ignore_class={self.ignore_id}).",
                    stacklevel=3,
                )

    def _without_filling(self, metrics):
        """Metrics with Keras's accuracy as one that leaves out padding."""
        own = any(isinstance(each, TokenAccuracy) for each in self.default_metrics())
        if not own or isinstance(metrics, str):  # which Keras refuses
            return metrics

        def replaced(metric):
            if isinstance(metric, str) and metric.lower() in ("accuracy", "acc"):
                return TokenAccuracy(self.ignore_id, name=metric)
            return metric

        metrics = keras.tree.map_structure(replaced, metrics)
        counting = [each for each in keras.tree.flatten(metrics) if _of_keras(each)]
        if counting and not self.target_per_example:
            names = [getattr(each, "name", each) for each in counting]
            warnings.warn(
                f"These metrics of Keras count padding, too: {names}. Those that leave "
                'it out are "accuracy" and the metrics of kzoo.training.',
                stacklevel=3,
            )
        return metrics

    def default_optimizer(self):
        """What `compile` uses where none is given; so for the next two."""
        return Adam(5e-4, global_clipnorm=1.0)

    def default_loss(self, label_smoothing):
        """Cross-entropy of the targets that are not `ignore_id`."""
        return MaskedCrossEntropy(label_smoothing, ignore_id=self.ignore_id)

    def default_metrics(self):
        """The share of those targets that is right."""
        return [TokenAccuracy(ignore_id=self.ignore_id, name="accuracy")]

    def _compared(self, x, y):
        """What the loss and the metrics compare, of a batch's inputs and targets."""
        return y

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        """Keras's hook; a task may make the targets of the inputs."""
        y = self._compared(x, y)
        if y is None and self.needs_targets and self.loss is not None:
            raise ValueError(
                f"{self.name} has no targets: a pipeline or generator gives (inputs, "
                "targets)."
            )
        return super().compute_loss(x, y, y_pred, sample_weight, training)

    def _symbolic_build(self, *args, **kwargs):
        """Keras's, which computes metrics of no batch."""
        if isinstance(self._loss_tracker, WeightedLoss):
            self._loss_tracker.forget()
        super()._symbolic_build(*args, **kwargs)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        """Keras's hook, after the loss of the batch; on some backends also before."""
        y = self._compared(x, y)
        if isinstance(self._loss_tracker, WeightedLoss):
            self._loss_tracker.reweigh(y, sample_weight)
        return super().compute_metrics(x, y, y_pred, sample_weight)

    def compile_from_config(self, config):
        """Keras's hook: compiles as the model in a `.keras` file was."""
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.built:
            self.optimizer.build(self.trainable_variables)


def _of_keras(metric):
    """Whether a metric is Keras's own, and counts every target."""
    function = getattr(metric, "_fn", metric)  # what a metric is the mean of
    module = getattr(function, "__module__", None) or ""
    ignores = getattr(metric, "ignore_class", None) is not None
    return isinstance(metric, str) or (module.startswith("keras.") and not ignores)
