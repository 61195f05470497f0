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
        if keras.backend.backend() != "tensorflow" or self.amsgrad:
            return super().update_step(gradient, variable, learning_rate)
        import tensorflow as tf

        if tf.distribute.has_strategy() or variable.dtype != "float32":
            return super().update_step(gradient, variable, learning_rate)
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
