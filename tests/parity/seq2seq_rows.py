"""Encoder-decoders, see `row`."""

from tests.parity.row import row

# Two stacks of other sizes, whose heads have not hidden_size / heads dimensions.
T5 = dict(
    vocab_size=97, d_model=32, d_kv=4, d_ff=48, num_heads=4, num_layers=3,
    num_decoder_layers=2, relative_attention_num_buckets=8,
    relative_attention_max_distance=10, layer_norm_epsilon=1e-4,
    decoder_start_token_id=0,
)  # fmt: skip
# Fewer and narrower: without a scale of queries, layers amplify what is rounded.
SHALLOW = {**T5, "num_layers": 2, "num_decoder_layers": 1, "d_kv": 2}
BART = dict(
    vocab_size=97, d_model=32, encoder_layers=3, decoder_layers=2, encoder_ffn_dim=48,
    decoder_ffn_dim=40, encoder_attention_heads=4, decoder_attention_heads=2,
    max_position_embeddings=40, pad_token_id=1,
)  # fmt: skip
MARIAN = {**BART, "pad_token_id": 96, "decoder_start_token_id": 96}
PEGASUS = {**BART, "pad_token_id": 0, "eos_token_id": 1}
TABLES = r".*embed_positions.*"  # of sines: a file may hold them, but nothing else


def _row(kind, config, name=None, left=False, **more):
    name = name or f"{kind}ForConditionalGeneration"
    return row(f"{kind}Config", name, "seq2seq_lm", config, left=left, **more)


def _heads(kind, config, end):
    """Rows of the heads that read what the decoder makes of the text itself."""
    config = {**config, "eos_token_id": end, "classifier_dropout": 0.2}
    named = dict(num_labels=3, id2label={0: "a", 1: "b", 2: "c"})
    # Padding on the left is another text for transformers' decoders.
    more = dict(left=False, end=end)
    kinds = {
        "classifier": ("SequenceClassification", "text_classifier", named),
        "reader": ("QuestionAnswering", "question_answering", {"num_labels": 2}),
    }
    return {
        f"{kind.lower()}_{name}": row(
            f"{kind}Config",
            f"{kind}For{purpose}",
            task,
            {**config, **labels},
            ended=name == "classifier",
            **more,
        )
        for name, (purpose, task, labels) in kinds.items()
    }


SEQ2SEQ = {
    "t5": _row(
        "T5",
        {**T5, "feed_forward_proj": "gelu"},
        left=True,
        generation=dict(
            num_beams=3, early_stopping=True, length_penalty=2.0, max_length=11,
            no_repeat_ngram_size=2, suppress_tokens=[0, 9],
        ),
    ),
    "flan_t5": _row(
        "T5",
        {**SHALLOW, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
        left=True,
        untied=True,
    ),
    "t5_unscaled": _row(
        "T5", {**T5, "feed_forward_proj": "gated-silu", "tie_word_embeddings": False}
    ),
    "mt5": _row("MT5", SHALLOW, left=True),
    "mt5_untied": _row("MT5", {**T5, "feed_forward_proj": "relu"}, untied=True),
    "bart": _row(
        "Bart",
        {**BART, "activation_function": "gelu_new"},
        generation=dict(
            num_beams=4, early_stopping=True, length_penalty=2.0, max_length=14,
            min_length=6, no_repeat_ngram_size=3, forced_bos_token_id=0,
            suppress_tokens=[1],
        ),
    ),
    "bart_scaled": _row(
        "Bart",
        # The token that decoders begin with is the first that occurred.
        {**BART, "scale_embedding": True, "decoder_start_token_id": 21},
        generation=dict(max_new_tokens=12, repetition_penalty=2.5),
    ),
    "mbart": _row(
        "MBart",
        {**BART, "scale_embedding": True, "decoder_start_token_id": 7},
        generation=dict(
            num_beams=5, early_stopping=True, max_new_tokens=9, min_new_tokens=2,
            forced_bos_token_id=11, suppress_tokens=[1], length_penalty=-0.5,
        ),
    ),
    "marian": _row(
        "Marian",
        {**MARIAN, "activation_function": "swish", "scale_embedding": True},
        "MarianMTModel",
        generation=dict(
            num_beams=4, early_stopping=True, max_length=12, bad_words_ids=[[96]],
            renormalize_logits=True,
        ),
    ),
    "marian_two_vocabularies": _row(
        "Marian",
        {
            **BART,
            "decoder_vocab_size": 90,
            "share_encoder_decoder_embeddings": False,
            "pad_token_id": 89,
            "decoder_start_token_id": 89,
        },
        "MarianMTModel",
    ),
    "marian_untied": _row(
        "Marian",
        {
            **MARIAN,
            "decoder_vocab_size": 99,
            "share_encoder_decoder_embeddings": False,
            "tie_word_embeddings": False,
        },
        "MarianMTModel",
    ),
    "pegasus": _row(
        "Pegasus", {**PEGASUS, "activation_function": "relu"}, constant=TABLES
    ),
    "pegasus_scaled": _row(
        "Pegasus", {**PEGASUS, "scale_embedding": True}, constant=TABLES
    ),
    "m2m_100": _row("M2M100", BART, left=True),
    "nllb": _row(
        "M2M100",
        {**BART, "pad_token_id": 3, "scale_embedding": False,
         "activation_function": "gelu"},
        left=True,
    ),
    **_heads("T5", T5, 1),
    **_heads("MT5", SHALLOW, 1),
    **_heads("Bart", BART, 2),
}  # fmt: skip
