"""Adam in one pass over memory, where TensorFlow trains."""

import keras


@keras.saving.register_keras_serializable(package="kzoo")
class Adam(keras.optimizers.Adam):
    """Keras's Adam, whose step on TensorFlow is one fused kernel a variable.

    Paper: Kingma and Ba, 2015, https://arxiv.org/abs/1412.6980. State and options are
    those of `keras.optimizers.Adam`, which writes each variable in some ten passes;
    other backends, `amsgrad` and distribution strategies take its step. Where a token
    stands twice in a batch its gradients are summed before they are squared, as on
    every backend but Keras's TensorFlow.
    """

    def update_step(self, gradient, variable, learning_rate):
        """Updates a variable with its gradient."""
        if self.amsgrad or variable.dtype != "float32" or not _on_plain_tensorflow():
            return super().update_step(gradient, variable, learning_rate)
        import tensorflow as tf

        index = self._get_variable_index(variable)
        step = tf.cast(self.iterations + 1, "float32")
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=self._momentums[index].handle,
            v=self._velocities[index].handle,
            beta1_power=self.beta_1**step,
            beta2_power=self.beta_2**step,
            lr=tf.cast(learning_rate, "float32"),
            beta1=self.beta_1,
            beta2=self.beta_2,
            epsilon=self.epsilon,
            grad=tf.convert_to_tensor(gradient),
        )

    def _clip_gradients(self, grads):
        """Keras's hook; a norm within `global_clipnorm` costs one reading pass."""
        if self.clipnorm or not self.global_clipnorm or not _on_plain_tensorflow():
            return super()._clip_gradients(grads)
        import tensorflow as tf

        grads = [tf.convert_to_tensor(gradient) for gradient in grads]
        halves = [tf.cast(tf.nn.l2_loss(gradient), "float32") for gradient in grads]
        norm = tf.sqrt(2 * tf.add_n(halves))
        # An infinite norm makes the scale NaN, as a NaN does.
        scale = self.global_clipnorm / norm + (norm - norm)
        return tf.cond(
            norm <= self.global_clipnorm,
            lambda: grads,
            lambda: [gradient * tf.cast(scale, gradient.dtype) for gradient in grads],
        )


def _on_plain_tensorflow():
    """Whether TensorFlow trains, and no distribution strategy is around."""
    if keras.backend.backend() != "tensorflow":
        return False
    import tensorflow as tf

    return not tf.distribute.has_strategy()
