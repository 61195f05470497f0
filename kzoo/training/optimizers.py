"""Adam: in one pass over memory where TensorFlow trains, slower in lower layers.

And Keras's scaling of a loss in float16, which finds all gradients that overflow.
"""

import re

import keras

_BELOW = re.compile("embedding|position_bias")  # what a stack has below its layers


@keras.saving.register_keras_serializable(package="kzoo")
class Adam(keras.optimizers.Adam):
    """Keras's Adam, whose step on TensorFlow is one fused kernel a variable.

    Paper: Kingma and Ba, 2015, https://arxiv.org/abs/1412.6980. State and options are
    those of `keras.optimizers.Adam`, which writes each variable in some ten passes;
    other backends, `amsgrad` and distribution strategies take its step. Where a token
    stands twice in a batch its gradients are summed before they are clipped or squared,
    as on every backend but Keras's TensorFlow.

    Weights of 16 bits, as `dtype="bfloat16"` gives them, have a state and a step in
    float32, averages and accumulated gradients too; in 16 bits `beta_2` is 1 and no
    weight moves. What is less than half the distance to the next number is still lost
    of every step: `"mixed_bfloat16"` has weights in float32, and trains as they do.

    With `gradient_accumulation_steps` n, n batches count as the mean of their
    gradients. That is the gradient of one batch n times as large where all of them
    have equally many targets: the mean of means over tokens is not the mean over all.

    Args:
        *args: of `keras.optimizers.Adam`, the learning rate first.
        layer_decay: the learning rate falls by this factor from layer to layer, from
            the output down (Howard and Ruder, 2018, https://arxiv.org/abs/1801.06146;
            Clark et al., 2020, https://arxiv.org/abs/2003.10555, with 0.8). In a stack
            of n layers the variables of `layer_i` are updated with `layer_decay ** (n -
            i)` of it, those below (embeddings) with `layer_decay ** (n + 1)`, and those
            above (`final_norm`, the head) with all; so is their weight decay. Encoder
            and decoder count each for itself. `None` for the same rate everywhere.
        **kwargs: of `keras.optimizers.Adam`.

    Raises:
        ValueError: `layer_decay` is not in (0, 1]; or, when it is built, no variable is
            of a `layer_<i>`.

    Example:
        >>> classifier.compile(kzoo.training.Adam(1e-4, layer_decay=0.9))
    """

    def __init__(self, *args, layer_decay=None, **kwargs):
        super().__init__(*args, **kwargs)
        if layer_decay is not None and not 0 < layer_decay <= 1:
            raise ValueError(
                f"Adam.layer_decay must be in (0, 1] or None. Received: {layer_decay}."
            )
        self.layer_decay = layer_decay

    def build(self, var_list):
        """Creates the state, and reads from the variables' paths how fast each is."""
        if self.layer_decay is not None and not self.built:
            scales = layer_scales([v.path for v in var_list], self.layer_decay)
            self._scales = dict(enumerate(scales))
        new = not self.built
        super().build(var_list)
        if new and self.use_ema:
            # Keras's averages, which callbacks swap with the weights, have their dtype.
            self._exact_averages = [
                self.add_variable_from_reference(v, "exact_average")
                if _is_narrow(v)
                else None
                for v in var_list
            ]

    def get_config(self):
        """The arguments of `__init__`."""
        return {**super().get_config(), "layer_decay": self.layer_decay}

    def add_variable_from_reference(
        self, reference_variable, name=None, initializer="zeros"
    ):
        """Creates a state of a variable, in float32 for one of 16 bits."""
        if name == "average" or not _is_narrow(reference_variable):
            return super().add_variable_from_reference(
                reference_variable, name=name, initializer=initializer
            )
        return self.add_variable(
            shape=reference_variable.shape,
            initializer=initializer,
            dtype="float32",
            name=f"{reference_variable.path.replace('/', '_')}_{name}",
            layout=getattr(reference_variable, "_layout", None),
        )

    def _scale(self, variable):
        return self._scales[self._get_variable_index(variable)]

    def _apply_weight_decay(self, variables):
        """Keras's hook; it takes one rate, so variables of the same go together."""
        rate = self.weight_decay
        if rate is None or self.layer_decay is None:
            super()._apply_weight_decay(variables)
            return
        alike = {}
        for variable in variables:
            alike.setdefault(self._scale(variable), []).append(variable)
        try:
            for scale, group in alike.items():
                self.weight_decay = rate * scale
                super()._apply_weight_decay(group)
        finally:
            self.weight_decay = rate

    def apply(self, grads, trainable_variables=None):
        """Updates the variables with their gradients, of which some may be None."""
        super().apply([self._exact(each) for each in grads], trainable_variables)

    def _exact(self, gradient):
        """A gradient whose sums and squares no 16 bits round, or overflow."""
        if gradient is None:
            return None
        if _is_narrow(gradient):
            return _dense(keras.ops.cast(gradient, "float32"))
        # Keras divides by the scale, which is for arrays.
        return gradient if self.loss_scale_factor is None else _dense(gradient)

    def update_step(self, gradient, variable, learning_rate):
        """Updates a variable with its gradient."""
        if self.layer_decay is not None:
            learning_rate = learning_rate * self._scale(variable)
        if _is_narrow(variable):
            return self._step_in_float32(_dense(gradient), variable, learning_rate)
        return super().update_step(_dense(gradient), variable, learning_rate)

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        """Keras's hook: what is the same for all variables is computed once."""
        if self.amsgrad or not self._is_plain():
            super()._backend_update_step(grads, trainable_variables, learning_rate)
            return
        import tensorflow as tf

        step, rate = (
            tf.cast(x, "float32") for x in (self.iterations + 1, learning_rate)
        )
        shared = dict(
            beta1_power=float(self.beta_1) ** step,
            beta2_power=float(self.beta_2) ** step,
            beta1=tf.constant(self.beta_1, "float32"),
            beta2=tf.constant(self.beta_2, "float32"),
            epsilon=tf.constant(self.epsilon, "float32"),
        )
        for gradient, variable in zip(grads, trainable_variables, strict=True):
            if variable.dtype != "float32":
                self.update_step(gradient, variable, learning_rate)
                continue
            index = self._get_variable_index(variable)
            scale = 1 if self.layer_decay is None else self._scales[index]
            tf.raw_ops.ResourceApplyAdam(
                var=variable.handle,
                m=self._momentums[index].handle,
                v=self._velocities[index].handle,
                lr=rate if scale == 1 else rate * scale,
                grad=_dense(gradient),
                **shared,
            )

    def _is_plain(self):
        """Whether a step is the kernel's: no strategy's, and no subclass's own."""
        if type(self).update_step is not Adam.update_step or not _on_plain_tensorflow():
            return False
        import tensorflow as tf

        # That in which it was made, whose variables have replicas outside it, too.
        return self._distribution_strategy is tf.distribute.get_strategy()

    def _step_in_float32(self, gradient, variable, learning_rate):
        """Keras's step, of a variable of 16 bits."""
        ops, index = keras.ops, self._get_variable_index(variable)
        rate, step = (
            ops.cast(x, "float32") for x in (learning_rate, self.iterations + 1)
        )
        m, v = self._momentums[index], self._velocities[index]
        self.assign_add(m, (gradient - m) * (1 - self.beta_1))
        self.assign_add(v, (ops.square(gradient) - v) * (1 - self.beta_2))
        if self.amsgrad:
            most = self._velocity_hats[index]
            self.assign(most, ops.maximum(most, v))
            v = most
        rate = rate * ops.sqrt(1 - self.beta_2**step) / (1 - self.beta_1**step)
        new = ops.cast(variable, "float32") - rate * m / (ops.sqrt(v) + self.epsilon)
        self.assign(variable, ops.cast(new, variable.dtype))

    def _update_model_variables_moving_average(self, trainable_variables):
        """Keras's hook, in float32: bfloat16 has no 0.99, and moves no average so."""
        super()._update_model_variables_moving_average(trainable_variables)
        later = keras.ops.cast(keras.ops.not_equal(self.iterations, 0), "float32")
        for variable, exact, average in zip(
            trainable_variables,
            self._exact_averages,
            self._model_variables_moving_average,
            strict=True,
        ):
            if exact is not None:
                apart = keras.ops.cast(variable, "float32") - exact
                self.assign_add(exact, apart * (1 - self.ema_momentum * later))
                self.assign(average, exact)

    def _all_reduce_sum_gradients(self, grads_and_vars):
        """Keras's hook; for one replica TensorFlow's sum would only keep the graph."""
        if _on_plain_tensorflow():
            return list(grads_and_vars)
        return super()._all_reduce_sum_gradients(grads_and_vars)

    def _clip_gradients(self, grads):
        """Keras's hook; large ones within `global_clipnorm` are read once."""
        if not (self.clipnorm or self.clipvalue or self.global_clipnorm):
            return grads
        grads = [_dense(gradient) for gradient in grads]
        if self.clipnorm or not self.global_clipnorm or not _on_plain_tensorflow():
            return super()._clip_gradients(grads)
        import tensorflow as tf

        halves = [tf.cast(tf.nn.l2_loss(gradient), "float32") for gradient in grads]
        norm = tf.sqrt(2 * tf.add_n(halves))
        fits = norm <= self.global_clipnorm
        # An infinite norm makes the scale NaN, as a NaN does.
        scale = self.global_clipnorm / norm + (norm - norm)
        scale = tf.where(fits, tf.constant(1.0), scale)

        def scaled(arrays):
            return {i: x * tf.cast(scale, x.dtype) for i, x in arrays.items()}

        grads = dict(enumerate(grads))
        large = {i: x for i, x in grads.items() if _is_large(x)}
        small = {i: x for i, x in grads.items() if i not in large}
        if large:
            large = tf.cond(fits, lambda: large, lambda: scaled(large))
        clipped = large | scaled(small)
        return [clipped[i] for i in grads]


