"""What a `generation_config.json` says about a search, as `SearchOptions`, and back.

Two things are not as in transformers: where no length is said, kzoo's own 128 new
tokens bound a result, not 20; and `early_stopping=False` goes on until no sequence can
score better, as transformers does with "never", not until none is likely to.
"""

import math
import numbers

from kzoo.arguments import is_integer, is_number

# Keys that are options under another name, or the same; None and these values are off.
_OPTIONS = {
    "max_length": ("max_length", None),
    "max_new_tokens": ("max_new_tokens", None),
    "min_new_tokens": ("min_new_tokens", 0),
    "num_beams": ("beams", 1),
    "num_return_sequences": ("num_return_sequences", 1),
    "length_penalty": ("length_penalty", 1.0),
    "repetition_penalty": ("repetition_penalty", 1.0),
    "no_repeat_ngram_size": ("no_repeat_ngram_size", 0),
    "renormalize_logits": ("renormalize", False),
    "stop_strings": ("stop", None),
}
_COUNTS = (
    "max_new_tokens min_new_tokens no_repeat_ngram_size num_beams num_return_sequences"
)
_SAMPLING = {"temperature": 1.0, "top_k": 50, "top_p": 1.0, "min_p": 0.0}
# Keys of which one value, beside None, asks for nothing: others cannot be followed.
_OFF = {
    "begin_suppress_tokens": [],
    "constraints": None,
    "diversity_penalty": 0.0,
    "dola_layers": None,
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "exponential_decay_length_penalty": None,
    "force_words_ids": None,
    "guidance_scale": 1.0,
    "max_time": None,
    "num_beam_groups": 1,
    "penalty_alpha": 0.0,
    "sequence_bias": None,
    "token_healing": False,
    "top_h": None,
    "typical_p": 1.0,
    "watermarking_config": None,
}
_READ = {
    *_OPTIONS,
    *_SAMPLING,
    *("bad_words_ids", "suppress_tokens", "do_sample", "early_stopping", "min_length"),
    *("forced_bos_token_id", "forced_eos_token_id", "eos_token_id"),
    "decoder_start_token_id",
}
# Keys that say how something is computed or given back, not what.
_IRRELEVANT = {
    "_from_model_config",
    "assistant_confidence_threshold",
    "assistant_early_exit",
    "assistant_ensemble_weight",
    "assistant_lookbehind",
    "bos_token_id",
    "cache_config",
    "cache_implementation",
    "compile_config",
    "disable_compile",
    "is_assistant",
    "low_memory",
    "max_cache_len",
    "max_matching_ngram_size",
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "output_attentions",
    "output_hidden_states",
    "output_logits",
    "output_scores",
    "pad_token_id",
    "prefill_chunk_size",
    "prompt_lookup_num_tokens",
    "remove_invalid_values",  # kzoo says which weight is not a number
    "return_dict_in_generate",
    "speculation_type",
    "target_lookbehind",
    "transformers_version",
    "use_cache",
    "use_mtp",
}
# What a `config.json` of before generation_config.json may hold, too.
OLDER = (_READ | set(_OFF)) - {"eos_token_id", "decoder_start_token_id"}


def check_generation(keys, vocabulary_size):
    """Checks the types of the values of a `generation_config.json`.

    Args:
        keys: dict; what is `None` counts as left out.
        vocabulary_size: above all ids.

    Raises:
        ValueError: a value of another type, or an id that is none; its key is named.
    """

    def is_id(value):
        return is_integer(value) and 0 <= value < vocabulary_size

    def list_of(check, least=0):
        def holds(values):
            enough = isinstance(values, list) and len(values) >= least
            return enough and all(map(check, values))

        return holds

    def is_text(value):
        return isinstance(value, str)

    def is_switch(value):
        return isinstance(value, bool)

    def is_end(value):  # larger ones never come
        return is_integer(value) and value >= 0

    ids, inside = list_of(is_id), f"in [0, {vocabulary_size})"
    expected = {  # what is said, the names of keys, what one of these holds for
        "a whole number": (f"max_length min_length {_COUNTS} top_k", [is_integer]),
        "a number": (
            "length_penalty min_p repetition_penalty temperature top_p",
            [is_number],
        ),
        "true or false": ("do_sample renormalize_logits", [is_switch]),
        "true, false or 'never'": ("early_stopping", [is_switch, "never".__eq__]),
        "a string or a list of some": ("stop_strings", [is_text, list_of(is_text)]),
        f"an id {inside}": ("decoder_start_token_id forced_bos_token_id", [is_id]),
        f"an id {inside} or a list of ids": (
            "eos_token_id",
            [is_end, list_of(is_end)],
        ),
        f"an id {inside} or a list with at least one": (
            "forced_eos_token_id",
            [is_id, list_of(is_id, least=1)],
        ),
        f"a list of ids {inside}": ("suppress_tokens", [ids]),
        f"a list of lists of ids {inside}": (
            "bad_words_ids",
            [list_of(list_of(is_id, least=1))],
        ),
    }
    for what, (names, checks) in expected.items():
        for name in names.split():
            value = keys.get(name)
            if value is not None and not any(check(value) is True for check in checks):
                raise ValueError(f"{name} must be {what}. Received: {value!r}.")


