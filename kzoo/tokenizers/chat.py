"""Chats as a model's template writes them, in a sandbox; and their exact ids."""

import datetime
import functools
import itertools
import json
import re
import secrets
from collections.abc import Mapping

import tokenizers
from tokenizers import AddedToken

from kzoo.tokenizers.hf_folder import content_of, named_tokens

# More would be no chat: a template that loops for ever is stopped here.
_MOST = 10_000_000
_STEPS = 1_000_000
_WIDEST = 1000
# Methods that fill up to any width, or write what is not theirs.
_FILLING = {
    *("center", "expandtabs", "format", "format_map", "ljust", "rjust"),
    *("to_bytes", "translate", "zfill"),
}
# Jinja's filters that a number makes long, and how many arguments stand before it.
_WIDE = {"batch": 1, "center": 1, "indent": 1, "round": 1, "slice": 2, "wordwrap": 2}
_WIDTH = re.compile(r"%[#0 +-]*(\d*\.)?\*|[%)][#0 +-]*(\d*\.)?\d{4}")
_REASONING = ("reasoning_content", "thinking", "reasoning")
_COUNT = "steps of a rendering"  # no name that a template could say
# What transformers' method of the same name takes that no template reads.
_ELSEWHERE = {
    "chat_template": "give a tokenizer .with_conventions(chat_template=...)",
    "continue_final_message": "append the beginning of the answer to the text",
    "max_length": "cut the ids",
    "padding": "pad the ids",
    "return_assistant_tokens_mask": "kzoo has no such mask",
    "return_dict": "encode_chat gives a list of ids",
    "return_tensors": "encode_chat gives a list of ids",
    "tokenize": "apply_chat_template gives the text, encode_chat the ids",
    "tokenizer_kwargs": "cut and pad the ids",
    "truncation": "cut the ids",
}


def render(tokenizer, messages, add_generation_prompt, variables):
    """The text of a chat; see `Tokenizer.apply_chat_template`."""
    return _render(tokenizer, _messages(messages), add_generation_prompt, variables)


def encode(tokenizer, messages, add_generation_prompt, variables):
    """Ids of a chat; see `Tokenizer.encode_chat`.

    What the template writes and what stands in a message must be told apart although
    the template may do anything with a message. So special tokens' names in messages
    get a character inside that occurs nowhere else, and texts one at both ends; then
    what is still such a name is the template's.
    """
    messages, plain = _messages(messages), _plain(variables)
    text = _render(tokenizer, messages, add_generation_prompt, plain)
    names = sorted(_special_names(tokenizer), key=len, reverse=True)
    everything = text + json.dumps([messages, plain], ensure_ascii=False)
    private = map(chr, range(0xE000, 0xF8FF))
    mark = next(character for character in private if character not in everything)
    # Of one character there is no inside.
    clear = not any(len(name) == 1 and name in everything for name in names)
    pattern = re.compile("|".join(map(re.escape, names)) or "(?!)")

    def inside(value):
        # Also where two names overlap, and what a template may join.
        for name in names:
            value = value.replace(name, name[0] + mark + name[1:])
        return value

    def around(value):
        stripped = value.strip()
        if not stripped:
            return value
        first = value.index(stripped)
        last = first + len(stripped)
        middle = f"{mark}{inside(stripped)}{mark}"
        return value[:first] + middle + value[last:]

    # A template that looks how a message begins, or how long it is, may read marks
    # there as another text, or refuse them.
    refused = None
    for change in (around, inside):
        both = [_changed(each, change, inside) for each in (messages, plain)]
        try:
            marked = _render(tokenizer, both[0], add_generation_prompt, both[1])
        except ValueError as error:
            refused = error
            continue
        if clear and marked.replace(mark, "") == text:
            return _ids(tokenizer, marked, pattern, mark)
    found = sorted({name for name in names if name in everything})
    raise ValueError(
        "The chat template reads names of special tokens in messages as its own, or "
        "refuses messages in which they are marked, so that they cannot be told apart: "
        f"one of {found}. Leave them out."
    ) from refused


def _ids(tokenizer, marked, pattern, mark):
    if hasattr(tokenizer, "_tokenizer"):
        library, keys, known = _renamed(tokenizer)
        text = pattern.sub(lambda found: keys[found[0]], marked).replace(mark, "")
        ids = library.encode(text, add_special_tokens=False).ids
        return [known.get(i, i) for i in ids]
    ids, place = [], 0
    for found in (*pattern.finditer(marked), None):
        end = len(marked) if found is None else found.start()
        part = marked[place:end].replace(mark, "")
        if part:
            encode = tokenizer._encode if place == 0 else tokenizer._encode_continued
            ids += encode([part])[0]
        if found is not None:
            ids.append(tokenizer.token_id(found[0]))
            place = found.end()
    return ids