@keras.saving.register_keras_serializable(package="kzoo")
class LossScaleOptimizer(keras.optimizers.LossScaleOptimizer):
    """Keras's, which `compile` puts around an optimizer in mixed_float16.

    On TensorFlow Keras's looks at the last gradient alone of a token that stands in a
    batch more than once, and takes a step to NaN where an earlier one overflowed.
    """

    @classmethod
    def around(cls, optimizer):
        """An optimizer, or Keras's own of this kind that is new, in one of these."""
        kind = keras.optimizers.LossScaleOptimizer
        if not isinstance(optimizer, kind):
            return cls(optimizer, name="loss_scale_optimizer")
        if type(optimizer) is not kind or optimizer.built:
            return optimizer
        names = ("initial_scale", "dynamic_growth_steps", "name")
        options = {name: getattr(optimizer, name) for name in names}
        return cls(optimizer.inner_optimizer, **options)

    def check_finite(self, grads):
        """Whether all numbers of the gradients are finite: a bool scalar."""
        if keras.backend.backend() == "tensorflow":
            import tensorflow as tf

            grads = [g.values if isinstance(g, tf.IndexedSlices) else g for g in grads]
        return super().check_finite(grads)


def _is_large(tensor):
    """Whether a pass over it takes longer than a branch around it."""
    size = tensor.shape.num_elements()
    return size is None or size > 2**14


