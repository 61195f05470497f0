"""What families have in common: names of layers, and of the classes of heads."""

from kzoo.checkpoints.hf_config import Key
from kzoo.checkpoints.rows import Raw
from kzoo.checkpoints.table import Head

POOLED = {"pooling": "cls", "hidden_activation": "tanh", "hidden_bias": True}
HEAD_DROPOUT = Key(
    "classifier_dropout",
    "head_dropout",
    lambda keys: keys.get("hidden_dropout_prob", 0.1),
)
# What a sublayer's names stand for, in their order; a feed-forward may have no gate.
_SUBLAYERS = {
    "attention": ("query", "key", "value", "output"),
    "forward": ("gate", "intermediate", "output"),
}


def layers(stack, name, **parts):
    """The rows of a stack's layers.

    Args:
        stack: its name in kzoo.
        name: of the checkpoint's layers.
        **parts: the names behind that of `self_attention`, `cross_attention` and
            `feed_forward` (those of their linear layers, with spaces between them, and
            what differs of several in braces), and of their norms.

    Example:
        >>> rows = layers("encoder", "h.{i}", self_attention="att.{q,k,v} proj")
        >>> rows["encoder/layer_{i}/self_attention/key"]
        'h.{i}.att.k'
    """
    rows = {}
    for part, text in parts.items():
        own, found = [f"{stack}/layer_{{i}}/{part}"], names(text)
        kind = part.rpartition("_")[2]
        if kind in _SUBLAYERS:
            own = [f"{own[0]}/{leaf}" for leaf in _SUBLAYERS[kind][-len(found) :]]
        rows |= zip(own, [f"{name}.{each}" for each in found], strict=True)
    return rows


def names(text):
    """The names in a text, with spaces between them and braces as a shell has them.

    Example:
        >>> names("att.{q,k,v} proj")
        ['att.q', 'att.k', 'att.v', 'proj']
    """
    found = []
    for word in text.split():
        before, _, rest = word.partition("{")
        inside, _, after = rest.partition("}")
        found += [before + one + after for one in inside.split(",")]
    return found


def encoder_heads(
    name,
    masked,
    bias=None,
    options=None,
    rules=(),
    pooler="^pooler.dense",
    classifier="classifier",
    pooled=None,
    dropout=HEAD_DROPOUT,
):
    """The heads that transformers has of an encoder, by the names of its classes.

    `masked` are the linear layer, the norm and the linear layer to tokens of
    `MaskedLM`, `pooler` and `classifier` those of `TextClassifier`.
    """
    hidden, norm, output = names(masked)
    last = {"head/output/bias": Raw(bias)} if bias else {}
    return {
        "MaskedLM": Head(
            f"{name}ForMaskedLM",
            {"head/hidden": hidden, "head/norm": norm, "head/output": output, **last},
            {"hidden_bias": True, "output_bias": True, **(options or {})},
            rules,
            duplicates={f"{output}.bias": bias} if bias else {},
        ),
        "TextClassifier": Head(
            f"{name}ForSequenceClassification",
            {"head/hidden": pooler, "head/output": classifier},
            {**POOLED, **(pooled or {})},
            (dropout,),
        ),
        "TokenClassifier": Head(
            f"{name}ForTokenClassification",
            {"head/output": "classifier"},
            rules=(dropout,),
        ),
        "QuestionAnswering": Head(
            f"{name}ForQuestionAnswering", {"head/output": "qa_outputs"}
        ),
        "SentenceEmbedder": Head(f"{name}Model"),
    }


def decoder_heads(
    name,
    other=None,
    language_model=None,
    head="lm_head",
    tagger="score",
    answers="transformer.",
):
    """The heads that transformers has of a decoder, by the names of its classes.

    A classifier is a linear layer over the last token's state, without dropout.
    `tagger` is the linear layer of `TokenClassifier`, `answers` the prefix of the
    stack's names in a model with the head of `QuestionAnswering`; `None` where
    transformers has no such class.
    """
    other, language_model = other or name, language_model or f"{name}ForCausalLM"
    heads = {
        "CausalLM": Head(language_model, {"head": head}),
        "TextClassifier": Head(
            f"{other}ForSequenceClassification",
            {"head/output": "score"},
            {"pooling": "last", "head_use_bias": False, "head_dropout": 0.0},
        ),
    }
    if tagger is not None:
        heads["TokenClassifier"] = Head(
            f"{other}ForTokenClassification",
            {"head/output": tagger},
            rules=(Key("classifier_dropout", "head_dropout", lambda keys: 0.1),),
        )
    if answers is not None:
        heads["QuestionAnswering"] = Head(
            f"{other}ForQuestionAnswering",
            {"head/output": "qa_outputs"},
            prefix=answers,
        )
    heads["SentenceEmbedder"] = Head(f"{other}Model", options={"pooling": "last"})
    return heads


def encoder_decoder_heads(name, bias=None, prefix=None):
    """The heads that transformers has of both stacks, by the names of its classes.

    `bias` is the row of the language model's bias, `prefix` that of the stacks' names
    in a model with the head of `TextClassifier`, where it is not the family's.
    """
    return {
        "Seq2SeqLM": Head(
            f"{name}ForConditionalGeneration",
            {"head": "lm_head", **({"head/bias": bias} if bias else {})},
        ),
        "TextClassifier": Head(
            f"{name}ForSequenceClassification",
            {
                "head/hidden": "classification_head.dense",
                "head/output": "classification_head.out_proj",
            },
            {"pooling": "last", "hidden_activation": "tanh", "hidden_bias": True},
            (Key("classifier_dropout", "head_dropout", lambda keys: 0.0),),
            prefix=prefix,
        ),
        "QuestionAnswering": Head(
            f"{name}ForQuestionAnswering", {"head/output": "qa_outputs"}
        ),
    }