def _special_names(tokenizer):
    """Of special tokens, the unknown one too, as the vocabulary writes them."""
    if hasattr(tokenizer, "_tokenizer"):
        added = tokenizer._tokenizer.get_added_tokens_decoder().values()
        return {token.content for token in added if token.special}
    names = map(tokenizer._piece, tokenizer.special_ids)
    return {name for name in names if tokenizer.token_id(name) is not None}


def _renamed(tokenizer):
    """The library's tokenizer with secret names for special tokens.

    All that it does around a special token stays, such as which words begin behind it,
    and no text has such a name.

    Returns:
        It; dict from names to secret ones; and from its ids to the tokenizer's.
    """
    if "_renamed" not in tokenizer.__dict__:
        described = json.loads(tokenizer._model_text())
        special = [t for t in described["added_tokens"] if t["special"]]
        others = [t for t in described["added_tokens"] if not t["special"]]
        described |= {"added_tokens": [], "post_processor": None}
        library = tokenizers.Tokenizer.from_str(json.dumps(described))
        secret = secrets.token_hex(8)
        keys = {t["content"]: f"<{secret}:{t['id']}>" for t in special}

        def token(each):
            flags = {k: v for k, v in each.items() if k not in ("id", "content")}
            content = each["content"]
            return AddedToken(keys.get(content, content), **flags)

        library.add_tokens([token(each) for each in others])
        library.add_special_tokens([token(each) for each in special])
        library.encode_special_tokens = False
        known = {
            library.token_to_id(keys.get(t["content"], t["content"])): t["id"]
            for t in (*others, *special)
        }
        tokenizer.__dict__["_renamed"] = library, keys, known
    return tokenizer.__dict__["_renamed"]


def _render(tokenizer, messages, add_generation_prompt, variables):
    for name in sorted(set(variables) & set(_ELSEWHERE)):
        raise ValueError(
            f"{name} is an argument of transformers, which kzoo has not: variables of "
            f"the template were expected. Received: {name}={variables[name]!r}. "
            f"Instead, {_ELSEWHERE[name]}."
        )
    template = tokenizer.chat_template
    if variables.get("tools") is not None:
        named = tokenizer.conventions.named_templates
        template = named.get("tool_use", template)
    if not template:
        raise ValueError(
            f"{tokenizer!r} has no chat template: it is of a model that was not made "
            "for chats, or its folder lacks chat_template.jinja."
        )
    jinja2 = _jinja2()
    named = named_tokens(tokenizer.conventions.settings)
    tokens = {name: content_of(token) for name, token in named.items()}
    given = {
        **tokens,
        "messages": messages,
        "add_generation_prompt": bool(add_generation_prompt),
        "tools": None,
        "documents": None,
        **_plain(variables),
        _COUNT: itertools.count(1),
    }
    try:
        parts, length = [], 0
        for part in _compiled(template).generate(given):
            parts.append(part)
            length += len(part)
            if length > _MOST:
                raise ValueError(
                    f"The chat template writes more than {_MOST} characters."
                )
        return "".join(parts)
    except jinja2.exceptions.SecurityError as error:
        raise ValueError(
            f"The chat template does what no template may: {error}"
        ) from error
    except (
        jinja2.exceptions.TemplateError,
        TypeError,
        OverflowError,
        RecursionError,
    ) as error:
        raise ValueError(
            f"The chat template refuses these messages: {error}"
        ) from error


def _jinja2():
    try:
        import jinja2.ext
        import jinja2.sandbox
    except ImportError as error:
        raise ImportError(
            'Chat templates need jinja2: pip install "kzoo[chat]".'
        ) from error
    return jinja2


