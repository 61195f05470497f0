"""`generate`: prompts in any form, batches of like lengths, one compiled search."""

import math
import numbers

import keras
import numpy as np

from kzoo import ops
from kzoo.generation import IMPOSSIBLE, search, shape_bucket
from kzoo.tasks.task import Task
from kzoo.tasks.text_data import is_text


class Generates(Task):
    """Search over a task's next-token logits; a subclass says where it starts.

    It gives `start(inputs, capacity)`, `encode_prompts(texts)`, `prompt_input` and
    `prompt_side`.
    """

    prompt_input: str
    prompt_side: str

    def search(self, inputs, options, capacity=None):
        """Generates from a batch of tensors (or ONNX values).

        Args:
            inputs: dict of the prompt's inputs, see `start`.
            options: see `kzoo.generation.search`.
            capacity: int, the most new tokens, where buffers are fixed.

        Returns:
            int (B, n, L) and float32 (B, n).
        """
        tokens, cache, index, step = self.start(inputs, capacity)
        return search(
            step,
            tokens,
            cache,
            index,
            options,
            end_token_id=self.config.end_token_id,
            pad_token_id=self.config.pad_token_id,
            capacity=capacity,
        )

    def generate(
        self,
        inputs,
        *,
        max_new_tokens=128,
        beams=1,
        length_penalty=1.0,
        early_stopping=True,
        num_return_sequences=1,
        temperature=0.0,
        seed=0,
        return_scores=False,
        batch_size=32,
        progress=None,
    ):
        """Continues prompts, or translates sources.

        Args:
            inputs: a string or a list of them; or ids: a list of lists of int of any
                lengths, int (B, T), or a dict of int (B, T) and a padding mask.
            max_new_tokens: always bounds the result; the end token counts.
            beams: 1 is greedy search.
            length_penalty: a number p; a sequence's score is log P / length ** p.
            early_stopping: see `kzoo.generation.search`.
            num_return_sequences: how many a prompt, best first; at most `beams`.
            temperature: above 0, with one beam, each token is drawn from
                softmax(logits / temperature); at 0 it is the most probable one.
            seed: of the draws, an int32. They follow from it and a prompt's place among
                the prompts, whatever its batch, and are those of exported files.
            return_scores: whether scores are returned, too.
            batch_size: how many rows are computed at a time, longest first.
            progress: a function called with the number of rows done.

        Returns:
            For strings a list of strings, for ids a list of lists of int (new tokens
            without end and padding); a list of n of them a prompt with
            `num_return_sequences=n > 1`, fewer where no more exist; one string for one
            string. With `return_scores` a pair with the scores, float (B,) or (B, n),
            -inf for what does not exist.

        Raises:
            ValueError: no prompts, an option out of range, ids out of range, or
                more positions than the model has.
        """
        single = isinstance(inputs, str)
        texts = single or is_text(inputs)
        _check_options(
            max_new_tokens,
            beams,
            num_return_sequences,
            batch_size,
            length_penalty,
            early_stopping,
            temperature,
            seed,
        )
        prompts = (
            self.encode_prompts([inputs] if single else inputs)
            if texts
            else self._prompts(inputs)
        )
        self._check_prompts(prompts, max_new_tokens)
        run = self._generate_function(
            shape_bucket(max_new_tokens),
            beams,
            num_return_sequences,
            early_stopping,
            temperature > 0,
        )
        results, scores = [None] * len(prompts), [None] * len(prompts)
        by_length = sorted(range(len(prompts)), key=lambda i: -len(prompts[i]))
        for first in range(0, len(prompts), batch_size):
            rows = by_length[first : first + batch_size]
            ids, mask = self._prompt_batch([prompts[i] for i in rows])
            numbers = rows + [0] * (len(ids) - len(rows))
            sequences, values = run(
                ids, mask, numbers, max_new_tokens, length_penalty, temperature, seed
            )
            for row, sequence, value in zip(rows, sequences, values, strict=False):
                real = value > IMPOSSIBLE / 2
                results[row] = [self._trimmed(ids) for ids in sequence[real].tolist()]
                scores[row] = np.where(real, value, -np.inf)
            if progress:
                progress(len(rows))
        if texts:
            flat = iter(self.tokenizer.decode([ids for row in results for ids in row]))
            results = [[next(flat) for _ in row] for row in results]
        if num_return_sequences == 1:
            results = [row[0] for row in results]
            scores = [value[0] for value in scores]
        results = results[0] if single else results
        return (results, np.array(scores)) if return_scores else results

    def _generate_function(self, capacity, beams, count, early_stopping, draws):
        capacity = capacity if keras.backend.backend() == "jax" else None

        def function(ids, mask, row, max_new_tokens, length_penalty, temperature, seed):
            inputs = {self.prompt_input: ids, self.prompt_mask: mask}
            options = dict(
                max_new_tokens=max_new_tokens,
                beams=beams,
                num_return_sequences=count,
                length_penalty=length_penalty,
                early_stopping=early_stopping,
            )
            if draws:
                options |= dict(temperature=temperature, seed=seed, row=row)
            return self.search(inputs, options, capacity)

        return self.compiled_function(
            ("generate", capacity, beams, count, early_stopping, draws),
            function,
            [
                ((None, None), "int32"),
                ((None, None), "bool"),
                ((None,), "int32"),
                ((), "int32"),
                ((), "float32"),
                ((), "float32"),
                ((), "int32"),
            ],
        )

    @property
    def prompt_mask(self):
        """The name of the prompt's padding mask."""
        return self.prompt_input.replace("token_ids", "padding_mask")

    def _prompts(self, inputs):
        """Lists of real ids, from ids in any form."""
        mask = None
        if isinstance(inputs, dict):
            self._check_keys(inputs, [self.prompt_input], [self.prompt_mask])
            mask = inputs.get(self.prompt_mask)
            inputs = inputs[self.prompt_input]
        rows = [np.asarray(row) for row in inputs]
        for row in rows:
            if row.ndim != 1 or (row.size and row.dtype.kind not in "iu"):
                raise ValueError(
                    f"{self.name}.generate expects strings, or rows of integer ids. "
                    f"Received a row of shape {row.shape}, dtype {row.dtype}."
                )
        pad = self.config.pad_token_id
        if mask is None:
            return [row[row != pad].tolist() for row in rows]  # as `call` masks them
        mask = np.asarray(mask, bool)
        return [row[m].tolist() for row, m in zip(rows, mask, strict=True)]

    def _check_keys(self, inputs, required, optional):
        if not set(required) <= set(inputs) <= {*required, *optional}:
            raise ValueError(
                f"{self.name} reads {required}, and {optional} where given. "
                f"Received the keys {sorted(inputs)}."
            )

    def _check_prompts(self, prompts, max_new_tokens):
        if not prompts:
            raise ValueError(f"{self.name}.generate needs at least one prompt.")
        stack = self.config.encoder or self.config.decoder
        highest = max((max(ids, default=0) for ids in prompts), default=0)
        lowest = min((min(ids, default=0) for ids in prompts), default=0)
        if lowest < 0 or highest >= stack.vocabulary_size:
            raise ValueError(
                f"Token ids must be in [0, {stack.vocabulary_size}). "
                f"Received: {lowest if lowest < 0 else highest}."
            )
        longest = max(len(ids) for ids in prompts)
        limits = {"encoder": longest, "decoder": max_new_tokens}
        if not self.config.encoder:
            limits = {"decoder": longest + max_new_tokens}
        for name, needed in limits.items():
            config = getattr(self.config, name)
            if config.positions == "learned" and needed > config.max_sequence_length:
                raise ValueError(
                    f"The {name} has {config.max_sequence_length} learned positions. "
                    f"Received: a prompt of {longest} tokens and max_new_tokens="
                    f"{max_new_tokens}. Shorten one of them."
                )

    def _prompt_batch(self, prompts):
        """Ids and mask, int32 and bool (B, T), padded to a shape bucket."""
        from kzoo.data import padded_batch

        longest = max(1, max(len(ids) for ids in prompts))
        length, count = shape_bucket(longest), shape_bucket(len(prompts))
        encoder = self.config.encoder
        if encoder and encoder.positions == "learned":
            length = min(length, encoder.max_sequence_length)
        # Rows that fill the bucket are copies: they end no later than the others.
        rows = list(prompts) + [prompts[-1]] * (count - len(prompts))
        pad, side = self.config.pad_token_id, self.prompt_side
        ids = padded_batch(rows, length, pad_id=pad, side=side)
        ones = [[1] * len(row) for row in rows]
        return ids, padded_batch(ones, length, side=side).astype(bool)

    def _trimmed(self, ids):
        """The ids before the end token, without padding."""
        config = self.config
        if config.end_token_id in ids:
            ids = ids[: ids.index(config.end_token_id)]
        return [i for i in ids if i != config.pad_token_id]

    def _last_states(self, states):
        """float (R, 1, D) to (R, D)."""
        return ops.reshape(states, (-1, self.config.decoder.hidden_dim))


