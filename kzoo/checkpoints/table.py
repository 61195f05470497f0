"""What a family is: rules for its config, a table of its weights' names, its heads.

A table's left column are kzoo's paths, as ARCHITECTURE.md has them: of layers, such as
`decoder/layer_{i}/self_attention/query`, or of one variable. The right column are the
checkpoint's modules, whose `weight` and `bias` follow from the variables.
"""

import dataclasses
import re
from collections.abc import Mapping

from kzoo.checkpoints.hf_config import REQUIRED, Key, Unsupported
from kzoo.checkpoints.rows import ByHead, Choice, Raw, Source
from kzoo.config import TRAINING_FIELDS, ModelConfig, StackConfig

# A variable's last name, and that of the checkpoint's tensor.
LEAVES = {
    "kernel": "weight",
    "bias": "bias",
    "gamma": "weight",
    "beta": "bias",
    "scale": "weight",
    "embeddings": "weight",
}
# What files of BERT's first code have instead, in modules of this name.
_OLD_NORM, _OLD_LEAVES = "LayerNorm", ("gamma", "beta")
# Keys that say nothing about what a model computes.
IRRELEVANT = {
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_commit_hash",
    "_flash_attn_2_enabled",
    "_name_or_path",
    "_num_labels",
    "architectures",
    "attn_implementation",
    "auto_map",
    "cache_implementation",
    "chunk_size_feed_forward",
    "custom_pipelines",  # code of the repository, which kzoo does not run
    "decoder_start_token_id",  # where there are two stacks a rule reads it
    "dtype",
    "eos_token_ids",  # of 2020; eos_token_id is read
    "finetuning_task",
    "gradient_checkpointing",
    "id2label",
    "is_encoder_decoder",
    "keys_to_ignore_at_inference",
    "label2id",
    "language",
    "model_type",
    "name",
    "num_labels",
    "output_attentions",
    "output_hidden_states",
    "output_past",
    "padding",  # of a tokenizer's call, which kzoo.data decides
    "problem_type",
    "return_dict",
    "return_dict_in_generate",
    "task_specific_params",
    "tf_legacy_loss",
    "tokenizer_class",
    "torch_dtype",
    "torchscript",
    "transformers.js_config",
    "transformers_version",
    "unsloth_fixed",
    "unsloth_version",
    "use_bfloat16",
    "use_cache",
    "xla_device",
    "sbert_ce_default_activation_function",  # of cross-encoders, and the next, too:
    "sentence_transformers",  # the zoo reads them
    # Of training and of searches: what generation_config.json says holds.
    "begin_suppress_tokens",
    "bad_words_ids",
    "diversity_penalty",
    "do_sample",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "exponential_decay_length_penalty",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "length_penalty",
    "max_length",
    "min_length",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "output_scores",
    "prefix",
    "remove_invalid_values",
    "repetition_penalty",
    "sep_token_id",
    "suppress_tokens",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
}
# Keys of which every family knows one value.
_ONLY = {
    "is_decoder": False,
    "add_cross_attention": False,
    "cross_attention_hidden_size": None,
    "tie_encoder_decoder": False,
    "pruned_heads": {},
    "quantization_config": None,
}
# Tasks whose head is that of another: a sequence classifier with one number.
_SAME_HEAD = {"TextRegressor": "TextClassifier", "PairScorer": "TextClassifier"}


