"""On TensorFlow: nothing of a step runs where its batch does not come."""


class WaitsForData:
    """Mixin of models that learn from what a pipeline gave, and from nothing else.

    Keras asks for a batch inside a step's graph. Where a pipeline of unknown length has
    ended, TensorFlow ran what needs no batch before it noticed: the optimizer's count,
    weight decay, seeds of dropout and the turn of accumulated gradients went a step
    further in every epoch.
    """

    def _make_function(self, step_function):
        import tensorflow as tf

        if self.jit_compile:  # XLA begins nothing before all that it reads is there
            return super()._make_function(step_function)

        def step(data):
            with tf.control_dependencies(
                [x for x in tf.nest.flatten(data, True) if x is not None]
            ):
                return step_function(data)

        return super()._make_function(step)
