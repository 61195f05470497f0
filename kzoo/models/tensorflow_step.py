"""On TensorFlow: nothing of a step runs where its batch does not come."""


class WaitsForData:
    """Mixin of models that learn from what a pipeline gave, and from nothing else.

    Keras asks for a batch inside a step's graph. Where a pipeline of unknown length has
    ended, TensorFlow ran what needs no batch before it noticed: the optimizer's count,
    weight decay, seeds of dropout and the turn of accumulated gradients went a step
    further in every epoch. Here a step begins when its batch is there; one of a
    distribution strategy still within the graph that asks, where all of it waits.
    """

    def _make_function(self, step_function):
        import tensorflow as tf

        if self.jit_compile:  # XLA begins nothing before all that it reads is there
            return super()._make_function(step_function)

        def guarded(data):
            with tf.control_dependencies(
                [x for x in tf.nest.flatten(data, True) if x is not None]
            ):
                return step_function(data)

        steps = super()._make_function(guarded)
        # Keras asks before each of several steps, and of those that are no graph.
        asked = self.run_eagerly or self.steps_per_execution > 1
        if asked or self._distribute_strategy:
            return steps

        step_function = self._autoconvert_optionals(step_function)

        @tf.function(reduce_retracing=True)
        @tf.autograph.experimental.do_not_convert
        def step(batch):
            return step_function(batch.get_value())

        def next_step(iterator):
            if not isinstance(iterator, tf.data.Iterator):
                return steps(iterator)
            batch = iterator.get_next_as_optional()
            if not batch.has_value():
                raise StopIteration
            return step(batch)

        return next_step