@dataclasses.dataclass(frozen=True)
class Head:
    """A head of a family.

    Args:
        architecture: the class that a `config.json` names for it.
        modules: the table's rows of the head, with whole names.
        options: arguments of the task, fixed for the family.
        rules: as a family's, for arguments of the task.
        duplicates: tensors that repeat others, by the others' names. Where the head
            has a kernel of its own they are what transformers computes with.
        prefix: of the stacks' names in a model with this head; `None` means the
            family's.
    """

    architecture: str
    modules: Mapping = dataclasses.field(default_factory=dict)
    options: Mapping = dataclasses.field(default_factory=dict)
    rules: tuple = ()
    duplicates: Mapping = dataclasses.field(default_factory=dict)
    prefix: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """All that kzoo knows of a family of checkpoints.

    Modules that stand behind one name are stored as one tensor, in the table's order.
    A tuple of names says that a tensor may be stored under each of them, and is written
    under the first one.

    Args:
        model_type: what `config.json` names.
        architecture: as `ModelConfig.architecture`.
        fixed: fields that all its models have.
        rules: the others, see `kzoo.checkpoints.hf_config`.
        modules: the table of the stacks, with names as in a model without a head.
        heads: a `Head` by the task's class; the first one is the default.
        prefix: of the stacks' names in a model with a head.
        tokenizer: the kind of its tokenizer, where there is no `tokenizer.json`; of
            several the one whose files are there.
        irrelevant: more keys that say nothing about what a model computes.
        ignored: regular expressions of tensors that hold no weights, or those of heads
            that kzoo has not.
        computed: from regular expressions of tables that kzoo computes, and a file may
            hold in any precision, to functions from a shape to what it has to be.
        kernels_in_out: kernels of the stacks are stored as kzoo has them, (inputs,
            outputs).
        checks: functions of all keys that raise `Unsupported`.
        tied_by_file: whether the head is the token table is not what the config says:
            it is not where the weights have a head that differs from the table.
        searches: keys of searches, where a `config.json` without a
            `generation_config.json` has others or none.
        num_labels: how many a classifier has where its config does not say.
    """

    model_type: str
    architecture: str
    fixed: Mapping
    rules: tuple
    modules: Mapping
    heads: Mapping
    prefix: str = ""
    tokenizer: str | tuple[str, ...] = "sentencepiece"
    irrelevant: frozenset | set = frozenset()
    ignored: tuple[str, ...] = ()
    computed: Mapping = dataclasses.field(default_factory=dict)
    kernels_in_out: bool = False
    checks: tuple = ()
    tied_by_file: bool = False
    searches: Mapping = dataclasses.field(default_factory=dict)
    num_labels: int = 2

    @property
    def stacks(self):
        """Names of the stacks."""
        return {
            "encoder": ("encoder",),
            "decoder": ("decoder",),
            "encoder_decoder": ("encoder", "decoder"),
        }[self.architecture]

    def read_config(self, keys):
        """The `ModelConfig` of the keys of a `config.json`.

        Raises:
            Unsupported: a key that is not known, or a value that kzoo cannot compute.
        """
        known = set(IRRELEVANT) | set(self.irrelevant) | set(_ONLY)
        for rule in self._all_rules():
            known |= set(rule.names)
        unknown = sorted(set(keys) - known)
        if unknown:
            shown = {name: keys[name] for name in unknown}
            raise Unsupported(
                f"config.json has keys that kzoo does not know for model_type="
                f"{self.model_type!r}, so it might compute something else: {shown}."
            )
        for name, value in _ONLY.items():
            if keys.get(name, value) not in (value, None):
                raise Unsupported(f"{name}={keys[name]!r} is not supported.")
        # Rules that read several keys have the defaults of all.
        keys = {**_defaults(self.rules), **keys}
        for check in self.checks:
            _read(check, keys, keys)
        fields = dict(self.fixed)
        for rule in self.rules:
            fields |= _read(rule.read, rule.names, keys)
        own = {field.name for field in dataclasses.fields(ModelConfig)}
        model = {name: value for name, value in fields.items() if name in own}
        shared = {n: v for n, v in fields.items() if n not in own and "." not in n}
        for stack in self.stacks:
            special = {
                name.removeprefix(f"{stack}."): value
                for name, value in fields.items()
                if name.startswith(f"{stack}.")
            }
            decoder = stack == "decoder"
            model[stack] = {
                "causal": decoder,
                "cross_attention": decoder and len(self.stacks) == 2,
                **shared,
                **special,
            }
        try:
            for stack in self.stacks:
                model[stack] = StackConfig(**model[stack])
            return ModelConfig(**model)
        except TypeError as error:
            raise Unsupported(
                f"A value of config.json is of another type than expected: {error}. "
                f"Received: {keys}."
            ) from error

    def write_config(self, config):
        """The keys of a `config.json` that `read_config` reads as this config.

        Raises:
            Unsupported: the family cannot say what the config asks for.
        """
        if config.architecture != self.architecture:
            raise Unsupported(
                f"model_type={self.model_type!r} is of architecture "
                f"{self.architecture!r}. Received: {config.architecture!r}."
            )

        def field_of(name):
            stack, _, field = name.rpartition(".")
            if stack:
                return _resolved(getattr(config, stack), field)
            if hasattr(config, field):
                return getattr(config, field)
            values = [_resolved(getattr(config, name), field) for name in self.stacks]
            if values.count(values[0]) != len(values):
                raise Unsupported(
                    f"model_type={self.model_type!r} has one {field} for both stacks. "
                    f"Received: {values}."
                )
            return values[0]

        keys = {"model_type": self.model_type}
        for rule in self.rules:
            keys |= rule.write(field_of)
        again = self.read_config(keys)
        different = _differences(config, again)
        if different:
            raise Unsupported(
                f"model_type={self.model_type!r} cannot say {different} "
                "(what the model has, what would be read)."
            )
        return keys

    def head(self, task):
        """The `Head` of a task's class, or `None`."""
        return self.heads.get(_SAME_HEAD.get(task, task))

    def named_heads(self, architectures):
        """Tasks of the heads that the classes of a `config.json` have.

        A relative's class, such as RoBERTa's in a file of XLM-R, has the same heads.
        """
        for name in (str, _purpose):
            wanted = {name(each) for each in architectures} - {None}
            heads = self.heads.items()
            found = [task for task, head in heads if name(head.architecture) in wanted]
            if found:
                return found
        return []

    def unknown_heads(self, architectures):
        """Those classes of a `config.json` that are for what no head here is."""
        known = {_purpose(head.architecture) for head in self.heads.values()}
        known |= {None, "ForPreTraining"}  # which has the head of a language model
        return [each for each in architectures if _purpose(each) not in known]

    def has_row(self, task, path):
        """Whether the table has a variable of a task."""
        head = self.head(task) or Head("")
        return _template(path, {**self.modules, **head.modules}) is not None

    def head_options(self, task, keys):
        """Arguments of a task of this family, but those of its labels."""
        head = self.head(task)
        if head is None:
            return {}
        options = dict(head.options)
        keys = {**_defaults(self.rules), **keys}
        for rule in head.rules:
            options |= _read(rule.read, rule.names, keys)
        return options

    def prefix_of(self, task):
        """What the stacks' names begin with in a model with a task's head."""
        own = (self.head(task) or Head("")).prefix
        return self.prefix if own is None else own

    def stored_prefix(self, names):
        """What the stacks' names begin with among those of a checkpoint's tensors."""
        prefixes = dict.fromkeys(map(self.prefix_of, self.heads))
        found = (p for p in prefixes if p and any(n.startswith(p) for n in names))
        return next(found, "")

    def sources(self, task, config, shapes, tied, prefix):
        """Where the variables of a task lie in a checkpoint.

        Args:
            task: the name of the task's class.
            config: the `ModelConfig`.
            shapes: the shape of each variable, by its path.
            tied: the path of the table that is the head, too, or `None`.
            prefix: what the stacks' names begin with.

        Returns:
            A list of `Source`, and the names of tensors that repeat others, by name.

        Raises:
            KeyError: a variable has no row in the table.
        """
        head = self.head(task) or Head("")
        rows = {**self.modules, **head.modules}
        if tied is None:
            for name, other in head.duplicates.items():
                rows |= {
                    path: (Raw(name), row)
                    for path, row in head.modules.items()
                    if row == Raw(other)
                }
        order = {module: place for place, module in enumerate(rows)}
        found = {}
        for path in shapes:
            row, names, place = self._row(rows, order, path, head, prefix, config)
            found.setdefault((names, type(row)), []).append((place, path, row))
        sources = []
        for (names, _), members in found.items():
            members.sort(key=lambda member: member[0])
            sources.append(
                Source(
                    names,
                    tuple(path for _, path, _ in members),
                    members[0][2],
                    self.kernels_in_out and not members[0][1].startswith("head/"),
                )
            )
        duplicates = {
            _of_head(prefix, a): _of_head(prefix, b) for a, b in head.duplicates.items()
        }
        if tied is not None:
            table = next(s.names[0] for s in sources if tied in s.paths)
            for path in ("head/kernel", "head/output/kernel"):
                module = head.modules.get(path.rpartition("/")[0])
                module = module[0] if isinstance(module, tuple) else module
                if module is not None and path not in shapes:
                    duplicates[f"{module}.weight"] = table
        return sources, duplicates

    def is_no_weight(self, name):
        """Whether a tensor is ignored, or computed."""
        return any(re.fullmatch(each, name) for each in (*self.ignored, *self.computed))

    def known(self, name):
        """Whether a tensor that no variable needs is one of another head's, or none."""
        if self.is_no_weight(name):
            return True
        for head in self.heads.values():
            for row in head.modules.values():
                for each in row if isinstance(row, tuple) else (row,):
                    module = each.name if isinstance(each, Raw | ByHead) else each
                    module = module.removeprefix("^")
                    if name.removeprefix(self.prefix).startswith(
                        (module, module.removeprefix(self.prefix))
                    ):
                        return True
            if name in head.duplicates:
                return True
        return False

    def _all_rules(self):
        yield from self.rules
        for head in self.heads.values():
            yield from head.rules

    def _row(self, rows, order, path, head, prefix, config):
        """The row of a variable, the names of its tensor, and the row's place."""
        module, _, leaf = path.rpartition("/")
        number = re.search(r"/layer_(\d+)/", path)
        i = number and number[1]
        template = _template(path, rows)
        if template is None:
            raise KeyError(f"{self.model_type} has no row for {path}.")
        row, own = rows[template], template not in head.modules
        if isinstance(row, Choice):
            stack = getattr(config, path.split("/")[0])
            owner = config if hasattr(config, row.field) else stack
            row = row.names[getattr(owner, row.field)]
        each = row if isinstance(row, tuple) else (row,)
        names, older = [], []
        for one in each:
            name = one if isinstance(one, str) else one.name
            name = name.replace("{i}", i or "")
            if not isinstance(one, Raw):
                if leaf not in LEAVES:
                    raise KeyError(
                        f"{self.model_type} has no row for {path}: {leaf!r} is none of "
                        f"{sorted(LEAVES)}."
                    )
                if name.endswith(_OLD_NORM) and leaf in _OLD_LEAVES:
                    older.append(f"{name}.{leaf}")
                name = f"{name}.{LEAVES[leaf]}"
            names.append(name)
        names = [prefix + n if own else _of_head(prefix, n) for n in (*names, *older)]
        return each[0], tuple(names), order[template]