def read_generation(keys, decoder_alone):
    """Search options of the keys of a `generation_config.json`.

    Args:
        keys: dict; what is `None` counts as left out.
        decoder_alone: whether lengths count the prompt.

    Returns:
        A dict of `SearchOptions`' fields; ids of ends; and a dict of the keys that
        cannot be followed.
    """
    keys = {name: value for name, value in keys.items() if value is not None}
    left = {
        name: value
        for name, value in keys.items()
        if name not in _READ | _IRRELEVANT and value != _OFF.get(name)
    }
    found = {
        field: keys[name]
        for name, (field, off) in _OPTIONS.items()
        if keys.get(name, off) != off
    }
    ends = keys.get("eos_token_id", [])
    ends = list(ends) if isinstance(ends, list) else [ends]
    if "beams" in found:
        found["early_stopping"] = keys.get("early_stopping", False) is True
    draws = keys.get("do_sample") and keys.get("temperature", 1.0) > 0
    if draws and "beams" in found:
        left["do_sample"] = True
    elif draws:
        drawn = {name: keys.get(name, off) for name, off in _SAMPLING.items()}
        off = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
        found |= {n: value for n, value in drawn.items() if value != off.get(n)}
    if found.get("num_return_sequences", 1) > found.get("beams", 1):
        left["num_return_sequences"] = found.pop("num_return_sequences")
    shortest = keys.get("min_length", 0)
    if shortest and decoder_alone:
        left["min_length"] = shortest
    elif shortest > 1:
        found.setdefault("min_new_tokens", shortest - 1)
    most = found.get("max_new_tokens", math.inf)
    if found.get("min_new_tokens", 0) > most:  # no end comes before the limit
        name = "min_new_tokens" if keys.get("min_new_tokens") else "min_length"
        left[name], found["min_new_tokens"] = keys[name], most
    words = [
        word
        for word in keys.get("bad_words_ids", [])
        if word not in ([e] for e in ends)
    ]
    banned = [*keys.get("suppress_tokens", []), *(w[0] for w in words if len(w) == 1)]
    if banned:
        found["banned_tokens"] = list(dict.fromkeys(banned))
    if any(len(word) > 1 for word in words):
        left["bad_words_ids"] = [word for word in words if len(word) > 1]
    forced = {}
    for name, place in (("forced_bos_token_id", 0), ("forced_eos_token_id", -1)):
        if name in keys and (decoder_alone and place == 0):
            left[name] = keys[name]
        elif name in keys:
            ids = keys[name] if isinstance(keys[name], list) else [keys[name]]
            forced[place] = ids[0]
            left |= {name: ids} if len(ids) > 1 else {}
    if forced:
        found["forced_tokens"] = forced
    return found, ends, left


def write_generation(options, config, tokenizer=None):
    """The keys of a `generation_config.json` that `read_generation` reads alike.

    Args:
        options: dict of `SearchOptions`' fields.
        config: the `ModelConfig`.
        tokenizer: for tokens given as strings; without one they cannot be said.

    Returns:
        A dict; and a dict of the options that it cannot say.
    """
    options = dict(options)
    unsaid = {
        name: options.pop(name)
        for name in ("stop_tokens", "banned_tokens")
        if _ids(options.get(name), tokenizer) is None
    }
    stops, banned = (
        _ids(options.pop(name, None), tokenizer)
        for name in ("stop_tokens", "banned_tokens")
    )
    ends = list(dict.fromkeys([config.end_token_id, *stops]))
    keys = {
        "eos_token_id": ends if len(ends) > 1 else ends[0],
        "pad_token_id": config.pad_token_id,
    }
    start = "decoder_start_token_id" if config.encoder else "bos_token_id"
    keys[start] = config.start_token_id
    for name, (field, _) in _OPTIONS.items():
        if field in options:
            keys[name] = options.pop(field)
    if options.get("temperature"):
        keys |= {"do_sample": True, "top_k": 0}
        keys |= {name: options.pop(name) for name in _SAMPLING if name in options}
    if keys.get("num_beams", 1) > 1:
        keys["early_stopping"] = options.pop("early_stopping", True) or "never"
    words = [[token] for token in banned if token not in ends]
    suppressed = [token for token in banned if token in ends]  # no words there
    keys |= {"bad_words_ids": words} if words else {}
    keys |= {"suppress_tokens": suppressed} if suppressed else {}
    forced = options.pop("forced_tokens", None) or {}
    names = {-1: "forced_eos_token_id"}
    if config.encoder:  # a decoder's first token is the prompt's
        names[0] = "forced_bos_token_id"
    ids = {place: _ids([token], tokenizer) for place, token in forced.items()}
    if set(ids) - set(names) or None in ids.values():
        options["forced_tokens"] = forced
    keys |= {names[p]: found[0] for p, found in ids.items() if p in names and found}
    off = {**dict.fromkeys((*_SAMPLING, "seed"), 0), "top_p": 1, "early_stopping": True}
    left = {name: value for name, value in options.items() if value is not None}
    left = {n: v for n, v in left.items() if n not in off or v != off[n]}
    return keys, {**unsaid, **left}


def _ids(tokens, tokenizer):
    """Ids of ids or of strings of one token each; `None` where one is no such."""
    if tokens is None:
        return []
    found = []
    for token in [tokens] if isinstance(tokens, (str, numbers.Integral)) else tokens:
        if isinstance(token, str):
            ids = tokenizer.encode_targets([token])[0] if tokenizer else []
            if len(ids) != 1:
                return None
            (token,) = ids
        found.append(int(token))
    return found