def _check_options(
    max_new_tokens,
    beams,
    num_return_sequences,
    batch_size,
    length_penalty,
    early_stopping,
    temperature,
    seed,
):
    for name, value in dict(
        max_new_tokens=max_new_tokens,
        beams=beams,
        num_return_sequences=num_return_sequences,
        batch_size=batch_size,
    ).items():
        integer = isinstance(value, numbers.Integral) and not isinstance(value, bool)
        if not integer or value < 1:
            raise ValueError(
                f"{name} must be an integer of at least 1. Received: {value!r}."
            )
    if num_return_sequences > beams:
        raise ValueError(
            "num_return_sequences must be at most beams. Received: "
            f"num_return_sequences={num_return_sequences}, beams={beams}."
        )
    for name, value, lowest in (
        ("length_penalty", length_penalty, -math.inf),
        ("temperature", temperature, 0.0),
    ):
        number = isinstance(value, numbers.Real) and math.isfinite(value)
        if not number or value < lowest:
            raise ValueError(
                f"{name} must be a finite number"
                f"{'' if lowest else ' and not negative'}. Received: {value!r}."
            )
    if temperature and beams > 1:
        raise ValueError(
            "Tokens are drawn with one beam: set temperature=0 or beams=1. Received: "
            f"temperature={temperature}, beams={beams}."
        )
    if not isinstance(seed, numbers.Integral) or not -(2**31) <= seed < 2**31:
        raise ValueError(f"seed must be an int32. Received: {seed!r}.")
    if early_stopping not in (True, False):
        raise ValueError(
            f"early_stopping must be True or False. Received: {early_stopping!r}."
        )
