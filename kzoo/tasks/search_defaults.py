"""The options of a task's searches: its defaults, the caller's, and their limits."""

import dataclasses
from types import MappingProxyType

import numpy as np

from kzoo.generation import SearchOptions, as_defaults
from kzoo.tasks.prompts import ReadsPrompts


class SearchDefaults(ReadsPrompts):
    """What a search of the task begins with, where the caller says nothing else.

    A subclass gives `search_arguments()`, the inputs of an exported search.
    """

    # Functions of scores and a context, see `kzoo.generation.processors`, that every
    # search of this task goes through, those of its files, too. Not saved with it.
    processors: tuple = ()
    _search_defaults = MappingProxyType({})

    @property
    def search_defaults(self):
        """What `generate` and `search_inputs` begin with: a mapping of `SearchOptions`.

        A pretrained model brings its own. The caller's options win, also over defaults
        that contradict them. Saved with the task, and not in its files.

        Raises:
            ValueError: on setting, an unknown or wrong option, or one that JSON has
                not.
        """
        return self._search_defaults

    @search_defaults.setter
    def search_defaults(self, defaults):
        # Past Keras, which would wrap the dict.
        object.__setattr__(self, "_search_defaults", as_defaults(defaults))

    def search_inputs(self, format="tf_saved_model", **options):
        """The inputs of an exported `generate` for these options, but the prompts.

        Args:
            format: of the file: `"onnx"` has int64 where others have int32.
            **options: of `generate`.

        Returns:
            dict of numpy arrays: all inputs, of which ONNX lets those be left out that
            are off.
        """
        if format not in ("onnx", "tf_saved_model"):
            raise ValueError(
                "format must be 'onnx' or 'tf_saved_model', as of the file. "
                f"Received: {format!r}."
            )
        if not self.config.encoder and options.get("max_length") is not None:
            raise ValueError(
                "max_length counts the prompt, too, which is not known here: give "
                f"max_new_tokens. Received: max_length={options['max_length']!r}."
            )
        options = self._with_limit(self._search_options(options), options)
        if options.processors != self.own_processors:
            raise ValueError(
                "A file holds those processors that the task had when it was exported: "
                "set task.processors and export it. Received: processors="
                f"{options.processors!r}."
            )
        forced = options.forced_prefix
        rows = len(forced) if isinstance(forced, (list, tuple)) else 1
        limits = [options.max_new_tokens] * rows
        given = options.arrays(self.tokenizer, self.config, limits)
        given |= dict(options.static())
        integer = "int64" if format == "onnx" else "int32"
        dtypes = {"int32": integer, "float32": "float32", "bool": "bool"}
        return {
            a.name: np.asarray(given.get(a.name, a.default), dtypes[a.dtype])
            for a in self.search_arguments()
        }

    def room(self, count, prompt=None):
        """`count` new tokens, or as many as learned positions leave beside a prompt.

        Args:
            count: int.
            prompt: its length in tokens; half the positions by default.
        """
        decoder = self.config.decoder
        if decoder.positions != "learned":
            return count
        limit = decoder.max_sequence_length
        if not self.config.encoder:
            limit = limit // 2 if prompt is None else limit - prompt
        return min(count, max(1, limit))

    def _search_options(self, options):
        names = {field.name for field in dataclasses.fields(SearchOptions)}
        unknown = sorted(set(options) - names)
        if unknown:
            raise TypeError(
                f"generate has no option {unknown[0]!r}. Its options are "
                f"{sorted(names)}."
            )
        forces = "forced_tokens" in options
        options = SearchOptions.over(self._defaults_without_language(), options)
        every = (*self.own_processors, *options.processors)
        options = dataclasses.replace(options, processors=every)
        options = options.with_stops(self.own_stops)
        # Tokens that defaults force stand first, as checkpoints mean it.
        own = options if forces else dataclasses.replace(options, forced_tokens=None)
        if self.target_prefix or not own.begins:
            return options.behind(self.target_prefix, self.tokenizer)
        # What a model has learned to write first stands before what it must write.
        return options.behind(self.learned_prefix, self.tokenizer, unless_there=True)

    def _defaults_without_language(self):
        """The defaults, but for a language where the tokenizer has been told another.

        A checkpoint's files force its code; `for_languages` may come later.
        """
        forced = dict(self.search_defaults.get("forced_tokens") or {})
        known = self.tokenizer.conventions.languages if self.target_prefix else {}
        if forced.get(0) not in known.values():
            return self.search_defaults
        del forced[0]
        forced = {max(place - 1, -1): token for place, token in forced.items()}
        return {**self.search_defaults, "forced_tokens": forced}

    @property
    def own_stops(self):
        """Ids that end all that is generated, besides the end token."""
        return self.tokenizer.conventions.stop_token_ids if self.tokenizer else ()

    @property
    def target_prefix(self):
        """Ids that all that is generated begins with, such as a language's code."""
        if self.tokenizer is None or self.config.encoder is None:
            return ()
        return self.tokenizer.conventions.target_prefix

    @property
    def learned_prefix(self):
        """Ids that all targets begin with that the model learns from."""
        if self.tokenizer is None or self.config.encoder is None:
            return ()
        return self.target_prefix or self.tokenizer.conventions.learned_prefix

    @property
    def own_processors(self):
        """The task's processors as a checked tuple."""
        return SearchOptions(processors=self.processors).processors

    def _limited(self, options, given, prompts, together):
        """The options with a number of new tokens, and that of each prompt.

        Where it is not given, a prompt has what learned positions leave beside it, or
        beside the longest if all are searched together.
        """
        if not prompts:
            raise ValueError(
                f"{self.name}.generate needs at least one prompt. Received: none."
            )
        longest = max(map(len, prompts))
        # What is to be forced at the last place has one place in all rows.
        together = together or -1 in (options.forced_tokens or {})
        found = {
            length: self._with_limit(options, given, length, longest)
            for length in ({longest} if together else set(map(len, prompts)))
        }
        limits = [
            found[longest if together else len(p)].max_new_tokens for p in prompts
        ]
        self._check_prompts(prompts, limits)
        return max(found.values(), key=lambda o: o.max_new_tokens), limits

    def _with_limit(self, options, given, prompt=None, longest=None):
        """The options with a number of new tokens, where they do not say; see `room`.

        Of a minimum and a limit that contradict each other the given one is kept.
        """
        if options.max_new_tokens is not None:
            return options
        limit, least = self.room(128, prompt), options.min_new_tokens
        before = 1 if self.config.encoder else longest
        if options.max_length is not None and before is not None:
            rest = options.max_length - before
            if rest < 1 and "max_length" in given:
                raise ValueError(
                    "max_length counts the longest prompt, too, here "
                    f"{before} tokens: give more, or max_new_tokens. Received: "
                    f"{options.max_length}."
                )
            limit = self.room(max(1, rest), prompt)
        if least > limit and "min_new_tokens" not in given:
            least = limit
        elif least > limit and "max_length" not in given:
            limit = self.room(max(128, least), prompt)
        return dataclasses.replace(options, max_new_tokens=limit, min_new_tokens=least)
