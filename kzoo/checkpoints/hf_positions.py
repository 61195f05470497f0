"""Rules of rotary positions and windows, between `config.json` and `ModelConfig`."""

import math

from kzoo.checkpoints.hf_config import Rule, Unsupported
from kzoo.config import RopeScaling

_HEADS = "num_attention_heads"


def rotary(part=None, parted=1.0, older="rope_theta"):
    """The rule of rotary positions: one kind for all layers.

    It reads `rope_parameters`, or `rope_theta` and `rope_scaling` as older files have
    them; both are written, since programs that know the older keys alone would compute
    with a default.

    Args:
        part: older key of the share of a head that rotates; `None` where the family's
            classes turn whole heads, whatever their configs say.
        parted: that share, where it is left out.
        older: older key of the base that is written.
    """
    share = part or "partial_rotary_factor"

    def read(keys):
        rope = _merged(keys.get("rope_parameters"), keys.get("rope_scaling"))
        base = rope.pop("rope_theta", None) or keys.get("rope_theta")
        base = base or keys.get(older) or 10_000.0
        rotates = rope.pop("partial_rotary_factor", None)
        rotates = keys.get(share) if rotates is None else rotates
        rotates = parted if rotates is None else rotates
        if part is None and rotates != 1:
            raise Unsupported(
                f"{share}={rotates} is not supported: this family turns whole heads."
            )
        width = keys.get("head_dim") or keys["hidden_size"] // keys[_HEADS]
        turned = int(width * rotates)
        return {
            "rope_max_wavelength": float(base),
            "rotary_dim": None if turned == width else turned,
            "rope_scaling": rope_scaling(rope, keys),
        }

    def write(field_of):
        scaling = field_of("rope_scaling")
        rope = {"rope_theta": field_of("rope_max_wavelength"), **written(scaling)}
        keys = {older: rope["rope_theta"], **_older_scaling(scaling)}
        width, turned = field_of("head_dim"), field_of("rotary_dim")
        if part is not None and (turned is not None or parted != 1):
            share = (turned or width) / width
            if int(width * share) != (turned or width):  # as it is read
                share = math.nextafter(share, 2)
            rope["partial_rotary_factor"] = keys[part] = share
        return {**keys, "rope_parameters": rope}

    names = ("rope_parameters", "rope_scaling", "rope_theta", older, share)
    names = (*names, "original_max_position_embeddings", "hidden_size", _HEADS)
    return Rule(names, read, write)


def _merged(given, older):
    """What `rope_parameters` and the older `rope_scaling` say, which has to be one."""
    given, older = dict(given or {}), dict(older or {})
    if "type" in older:
        older.setdefault("rope_type", older.pop("type"))
    if given and any(given.get(key) != value for key, value in older.items()):
        raise Unsupported(
            "rope_parameters and rope_scaling must say the same. "
            f"Received: {given} and {older}."
        )
    return given | older


def rope_scaling(rope, keys):
    """A `RopeScaling` of a dict as files have it, or `None`.

    Raises:
        Unsupported: a kind, or a key, that kzoo does not know.
    """
    rope = dict(rope)
    kind = rope.pop("rope_type", None) or rope.pop("type", None) or "default"
    rope.pop("type", None)
    length = rope.pop("original_max_position_embeddings", None)
    length = keys.get("original_max_position_embeddings") or length
    length = length or keys.get("max_position_embeddings")

    def needed(name):
        if name not in rope:
            raise Unsupported(f"The {kind!r} rope parameters lack {name!r}.")
        return rope.pop(name)

    if kind == "default":
        fields = {}
    elif kind == "linear":
        fields = dict(factor=float(needed("factor")))
    elif kind == "llama3":
        fields = dict(
            factor=float(needed("factor")),
            original_length=length,
            low_frequency_factor=float(needed("low_freq_factor")),
            high_frequency_factor=float(needed("high_freq_factor")),
        )
    elif kind == "yarn":
        factor = needed("factor") or keys["max_position_embeddings"] / length
        scales = [rope.pop("mscale", None), rope.pop("mscale_all_dim", None)]
        attention = rope.pop("attention_factor", None)
        if attention is None and all(scales):
            first, second = (0.1 * scale * math.log(factor) + 1.0 for scale in scales)
            attention = first / second if factor > 1 else 1.0
        fields = dict(
            factor=float(factor),
            original_length=length,
            beta_fast=float(rope.pop("beta_fast", None) or 32),
            beta_slow=float(rope.pop("beta_slow", None) or 1),
            attention_factor=attention,
            truncate=rope.pop("truncate", True),
        )
    else:
        raise Unsupported(
            f"rope_type={kind!r} is not supported. "
            "Supported: 'default', 'linear', 'llama3', 'yarn'."
        )
    if rope:
        raise Unsupported(
            f"The {kind!r} rope parameters {sorted(rope)} are not supported."
        )
    own = {"llama3": "bands"}.get(kind, kind)
    return RopeScaling(kind=own, **fields) if fields else None