def _is_narrow(tensor):
    """Whether a number of it has 16 bits."""
    return "16" in str(tensor.dtype)


def _dense(gradient):
    """A gradient as one array, those of a token which stands twice summed."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        gradient = tf.convert_to_tensor(gradient)
    return gradient


def layer_scales(paths, decay):
    """What of the learning rate each variable gets, by its path.

    Args:
        paths: of variables, such as `model/encoder/layer_3/feed_forward/output/bias`.
        decay: the factor between two layers.

    Returns:
        A list of float.

    Raises:
        ValueError: no path has a part `layer_<i>`.
    """
    layers = [re.match(r"(.*?/|)layer_(\d+)/", path) for path in paths]
    counts = {}  # layers by the path of their stack
    for match in filter(None, layers):
        stack, index = match[1], int(match[2])
        counts[stack] = max(counts.get(stack, 0), index + 1)
    if not counts:
        raise ValueError(
            "layer_decay needs variables of layers, `.../layer_<i>/...`. Received: "
            f"{[*paths[:3]]}{' and so on' if len(paths) > 3 else ''}. Leave it out."
        )

    def depth(path, match):
        if match:
            return counts[match[1]] - int(match[2])
        below = [n for stack, n in counts.items() if path.startswith(stack)]
        return max(below) + 1 if below and _BELOW.search(path) else 0

    return [decay ** depth(*pair) for pair in zip(paths, layers, strict=True)]


def _on_plain_tensorflow():
    """Whether TensorFlow trains, and no distribution strategy is around."""
    if keras.backend.backend() != "tensorflow":
        return False
    import tensorflow as tf

    return not tf.distribute.has_strategy()
