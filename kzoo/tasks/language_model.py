"""What language models share: stacks, the head, next-token targets."""

import keras
import numpy as np

from kzoo import ops
from kzoo.arguments import check_count
from kzoo.layers.base import make_initializer
from kzoo.layers.heads import LanguageModelHead
from kzoo.tasks.forms import as_list, is_text
from kzoo.tasks.generates import Generates
from kzoo.tasks.stepwise import ExportsSteps
from kzoo.tasks.text_data import LearnsText
from kzoo.training import Adam, Perplexity, TokenAccuracy, WarmupInverseSquareRoot
from kzoo.training.losses import token_cross_entropy


class LanguageModel(LearnsText, Generates, ExportsSteps):
    """Stacks, a head over the decoder's states, and next-token targets.

    Args:
        config: a `ModelConfig` of the class's architecture.
        tokenizer: for strings.
        search_defaults: what `generate` begins with, a dict of `SearchOptions`.
    """

    trains_with_lora = ()
    writes = True

    def __init__(self, config, tokenizer=None, search_defaults=None, **kwargs):
        super().__init__(config, tokenizer=tokenizer, **kwargs)
        self.search_defaults = search_defaults
        decoder = self.config.decoder
        if self.config.tie_head and decoder.embedding_dim is not None:
            raise ValueError(
                "tie_head=True needs a decoder whose embedding_dim is None: the table "
                f"has another width. Received: embedding_dim={decoder.embedding_dim}."
            )
        self.head = LanguageModelHead(
            decoder.vocabulary_size,
            decoder.hidden_dim,
            tied_to=self.decoder.token_embedding if self.config.tie_head else None,
            use_bias=self.config.head_bias,
            scale=self.config.head_scale,
            soft_cap=self.config.head_soft_cap,
            kernel_initializer=make_initializer(decoder),
            dtype=self.dtype_policy,
            name="head",
        )
        self.build()

    @property
    def options(self):
        """The defaults of `generate`, where there are some."""
        defaults = dict(self.search_defaults)
        return {"search_defaults": defaults} if defaults else {}

    @property
    def ignore_id(self):
        """Padding, which the loss and the metrics leave out."""
        return self.config.pad_token_id

    def default_optimizer(self):
        """The paper's (section 5.3), with gradients clipped to norm 1."""
        return Adam(
            WarmupInverseSquareRoot(self.config.decoder.hidden_dim),
            beta_2=0.98,
            epsilon=1e-9,
            global_clipnorm=1.0,
        )

    def default_metrics(self):
        """Token accuracy and perplexity."""
        return [TokenAccuracy(self.ignore_id), Perplexity(self.ignore_id)]

    def _max_lengths(self):
        lengths = {}
        for name in self._signature():
            is_decoder = name == self.decoder_input
            stack = self.config.decoder if is_decoder else self.config.encoder
            if stack.positions == "learned":
                # The decoder reads all but the last id, which is only predicted.
                lengths[name] = stack.max_sequence_length + is_decoder
        return lengths or None

    def _inputs_and_targets(self, batch):
        full = batch[self.decoder_input]
        return {**batch, self.decoder_input: full[:, :-1]}, full[:, 1:]

    def targets(self, x):
        """What each decoder position should predict: the token after it, then padding.

        Args:
            x: dict of inputs with int (B, T) under the decoder's name; of prompts with
                bool (B, T), too, where the mask says what is padding.

        Returns:
            int (B, T). Padding predicts nothing and is not predicted.
        """
        # A tensor, as JAX has no int64, which numpy's ids are of.
        ids = keras.ops.convert_to_tensor(x[self.decoder_input])
        pad = self.config.pad_token_id
        last = ops.full((ops.dim(ids, 0), 1), pad, ids.dtype)
        after = ops.concatenate([ids[:, 1:], last], axis=1)
        if self.decoder_input != self.prompt_input:  # padded on the right, by ids
            return after
        real = ops.cast(self._padding_mask(ids, x.get(self.prompt_mask)), "int32")
        none = ops.full((ops.dim(ids, 0), 1), 0, "int32")
        both = real * ops.concatenate([real[:, 1:], none], axis=1)
        return ops.where(ops.not_equal(both, 0), after, ops.cast(pad, ids.dtype))

    def _targets_beside(self, x, y, weights):
        if y is None and weights is not None and isinstance(x, dict):
            return keras.ops.convert_to_numpy(self.targets(x))
        return super()._targets_beside(x, y, weights)

    def energy(self, x, y=None, *, batch_size=32):
        """-log p of each target sequence given what it follows from, in nats.

        The sum over its tokens, the end token among them: the energy of the pair (x, y)
        in an energy-based view, which training lowers for the pairs of the data.

        Args:
            x: strings as `fit` takes them, or a dict of int arrays as `call` does.
            y: likewise; targets int (B, T) beside a dict.
            batch_size: rows of a batch; strings of like length share one.

        Returns:
            float32 (B,), as a numpy array.

        Raises:
            ValueError: the examples cannot be read, or are longer than the learned
                positions: what is cut would not count; or a weight is not finite.
        """
        energies = self._energies(x, y, batch_size)
        if not np.isfinite(energies).all():
            self._explain_numbers("scored", "energies")
        return energies

    def _energies(self, x, y, batch_size):
        check_count("batch_size", batch_size)
        x, y = self._checked_examples(x), as_list(y)
        if not is_text(x):
            self._check_keys(x, self._signature(), [self.prompt_mask])
            y = keras.ops.convert_to_numpy(self.targets(x) if y is None else y)
            self._check_table(self.decoder_input, y)
            y = y.astype("int32")
            size = len(y)
            rows = [
                np.arange(i, min(i + batch_size, size))
                for i in range(0, size, batch_size)
            ]
            parts = [({k: np.asarray(v)[r] for k, v in x.items()}, y[r]) for r in rows]
            return np.concatenate([self._energy(*part) for part in parts])
        features = self.encode_examples(x, y)
        self._check_room(features)
        lengths = [len(row) for row in features[self.decoder_input]]
        order = np.argsort(lengths, kind="stable")
        energies = np.empty(len(lengths), "float32")
        for first in range(0, len(order), batch_size):
            chosen = order[first : first + batch_size]
            batch = {k: [rows[i] for i in chosen] for k, rows in features.items()}
            inputs, targets = self._inputs_and_targets(self._batch(batch))
            energies[chosen] = self._energy(inputs, targets)
        return energies

    def _check_room(self, features):
        """Raises `ValueError` where learned positions would cut an example."""
        for name, limit in (self._max_lengths() or {}).items():
            lengths = [len(row) for row in features[name]]
            longest = int(np.argmax(lengths))
            if lengths[longest] > limit:
                unread = name == self.decoder_input  # the last id, see `_max_lengths`
                raise ValueError(
                    f"The learned positions hold {limit - unread} tokens, and what is "
                    "cut would not count. Give shorter texts. Received: "
                    f"{lengths[longest] - unread} tokens in {name} of example "
                    f"{longest}."
                )

    def _energy(self, inputs, targets):
        names = sorted(inputs)

        def energy(*arrays):
            *arrays, targets = arrays
            logits = self(dict(zip(names, arrays)), training=False)
            return ops.sum(token_cross_entropy(targets, logits, self.ignore_id), axis=1)

        signature = [
            ((None, None), "bool" if name.endswith("mask") else "int32")
            for name in [*names, "targets"]
        ]
        run = self.compiled_function(("energy", *names), energy, signature)
        return run(*(inputs[name] for name in names), targets)

    def _compared(self, x, y):
        return self.targets(x) if y is None else y