def written(scaling):
    """The dict that `rope_scaling` reads."""
    if scaling is None:
        return {"rope_type": "default"}
    kind = {"bands": "llama3"}.get(scaling.kind, scaling.kind)
    values = {"rope_type": kind, "factor": scaling.factor}
    if scaling.kind != "linear":
        values["original_max_position_embeddings"] = scaling.original_length
    if scaling.kind == "bands":
        values["low_freq_factor"] = scaling.low_frequency_factor
        values["high_freq_factor"] = scaling.high_frequency_factor
    if scaling.kind == "yarn":
        values |= {
            name: getattr(scaling, name)
            for name in ("beta_fast", "beta_slow", "attention_factor", "truncate")
        }
    return values


def _older_scaling(scaling):
    """The older key of a `RopeScaling`, where there is one."""
    return {} if scaling is None else {"rope_scaling": written(scaling)}


def window(
    key="sliding_window",
    types=None,
    default=None,
    both_sides=False,
    switch=None,
):
    """The rule of windows: all layers have one, or those that `layer_types` names.

    Args:
        key: of the window's length.
        types: what says the layers' types where `layer_types` is left out: the keys
            that it reads, and a function of a dict of all keys to the list of types;
            `None` where all have the window, or none.
        default: the length, where it is left out.
        both_sides: the length is that of both sides, without the token itself.
        switch: a key without which there is no window.
    """
    read_types, types_of = types or ((), None)

    def read(keys):
        length = keys.get(key, default)
        if both_sides and length is not None:
            length = length // 2 + 1
        if switch is not None and not keys.get(switch):
            length = None
        kinds = _layer_types(keys)
        if types is None:
            kind = "full_attention" if length is None else "sliding_attention"
            _check_types(keys, kind, f"{key}={length!r}")
        if kinds is None:
            number = keys["num_hidden_layers"]
            kinds = types_of(keys) if types else ["sliding_attention"] * number
        unknown = set(kinds) - {"sliding_attention", "full_attention"}
        if unknown:
            raise Unsupported(
                f"layer_types {sorted(unknown)} are not supported. Supported: "
                "'sliding_attention', 'full_attention'."
            )
        layers = tuple(i for i, k in enumerate(kinds) if k == "sliding_attention")
        if length is None or not layers:
            return {"attention_window": None, "windowed_layers": None}
        every = len(layers) == len(kinds)
        return {
            "attention_window": length,
            "windowed_layers": None if every else layers,
        }

    def write(field_of):
        length, layers = field_of("attention_window"), field_of("windowed_layers")
        number = field_of("num_layers")
        if both_sides and length is not None:
            length = 2 * (length - 1)
        turned = {} if switch is None else {switch: length is not None}
        if types is None:
            if layers is not None:
                raise Unsupported("All layers have the window, or none.")
            return {key: length, **turned}
        if length is None:
            layers = ()
        kinds = [
            "sliding_attention" if layers is None or i in layers else "full_attention"
            for i in range(number)
        ]
        # Some classes take no None for a length, and no layer has it then.
        given = {} if length is None else {key: length}
        return {**given, "layer_types": kinds, **turned}

    names = (key, "layer_types", "num_hidden_layers", *read_types)
    return Rule((*names, *([switch] if switch else ())), read, write)


