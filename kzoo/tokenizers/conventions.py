"""What a model's authors settled around texts: special ids, languages, chats."""

import dataclasses
import difflib
from collections.abc import Mapping

CONFIG_FILE = "tokenizer_config.json"

# The pieces and ids of the special tokens in every tokenizer that kzoo trains, in
# the order of `ModelConfig`'s defaults.
SPECIAL_PIECES = ("<pad>", "<s>", "</s>", "<unk>")
SPECIAL_IDS = dict(pad_token_id=0, start_token_id=1, end_token_id=2, unknown_token_id=3)
# One more where it is asked for; folders of before it was known have no such key.
MASK_PIECE, MASK_ID = "<mask>", dict(mask_token_id=4)

TEXTS = ("A", "B")  # where texts stand in a template


@dataclasses.dataclass(frozen=True)
class Template:
    """The ids around a text, and around a pair of texts.

    Args:
        single: (id, segment) in order, with "A" for the id where the text stands.
        pair: likewise, with "A" and "B"; `None` where pairs are not read.

    Raises:
        ValueError: a text is missing or stands twice.
    """

    single: tuple
    pair: tuple | None = None

    def __post_init__(self):
        for name, texts in (("single", "A"), ("pair", "AB")):
            parts = getattr(self, name)
            if parts is None and name == "pair":
                continue
            parts = tuple((part, int(segment)) for part, segment in parts)
            object.__setattr__(self, name, parts)
            found = [part for part, _ in parts if isinstance(part, str)]
            if found != list(texts):
                raise ValueError(
                    f"Template.{name} must hold {list(texts)} once each, in order. "
                    f"Received: {parts}."
                )

    @classmethod
    def of(cls, before=(), behind=(), between=None, segments=(0, 0)):
        """A template of ids before, between and behind texts.

        Args:
            before: ids before the first text.
            behind: ids behind the last one.
            between: ids between two; `None` where no pairs are read.
            segments: of the first text, with all around it, and of the second with
                what is behind it.
        """
        one, two = segments
        start, end = ([(i, one) for i in ids] for ids in (before, behind))
        pair = (
            between
            if between is None
            else (
                *start,
                ("A", one),
                *((i, one) for i in between),
                ("B", two),
                *((i, two) for i in behind),
            )
        )
        return cls((*start, ("A", one), *end), pair)

    def around(self, texts=1):
        """Lists of ids: before, between where there are two texts, and behind."""
        found = [[]]
        for part, _ in self._parts(texts):
            if part in TEXTS:
                found.append([])
            else:
                found[-1].append(part)
        return found

    def join(self, texts):
        """Ids and segments of one or two lists of ids with what is around them."""
        ids, segments = [], []
        given = dict(zip(TEXTS, texts))
        for part, segment in self._parts(len(texts)):
            some = given[part] if part in TEXTS else [part]
            ids += some
            segments += [segment] * len(some)
        return ids, segments

    def segments(self, texts=1):
        """The segment of each id around the texts, and of the texts, in order."""
        return [segment for _, segment in self._parts(texts)]

    def replaced(self, old, new):
        """The template with the ids `new` for each of the ids `old`."""

        def changed(parts):
            return parts and tuple(
                (other, segment)
                for part, segment in parts
                for other in (new if part in old else [part])
            )

        return Template(changed(self.single), changed(self.pair))

    def in_one_segment(self):
        """The template with all in the first segment."""

        def flat(parts):
            return parts and tuple((part, 0) for part, _ in parts)

        return Template(flat(self.single), flat(self.pair))

    def ids(self):
        """All ids that it adds."""
        return {part for part, _ in (*self.single, *(self.pair or ()))} - {*TEXTS}

    def processor(self, names):
        """The `post_processor` of a `tokenizer.json`; `names` is a dict from ids."""

        def parts(row):
            return [
                {"Sequence": {"id": part, "type_id": segment}}
                if part in TEXTS
                else {"SpecialToken": {"id": names[part], "type_id": segment}}
                for part, segment in row
            ]

        return {
            "type": "TemplateProcessing",
            "single": parts(self.single),
            "pair": parts(self.pair or (*self.single, ("B", 1))),
            "special_tokens": {
                name: {"id": name, "ids": [i], "tokens": [name]}
                for i, name in names.items()
            },
        }

    def _parts(self, texts):
        if texts == 1:
            return self.single
        if self.pair is None:
            raise ValueError("This tokenizer's model reads no pairs of texts.")
        return self.pair


@dataclasses.dataclass(frozen=True)
class Conventions:
    """What a tokenizer of a pretrained model knows besides its vocabulary.

    Args:
        template: the ids around texts that an encoder, or a decoder alone, reads;
            `None` for those that kzoo's tasks put around texts.
        target_prefix: what a target, or what is generated, begins with, such as a
            language's code.
        learned_prefix: what a target begins with that a model learns from, where there
            is no `target_prefix`: it has then learned to write this by itself.
        stop_token_ids: more ids that end what is generated, such as a turn's of a chat.
        languages: dict from a language's name to its id.
        chat_template: in Jinja; see `kzoo.tokenizers.chat`.
        named_templates: further ones by their names: `"tool_use"` is for chats with
            tools, others are kept to be written again.
        layout: of the files that `save_pretrained_tokenizer` writes.
        settings: of `tokenizer_config.json`, as they were read.
        batching: padding and truncation that `tokenizer.json` asks for, which
            `kzoo.data` does instead; they are written again.
    """

    template: Template | None = None
    target_prefix: tuple = ()
    learned_prefix: tuple = ()
    stop_token_ids: tuple = ()
    languages: Mapping = dataclasses.field(default_factory=dict)
    chat_template: str | None = None
    named_templates: Mapping = dataclasses.field(default_factory=dict)
    layout: str | None = None
    settings: Mapping = dataclasses.field(default_factory=dict)
    batching: Mapping = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        if isinstance(self.template, Mapping):
            object.__setattr__(self, "template", Template(**self.template))
        for name in ("target_prefix", "learned_prefix", "stop_token_ids"):
            object.__setattr__(self, name, tuple(getattr(self, name)))

    def get_config(self):
        """What differs from the defaults, as JSON has it."""
        empty = Conventions()
        return {
            field.name: value
            for field, value in zip(
                dataclasses.fields(self), dataclasses.asdict(self).values()
            )
            if getattr(self, field.name) != getattr(empty, field.name)
        }

    def language_id(self, name):
        """The id of a language's code.

        Raises:
            ValueError: it is not known; those that are spelled alike are named.
        """
        if name in self.languages:
            return self.languages[name]
        if not self.languages:
            raise ValueError(
                f"This tokenizer's model has no codes of languages. Received: {name!r}."
            )
        known = sorted(self.languages)
        low = str(name).lower()
        near = [code for code in known if code.lower().startswith(low[:2])]
        near += difflib.get_close_matches(str(name), known, 5, 0.5)
        near = list(dict.fromkeys(near))[:8]
        some = f"Near ones: {near}" if near else f"Known: {known[:8]}..."
        raise ValueError(
            f"Unknown language. {some}, of {len(known)} in tokenizer.languages. "
            f"Received: {name!r}."
        )