_UNREADABLE = (
    ArithmeticError,
    AttributeError,
    LookupError,
    StopIteration,
    TypeError,
    ValueError,
)


def _defaults(rules):
    return {
        rule.name: rule.default
        for rule in rules
        if isinstance(rule, Key)
        and rule.default is not REQUIRED
        and not callable(rule.default)
    }


def _read(read, names, keys):
    """What `read` gives of keys; what it cannot read is said by name."""
    try:
        return read(keys)
    except KeyError as error:
        raise Unsupported(
            f"config.json lacks {error.args[0]!r}, which is needed."
        ) from error
    except Unsupported:
        raise
    except _UNREADABLE as error:
        values = {name: keys[name] for name in ("vocab_size", *names) if name in keys}
        raise Unsupported(
            f"config.json has a value that kzoo cannot read ({error}). "
            f"Received: {values}."
        ) from error


def _template(path, rows):
    """The key of a variable's row: its own or its layer's; `None` without one."""
    for key in (path, path.rpartition("/")[0]):
        key = re.sub(r"/layer_\d+/", "/layer_{i}/", key)
        if key in rows:
            return key
    return None


def _purpose(architecture):
    """What a class says that it is for, such as "ForMaskedLM", or `None`."""
    found = re.search(r"For[A-Z].*", architecture)
    return found and found[0]


def _of_head(prefix, name):
    """A name of a head's row; with "^" it is of the stacks, such as a pooler."""
    return prefix + name[1:] if name[0] == "^" else name


def _resolved(stack, field):
    """A field of a stack; the biases of attention are as the others where left out."""
    value = getattr(stack, field)
    if value is None and field in ("attention_bias", "attention_output_bias"):
        return stack.use_bias
    return value


def _differences(config, again):
    """Fields of two configs that compute differently, with both values."""
    found = {}
    for field in dataclasses.fields(ModelConfig):
        a, b = getattr(config, field.name), getattr(again, field.name)
        if isinstance(a, StackConfig) and isinstance(b, StackConfig):
            for own in dataclasses.fields(StackConfig):
                pair = _resolved(a, own.name), _resolved(b, own.name)
                if own.name not in TRAINING_FIELDS and pair[0] != pair[1]:
                    found[f"{field.name}.{own.name}"] = pair
        elif a != b and field.name != "mask_token_id":
            found[field.name] = (a, b)
    return found
