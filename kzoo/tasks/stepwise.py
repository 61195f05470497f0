"""The functions of a server that streams: one token at a time, the cache passed."""

import keras

from kzoo import ops
from kzoo.exporters.checks import reference
from kzoo.exporters.signatures import Argument, Function
from kzoo.tasks.exported_generation import ExportsGeneration
from kzoo.tasks.guards import in_table, within


class ExportsSteps(ExportsGeneration):
    """The functions `prefill` and `step` of a task that can search.

    It gives `kept_arguments`, `prefill(inputs)` and `resume(tokens, layers, kept)`.
    """

    def stepwise_functions(self):
        """`prefill`, which reads a prompt, and `step`, which reads one token a row.

        Both give the logits of the next token, and the cache under names that begin
        with `present_`; `step` takes it under `past_`. What else `prefill` gives goes
        unchanged into every `step`. Of a decoder alone that is `padding`, how many
        entries stand before a row's first token: a row goes on in another batch where
        so many more are put before its own, or taken away, and are counted there.
        """
        logits = {"logits": ("batch", self.config.decoder.vocabulary_size)}
        present = cache_names("present_{}_{}", self.config.decoder, "total_sequence")
        past = cache_names("past_{}_{}", self.config.decoder, "past_sequence")
        kept = self.kept_arguments()

        def prefill(inputs):
            known = self._known(inputs, padded=bool(self.config.encoder))
            logits, layers, kept = self.prefill(known)
            return {"logits": logits, **dict(zip(present, flat(layers))), **kept}

        def step(inputs):
            layers = by_layer([inputs[name] for name in past])
            others = {a.name: inputs[a.name] for a in kept}
            decoder = self.config.decoder
            tokens = in_table(inputs["tokens"], "tokens", 0, decoder.vocabulary_size)
            if decoder.positions == "learned":
                most = decoder.max_sequence_length - 1
                message = f"tokens must be behind at most {most} others"
                if "padding" in others:  # which takes no positions
                    most = most - ops.max(-others["padding"])
                (key, value), *rest = layers
                layers = [(within(key, most, message, axis=2), value), *rest]
            logits, layers = self.resume(tokens, layers, others)
            return {"logits": logits, **dict(zip(present, flat(layers)))}

        prefill_function = Function(
            "prefill",
            (self._argument(self.prompt_input),),
            {**logits, **present, **{a.name: a.axes for a in kept}},
            prefill,
            self._prefill_cases,
            task=self,
        )

        def step_inputs(inputs):
            prompt = {self.prompt_input: inputs[self.prompt_input]}
            outputs = reference(prefill_function, prompt)
            return {
                "tokens": outputs["logits"].argmax(axis=-1).astype("int32"),
                **{name: outputs[new] for name, new in zip(past, present)},
                **{a.name: outputs[a.name] for a in kept},
            }

        def step_cases(generator):
            return {
                f"{text}, 1 more": step_inputs(inputs)
                for text, inputs in self._prefill_cases(generator).items()
            }

        step_function = Function(
            "step",
            (
                Argument("tokens", "int32", ("batch",)),
                *(Argument(name, "float32", axes) for name, axes in past.items()),
                *kept,
            ),
            {**logits, **present},
            step,
            step_cases,
            given=step_inputs,
            task=self,
        )
        return [prefill_function, step_function]

    def _prefill_cases(self, generator):
        cases = {
            text: {
                self.prompt_input: self._random_ids(
                    generator, self.prompt_input, shape, padding
                )
            }
            for text, shape, padding in (
                ("batch 1, length 5", (1, 5), None),
                ("batch 3, length 12, padded", (3, 12), "anywhere"),
            )
        }
        for text, ids in self._long_prompt(generator).items():
            # In front of a decoder's prompt is a place of padding, which Keras counts.
            ids = ids if self.config.encoder else ids[:, 1:]
            cases[text] = {self.prompt_input: ids}
        return cases


def cache_names(pattern, config, length):
    """The names of a stack's cache, each with its axes.

    Args:
        pattern: of a name, with places for the layer's number and "key" or "value".
        config: the `StackConfig`.
        length: the name of the sequence axis.

    Returns:
        dict, in the order of `flat`.
    """
    axes = ("batch", config.num_key_value_heads, length, config.head_dim)
    return {
        pattern.format(layer, kind): axes
        for layer in range(config.num_layers)
        for kind in ("key", "value")
    }


def flat(layers):
    """[(key, value), ...] to [key, value, ...]."""
    return keras.tree.flatten(layers)


def by_layer(tensors):
    """[key, value, ...] to [(key, value), ...]."""
    return list(zip(tensors[::2], tensors[1::2]))
