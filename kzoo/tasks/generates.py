"""`generate`: prompts in any form, batches of like lengths, one compiled search."""

import contextlib
import itertools
import warnings

import keras
import numpy as np

from kzoo import ops
from kzoo.arguments import check_count
from kzoo.generation import (
    IMPOSSIBLE,
    SEARCH_INPUTS,
    Place,
    Search,
    Start,
    search,
    shape_bucket,
)
from kzoo.generation.streaming import TextStream, before_end, before_stop
from kzoo.tasks.forms import is_text
from kzoo.tasks.search_defaults import SearchDefaults


class Generates(SearchDefaults):
    """Search over a task's next-token logits; a subclass says where it starts.

    It gives `start(inputs, entries)`, `step(tokens, cache, place, fixed)` and
    `encode_prompts(texts)`. A search goes this way, and not through `call`: what
    changes the logits there is to be done in `step`, too, of which a class that has
    but a `call` of its own is warned.
    """

    def search(self, inputs, options, capacity=None):
        """Generates from a batch of tensors (or ONNX values).

        Args:
            inputs: dict of the prompt's inputs, see `start`.
            options: see `kzoo.generation.search`.
            capacity: int, the most new tokens, where buffers are fixed.

        Returns:
            int (B, n, L) and float32 (B, n).
        """
        start = self._start(inputs, options, capacity)
        table = self.head.tied_to
        with table.attending(start.tokens) if table else contextlib.nullcontext():
            return search(self.step, start, options, capacity=capacity, **self._ids)

    def _start(self, inputs, options, capacity):
        """`start` with room for an entry of every beam and new token."""
        self._warn_of_own_call()
        entries = None if ops.buffers_grow() else capacity * options["beams"]
        return self.start(inputs, entries)

    def _warn_of_own_call(self):
        own = own_method(self, "call", unless="step")
        if own:
            warnings.warn(
                f"{own} is not asked by a search, which goes by step, also in files: "
                "what it changes of the logits is not in what is generated. Change "
                "them in step, too, which gets (tokens, cache, place, fixed); one that "
                "only calls super().step says that they are the same.",
                stacklevel=3,
            )

    @property
    def _ids(self):
        return dict(
            end_token_id=self.config.end_token_id,
            pad_token_id=self.config.pad_token_id,
            vocabulary_size=self.config.decoder.vocabulary_size,
        )

    def generate(
        self,
        inputs,
        *,
        return_scores=False,
        batch_size=32,
        progress=None,
        stream=False,
        jit_compile=False,
        **options,
    ):
        """Continues prompts, or translates sources.

        Args:
            inputs: a string or several; or ids: lists of int of any lengths, int
                (B, T), or a dict of int (B, T) and a padding mask.
            return_scores: whether scores are returned, too.
            batch_size: how many rows are computed at a time, longest first.
            progress: a function called with the number of rows done.
            stream: gives what comes as it comes, see below; with one beam, all prompts
                in one batch.
            jit_compile: on TensorFlow, whether XLA compiles the search, as it does on
                JAX: seconds for every new bucket of batch, length and `max_new_tokens`,
                and every other number of banned ids, forced tokens or states of a
                constraint; and a step in about 0.6 of the time from then on. `compile`
                has no say in it.
            **options: how it searches, see `kzoo.SearchOptions`: `max_new_tokens`,
                `beams`, `num_return_sequences`, `length_penalty`, `early_stopping`,
                `temperature`, `top_k`, `top_p`, `min_p`, `seed`, `repetition_penalty`,
                `no_repeat_ngram_size`, `min_new_tokens`, `renormalize`,
                `banned_tokens`, `max_length`, `forced_prefix`, `forced_tokens`,
                `stop_tokens`, `stop`, `constraint`, `processors`; what is left out is
                as `search_defaults` says.

        Returns:
            For strings a list of strings, for ids a list of lists of int (new tokens
            without end and padding, but with those of a stop string); a list of n of
            them a prompt with `num_return_sequences=n > 1`, fewer where no more exist;
            one string for one string. With `return_scores` a pair with the scores,
            float (B,) or (B, n), -inf for what does not exist: with one beam the
            model's log p of the tokens, with more what the search ranked by, penalties
            in it; over length ** length_penalty.

            With `stream` an iterator: of pieces of text for one string, which joined
            are the result, but where bytes that are no character make a decoder take
            back what is out; for several prompts of a list a step, with a piece of text
            or a list of ids for each, empty where nothing came.

        Raises:
            ValueError: no prompts, an option out of range, ids out of range,
                more positions than the model has, or `jit_compile` on torch.
        """
        single, inputs = isinstance(inputs, str), self._given(inputs)
        texts = single or is_text(inputs)
        given, options = options, self._search_options(options)
        check_count("batch_size", batch_size)
        flags = dict(jit_compile=jit_compile, return_scores=return_scores)
        for name, flag in {**flags, "stream": stream}.items():
            if flag not in (True, False):
                raise ValueError(f"{name} must be True or False. Received: {flag!r}.")
        if jit_compile and keras.backend.backend() == "torch":
            raise ValueError(
                "jit_compile=True has XLA compile the search, on TensorFlow or JAX. "
                "Keras runs on torch: leave it out, or set KERAS_BACKEND."
            )
        if progress is not None and not callable(progress):
            raise ValueError(
                "progress must be a function of the number of rows done. "
                f"Received: {progress!r}."
            )
        prompts = self.encode_prompts(inputs) if texts else self._prompts(inputs)
        options, limits = self._limited(options, given, prompts, together=stream)
        arrays = options.arrays(self.tokenizer, self.config, limits)
        if stream:
            if options.beams > 1 or return_scores or progress:
                raise ValueError(
                    "stream gives tokens as they are chosen, without scores: set "
                    "beams=1, return_scores=False, progress=None. Received: beams="
                    f"{options.beams}, return_scores={return_scores}, "
                    f"progress={progress!r}."
                )
            pieces = self._stream(prompts, options, arrays, texts, jit_compile)
            return (piece for (piece,) in pieces) if single else pieces
        with self._compiling(jit_compile):
            run = self._compiled_search(options, arrays, return_scores)
        ends = self._end_ids(arrays)
        results, scores = [None] * len(prompts), [None] * len(prompts)
        by_length = sorted(range(len(prompts)), key=lambda i: -len(prompts[i]))
        for rows in _batches(by_length, limits, batch_size):
            own = arrays | _limit(limits[rows[0]], arrays)
            with self._compiling(jit_compile):
                batch = self._search_batch([prompts[i] for i in rows], rows, own)
                sequences, values = run(*batch)
            for row, sequence, value in zip(rows, sequences, values, strict=False):
                if not (value < np.inf).all():
                    self._check_numbers(processed=bool(options.processors))
                real = value > IMPOSSIBLE / 2
                if not real.any():
                    self._check_numbers(prompts[row] if options.beams > 1 else None)
                results[row] = [
                    self._trimmed(ids, ends) for ids in sequence[real].tolist()
                ]
                scores[row] = np.where(real, value, -np.inf)
            if progress:
                progress(len(rows))
        if texts:
            flat = iter(self.decode([ids for row in results for ids in row]))
            results = [
                [before_stop(next(flat), options.stop) for _ in row] for row in results
            ]
        if options.num_return_sequences == 1:
            nothing = "" if texts else []
            results = [row[0] if row else nothing for row in results]
            scores = [value[0] for value in scores]
        results = results[0] if single else results
        return (results, np.array(scores)) if return_scores else results

    def _search_batch(self, prompts, rows, arrays):
        """The arguments of a compiled search for some of the prompts."""
        ids, mask = self._prompt_batch(prompts)
        numbers = [*rows, *[rows[-1]] * (len(ids) - len(rows))]  # of copies, too
        forced = arrays.get("forced_token_ids")
        if forced is not None and len(forced) > 1:
            arrays = {**arrays, "forced_token_ids": forced[numbers]}
        return ids, mask, numbers, *arrays.values()

    def _searched(self, options, arrays, return_scores=False):
        """What a search is compiled for, and a function that reads its arguments."""
        static, names = dict(options.static()), tuple(arrays)
        # Beams are ranked by them.
        static["return_scores"] = return_scores or options.beams > 1
        processors = tuple(options.processors)
        used = tuple(map(id, processors))  # they live as long as what is compiled
        grows, limit = ops.buffers_grow(), options.max_new_tokens
        capacity = None if grows else shape_bucket(limit)

        def read(row, *values):
            given = dict(zip(names, values, strict=True)) | {"row": row}
            own = {"processors": processors} if processors else {}
            return {**static, **given, **own}

        return (capacity, tuple(static.items()), names, used), capacity, read

    def _compiled_search(self, options, arrays, return_scores):
        key, capacity, read = self._searched(options, arrays, return_scores)

        def function(ids, mask, *values):
            inputs = {self.prompt_input: ids, self.prompt_mask: mask}
            return self.search(inputs, read(*values), capacity)

        signature = [
            ((None, None), "int32"),
            ((None, None), "bool"),
            ((None,), "int32"),
        ]
        for name in arrays:
            dtype, axes, _ = SEARCH_INPUTS[name]
            signature.append(((None,) * len(axes), dtype))
        return self.compiled_function(("generate", *key), function, signature)

    def _compiling(self, jit_compile):
        """Inside, a search is compiled as `jit_compile` of `generate` says."""
        return ops.fixed_buffers() if jit_compile else contextlib.nullcontext()

    def _stream(self, prompts, options, arrays, texts, jit_compile):
        """Yields a piece for each prompt, a step at a time."""
        with self._compiling(jit_compile):
            kept, state, following = self._begun(prompts, options, arrays)
        ends = self._end_ids(arrays)
        streams = [TextStream(self._decoded, options.stop) for _ in prompts]
        done = np.zeros(len(prompts), bool)
        for made in range(1, options.max_new_tokens + 1):
            with self._compiling(jit_compile):
                state = following(kept, state)
            tokens = keras.ops.convert_to_numpy(state["tokens"])[: len(prompts), 0]
            if not (keras.ops.convert_to_numpy(state["scores"]) < np.inf).all():
                self._check_numbers(processed=bool(options.processors))
            now = keras.ops.convert_to_numpy(state["done"])[: len(prompts), 0]
            new = [
                self._trimmed([] if over else [int(token)], ends)
                for over, token in zip(done, tokens, strict=True)
            ]
            last = now | (made == options.max_new_tokens)
            if texts:
                new = [
                    "" if over else stream.push(ids, over_now)
                    for over, stream, ids, over_now in zip(
                        done, streams, new, last, strict=True
                    )
                ]
            done = now
            if any(new):
                yield new
            if done.all():
                return

    def _begun(self, prompts, options, arrays):
        """What a search keeps, its first state, and a function of both to the next."""
        key, capacity, read = self._searched(options, arrays)

        def begin(ids, mask, *values):
            inputs = {self.prompt_input: ids, self.prompt_mask: mask}
            start = self._start(inputs, read(*values), capacity).prefilled()
            run = Search(self.step, start, read(*values), **self._ids)
            kept = {"fixed": start.fixed, "index": ops.as_scalar(start.index)}
            if start.prompt is not None:
                kept["prompt"] = start.prompt
            return kept, run.first(start, capacity)

        def advance(kept, state, *values):
            start = Start(state["tokens"], None, **kept)
            return Search(self.step, start, read(*values), **self._ids).advance(state)

        batch = self._search_batch(prompts, range(len(prompts)), arrays)
        kinds = ["int32", "bool", "int32", *(SEARCH_INPUTS[n][0] for n in arrays)]
        batch = [
            keras.ops.convert_to_tensor(array, dtype)
            for array, dtype in zip(batch, kinds, strict=True)
        ]
        begin = self.compiled_function(("begin", *key), begin, None).tensors
        advance = self.compiled_function(("advance", *key), advance, None).tensors
        return *begin(*batch), lambda kept, state: advance(kept, state, *batch[2:])

    def _check_numbers(self, prompt=None, processed=False):
        """Raises `ValueError` where a sequence is lost since a number is NaN.

        Args:
            prompt: ids, where bans may be the reason as well.
            processed: whether processors may be.
        """
        overflows = prompt is None
        if not overflows:
            ids, mask = self._prompt_batch([prompt])
            inputs = {self.prompt_input: ids, self.prompt_mask: mask}
            logits, _ = self._one_step(*self.start(inputs, 1).prefilled(True)[:4])
            overflows = np.isnan(keras.ops.convert_to_numpy(logits)).any()
        logits = "logits, or what processors made of them," if processed else "logits"
        self._explain_numbers("generated", logits if overflows else None)

    def decode(self, rows):
        """The strings of ids, of which those beyond the tokenizer's write nothing.

        A model's table may be larger than its tokenizer, padded to a round number.

        Args:
            rows: a list of lists of int.

        Returns:
            A list of strings.
        """
        size = self.tokenizer.vocabulary_size
        return self.tokenizer.decode([[i for i in row if i < size] for row in rows])

    def _decoded(self, ids):
        return self.decode([ids])[0]

    def _end_ids(self, arrays):
        return {self.config.end_token_id, *arrays.get("stop_token_ids", ())}

    def _trimmed(self, ids, ends):
        """The ids before what ends them, without padding."""
        return before_end(ids, ends, self.config.pad_token_id)

    def _one_step(self, tokens, cache, index, fixed):
        """The logits (B, V) behind one more token int (B,), and the cache."""
        self._warn_of_own_call()
        tokens, place = ops.expand_dims(tokens, 1), Place.behind(index, by_row=True)
        logits, cache = self.step(tokens, cache, place, fixed)
        return ops.reshape(logits, (-1, logits.shape[-1])), cache


def own_method(task, *names, unless=None):
    """The first of these methods that a class of the user's own has, or `None`.

    Args:
        task: the task.
        *names: of methods.
        unless: one that says, in that class or below it, that they do not matter.
    """
    for base in type(task).__mro__:
        if base.__module__.startswith("kzoo.") or unless in vars(base):
            return None
        for name in names:
            if name in vars(base):
                return f"{base.__name__}.{name}"
    return None


def _batches(rows, limits, size):
    """Rows, so many at a time, those of a batch with the same limit."""
    for _, group in itertools.groupby(rows, key=limits.__getitem__):
        group = list(group)
        yield from (group[i : i + size] for i in range(0, len(group), size))


def _limit(limit, arrays):
    """The inputs of a search for prompts that leave `limit` new tokens."""
    least = arrays.get("min_new_tokens")
    own = {"max_new_tokens": limit}
    return own if least is None else {**own, "min_new_tokens": min(least, limit)}