def full_every(count, key=None, first=False):
    """`types` for `window`: one layer in `count` sees all.

    Args:
        count: what holds where the config does not say.
        key: that says, if any does.
        first: whether it is the first of them; else the last.
    """

    def types_of(keys):
        period = keys.get(key, count)
        return [
            "sliding_attention" if (i + (not first)) % period else "full_attention"
            for i in range(keys["num_hidden_layers"])
        ]

    return (() if key is None else (key,)), types_of


def full_attention():
    """The rule of a family without windows, whose files may say so of each layer."""

    def read(keys):
        _check_types(keys, "full_attention", "no window")
        return {}

    return Rule(("layer_types",), read)


def _layer_types(keys):
    """The list `layer_types`, or `None`; one of another length means another model."""
    kinds, number = keys.get("layer_types"), keys["num_hidden_layers"]
    if kinds is not None and (not isinstance(kinds, list) or len(kinds) != number):
        raise Unsupported(
            f"layer_types must be a list of num_hidden_layers={number} types. "
            f"Received: {kinds!r}."
        )
    return kinds


def _check_types(keys, kind, reason):
    others = {*(_layer_types(keys) or ())} - {kind}
    if others:
        raise Unsupported(
            f"layer_types {sorted(others)} are not supported with {reason}. "
            f"Supported: {kind!r}."
        )


def ropes_of_types(windows, full, sliding, scaled=("full_attention",)):
    """The rule of windows, and of rotary positions that differ where there is one.

    It reads `rope_parameters` by the layers' types, or older keys, and writes both.

    Args:
        windows: what `window` gives.
        full: the older key of the base in layers without a window, and the base where
            it is left out.
        sliding: likewise in layers with a window.
        scaled: types of the layers that the older key `rope_scaling` is for.
    """
    types = {"full_attention": full, "sliding_attention": sliding}

    def read(keys):
        fields = windows.read(keys)
        given = keys.get("rope_parameters") or {}
        if set(given) - set(types):
            raise Unsupported(
                f"rope_parameters must be those of {[*types]}. Received: {given}."
            )
        found = []
        for kind, (key, base) in types.items():
            older = keys.get("rope_scaling") if kind in scaled else None
            rope = _merged(given.get(kind), older)
            base = rope.pop("rope_theta", None) or keys.get(key, base)
            base = base or found[0][0]  # None: as in the other layers
            found.append((float(base), rope_scaling(rope, keys)))
        if keys.get(windows.names[0], 0) is None and found[0] != found[1]:
            raise Unsupported(
                f"{windows.names[0]}=None is not supported where layers have a rope_"
                "theta of their own."
            )
        (base, scaling), (own_base, own_scaling) = found
        own = None
        if fields["attention_window"] is not None and found[0] != found[1]:
            own = own_base
            if own_scaling is not None:
                raise Unsupported(
                    "A rope_type of 'sliding_attention' that 'full_attention' has not "
                    f"is not supported. Received: {given or keys['rope_scaling']}."
                )
        rope = {"rope_max_wavelength": base, "rope_scaling": scaling}
        return {**fields, **rope, "window_rope_max_wavelength": own}

    def write(field_of):
        base, theta = map(
            field_of, ("rope_max_wavelength", "window_rope_max_wavelength")
        )
        scaling = field_of("rope_scaling")
        rope = {"rope_theta": base, **written(scaling)}
        own = rope if theta is None else {"rope_theta": theta, **written(None)}
        ropes = dict(zip(types, (rope, own), strict=True))
        keys = {key: ropes[kind]["rope_theta"] for kind, (key, _) in types.items()}
        if all(ropes[kind]["rope_type"] == rope["rope_type"] for kind in scaled):
            keys |= _older_scaling(scaling)
        return {**windows.write(field_of), **keys, "rope_parameters": ropes}

    names = ("rope_parameters", "rope_scaling", full[0], sliding[0])
    return Rule((*windows.names, *names), read, write)