@functools.lru_cache(maxsize=8)
def _compiled(template):
    jinja2 = _jinja2()

    class Generation(jinja2.ext.Extension):
        """Parts that a template marks as an assistant's are written as they are."""

        tags = frozenset({"generation"})

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.Scope(body).set_lineno(line)

    class Counting(jinja2.visitor.NodeTransformer):
        """Loops that count their steps, and `~` that counts its characters."""

        def visit_For(self, node):
            node = self.generic_visit(node)
            node.iter = self._filter(node.iter, "counted")
            return node

        def visit_Concat(self, node):
            node = self.generic_visit(node)
            return self._filter(jinja2.nodes.List(node.nodes), "join")

        def _filter(self, node, name):
            return jinja2.nodes.Filter(node, name, [], [], None, None)

    class Generator(jinja2.compiler.CodeGenerator):
        def visit_Template(self, node, frame=None):
            super().visit_Template(Counting().visit(node), frame)

    class Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
        """Without what would take all memory, or for ever."""

        code_generator_class = Generator
        intercepted_binops = frozenset({"+", "*", "**", "%"})
        concat = staticmethod(_joined)

        def call_binop(self, context, operator, left, right):
            sizes = [len(x) if hasattr(x, "__len__") else None for x in (left, right)]
            whole = all(isinstance(x, int) for x in (left, right))
            if operator == "**" and abs(right) > _WIDEST:
                raise OverflowError(f"A power of {right}.")
            if operator in ("*", "**") and whole:
                times = right if operator == "**" else 1
                _check(left.bit_length() * times + right.bit_length(), 10 * _WIDEST)
            elif operator == "*":
                for size, times in zip(sizes, (right, left)):
                    _check(0 if size is None else size * times)
            elif operator == "+" and None not in sizes:
                _check(sum(sizes))
            elif operator == "%" and isinstance(left, str):
                _check_format(left)
            return super().call_binop(context, operator, left, right)

        def is_safe_attribute(self, obj, attr, value):
            filling = isinstance(obj, (str, bytes, int)) and attr in _FILLING
            return not filling and super().is_safe_attribute(obj, attr, value)

        def wrap_str_format(self, value):
            return None  # so that the above is asked

        def call(self, context, called, /, *args, **kwargs):
            _count(context)
            owner = getattr(called, "__self__", None)
            if isinstance(called, jinja2.runtime.LoopContext):
                args = [counted(context, each) for each in args]
            elif isinstance(owner, str) and called.__name__ == "join":
                return _joined(*args, between=owner)
            elif isinstance(owner, str) and called.__name__ == "replace":
                return _replaced(owner, *args, **kwargs)
            return super().call(context, called, *args, **kwargs)

    @jinja2.pass_context
    def counted(context, items):
        for item in items:
            _count(context)
            yield item

    @jinja2.pass_context
    def counted_range(context, *limits):
        found = jinja2.sandbox.safe_range(*limits)
        _count(context, len(found))
        return found

    environment = Sandbox(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[Generation, jinja2.ext.loopcontrols],
    )

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(
        value, ensure_ascii=False, indent=None, separators=None, sort_keys=False
    ):
        _check_widths([indent])
        return json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )

    def strftime_now(format):
        return datetime.datetime.now().strftime(format)

    def join(value, d="", attribute=None):
        if attribute is not None:
            value = map(jinja2.filters.make_attrgetter(environment, attribute), value)
        return _joined(map(str, value), str(d))

    def format_filter(value, *args, **kwargs):
        _check_format(str(value))
        return str(value) % (kwargs or args)

    for name, before in _WIDE.items():
        own = environment.filters[name]
        environment.filters[name] = _narrow(own, before)
    environment.filters |= {
        "counted": counted,
        "format": format_filter,
        "join": join,
        "replace": lambda s, *args: _replaced(str(s), *args),
    }
    environment.globals["range"] = counted_range
    del environment.globals["lipsum"]
    # Jinja's own would write < and > of HTML in other words.
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    return environment.from_string(template)


def _check(size, most=_MOST):
    if size > most:
        raise OverflowError(f"More than {most} characters, digits or items.")


def _check_widths(values):
    for value in values:
        value = len(value) if isinstance(value, str) else value
        if isinstance(value, (int, float)) and abs(value) > _WIDEST:
            raise OverflowError(f"A width of {value}.")


def _check_format(text):
    if _WIDTH.search(text):
        raise OverflowError(f"A width in {text[:80]!r}.")


def _count(context, steps=1):
    """Counts steps of a rendering, of its loops and calls."""
    count = context.resolve(_COUNT)
    if steps > _STEPS or any(next(count) > _STEPS for _ in range(steps)):
        raise OverflowError(f"More than {_STEPS} steps.")


def _joined(parts, between=""):
    parts = list(parts)
    _check(sum(map(len, parts)) + len(parts) * len(between))
    return between.join(parts)


def _replaced(text, old, new, count=-1):
    times = text.count(old) if old else len(text) + 1
    _check(len(text) + times * len(new))
    return text.replace(old, new, -1 if count is None else count)


def _narrow(function, before):
    """A filter of Jinja that takes no wide numbers or texts."""

    @functools.wraps(function)
    def narrow(*args, **kwargs):
        _check_widths((*args[before:], *kwargs.values()))
        return function(*args, **kwargs)

    return narrow


def _plain(value):
    """A copy of JSON's types alone: methods of others are no business of a template."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    raise TypeError(
        "Chats are of dicts, lists, strings and numbers. "
        f"Received: {type(value).__name__}."
    )


def _messages(messages):
    """Messages as a template gets them, like transformers': without what is `None`.

    A model's reasoning is there under both names that templates read.
    """
    messages = _plain(messages)
    if not isinstance(messages, list):
        return messages
    return [_given(m) if isinstance(m, dict) else m for m in messages]


def _given(message):
    message = {key: value for key, value in message.items() if value is not None}
    reasons = [message[name] for name in _REASONING if name in message]
    if not reasons:
        return message
    return {"thinking": reasons[0], **message, "reasoning_content": reasons[0]}


def _changed(value, change, inside):
    """`value` with each text in it changed; keys, roles and types only inside."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_changed(item, change, inside) for item in value]
    if not isinstance(value, dict):
        return value
    found = {}
    for key, item in value.items():
        said = isinstance(item, str) and key in ("role", "type")
        key = inside(key) if isinstance(key, str) else key
        found[key] = inside(item) if said else _changed(item, change, inside)
    return found
