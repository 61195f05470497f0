"""Encoders, see `row`."""

from tests.parity.row import SMALL, row

BERT = dict(**SMALL, intermediate_size=48, max_position_embeddings=40)
ROBERTA = dict(BERT, pad_token_id=1, bos_token_id=0, eos_token_id=2, type_vocab_size=1)
DISTILBERT = dict(
    vocab_size=97, dim=32, n_layers=2, n_heads=4, hidden_dim=48,
    max_position_embeddings=40,
)  # fmt: skip
ALBERT = dict(
    BERT, embedding_size=12, num_hidden_layers=4, num_hidden_groups=2,
    hidden_act="gelu_new",
)  # fmt: skip
ELECTRA = dict(BERT, embedding_size=12)
MODERNBERT = dict(
    SMALL, intermediate_size=44, num_hidden_layers=5, max_position_embeddings=64,
    pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2,
    global_attn_every_n_layers=2, local_attention=4,
)  # fmt: skip
# RoBERTa counts positions itself; its `position_ids` are others.
COUNTS = dict(position_ids=False)
CLS = dict(left=False)  # transformers reads the first token, on the left padding


def of_family(name, config, tasks, **more):
    """Rows of a family: the class's names from `name`, options by head."""
    classes = {
        "masked_lm": "ForMaskedLM",
        "text_classifier": "ForSequenceClassification",
        "text_regressor": "ForSequenceClassification",
        "pair_scorer": "ForSequenceClassification",
        "token_classifier": "ForTokenClassification",
        "question_answering": "ForQuestionAnswering",
        "sentence_embedder": "Model",
    }
    found = {}
    for task, (changes, own) in tasks.items():
        found[f"{name.lower()}_{task}"] = row(
            f"{name}Config", name + classes[task], task, {**config, **changes},
            **{**more, **own},
        )  # fmt: skip
    return found


ENCODERS = {
    "bert_masked_lm": row(
        "BertConfig", "BertForMaskedLM", "masked_lm", {**BERT, "hidden_act": "relu"}
    ),
    "bert_text_classifier": row(
        "BertConfig",
        "BertForSequenceClassification",
        "text_classifier",
        {**BERT, "num_labels": 3, "layer_norm_eps": 1e-5},
        left=False,  # there the first token is padding
    ),
    "bert_token_classifier": row(
        "BertConfig",
        "BertForTokenClassification",
        "token_classifier",
        {**BERT, "num_labels": 5},
    ),
    "bert_question_answering": row(
        "BertConfig",
        "BertForQuestionAnswering",
        "question_answering",
        {**BERT, "vocab_size": 110},
        end=102,
    ),
    "bert_model": row("BertConfig", "BertModel", "sentence_embedder", BERT),
    "bert_text_regressor": row(
        "BertConfig",
        "BertForSequenceClassification",
        "text_regressor",
        {**BERT, "num_labels": 1, "problem_type": "regression"},
        **CLS,
    ),
    "bert_pair_scorer": row(
        "BertConfig",
        "BertForSequenceClassification",
        "pair_scorer",
        {
            **BERT,
            "num_labels": 1,
            "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity",
        },
        **CLS,
    ),
    **of_family(
        "Roberta",
        ROBERTA,
        {
            "masked_lm": ({"hidden_act": "relu", "layer_norm_eps": 1e-5}, {}),
            "text_classifier": ({"num_labels": 3, "classifier_dropout": 0.3}, CLS),
            "pair_scorer": ({"num_labels": 1}, CLS),
            "token_classifier": ({"num_labels": 5, "type_vocab_size": 3}, {}),
            "question_answering": ({"pad_token_id": 3}, {"end": 2}),
            "sentence_embedder": ({"hidden_act": "gelu_new"}, {}),
        },
        **COUNTS,
    ),
    **of_family(
        "XLMRoberta",
        ROBERTA,
        {
            "masked_lm": ({"intermediate_size": 40}, {}),
            "text_classifier": ({"num_labels": 3}, CLS),
            "token_classifier": ({"num_labels": 5}, {}),
            "question_answering": ({}, {"end": 2}),
            "sentence_embedder": ({}, {}),
        },
        **COUNTS,
    ),
    **of_family(
        "DistilBert",
        DISTILBERT,
        {
            "masked_lm": ({"activation": "relu"}, {}),
            "text_classifier": ({"num_labels": 3}, CLS),
            "text_regressor": ({"num_labels": 1}, CLS),
            "token_classifier": ({"num_labels": 5, "dropout": 0.2}, {}),
            "question_answering": ({"vocab_size": 110}, {"end": 102}),
            "sentence_embedder": ({"sinusoidal_pos_embds": True}, {}),
        },
    ),
    # Where they are not tied, one of two biases is computed with, and the other is not.
    **{
        f"{name.lower()}_untied": row(
            f"{name}Config",
            f"{name}ForMaskedLM",
            "masked_lm",
            {**config, "tie_word_embeddings": False},
            **more,
        )
        for name, config, more in (
            ("Bert", BERT, {}),
            ("Roberta", ROBERTA, COUNTS),
            ("Albert", ALBERT, {}),
        )
    },
    "distilbert_untied": row(
        "DistilBertConfig",
        "DistilBertForMaskedLM",
        "masked_lm",
        {**DISTILBERT, "tie_word_embeddings": False},
    ),
    **of_family(
        "Albert",
        ALBERT,
        {
            "masked_lm": ({"hidden_act": "relu", "layer_norm_eps": 1e-5}, {}),
            "text_classifier": ({"num_labels": 3, "num_hidden_groups": 1}, CLS),
            "token_classifier": ({"num_labels": 5, "num_hidden_groups": 4}, {}),
            "question_answering": ({}, {"end": 3}),
            "sentence_embedder": ({"embedding_size": 32}, {}),
        },
    ),
    **of_family(
        "Electra",
        ELECTRA,
        {
            "masked_lm": ({"hidden_act": "relu", "layer_norm_eps": 1e-5}, {}),
            "text_classifier": ({"num_labels": 3}, CLS),
            "token_classifier": ({"num_labels": 5, "embedding_size": 32}, {}),
            "question_answering": ({"vocab_size": 110}, {"end": 102}),
            "sentence_embedder": ({}, {}),
        },
    ),
    "electra_untied": row(
        "ElectraConfig",
        "ElectraForMaskedLM",
        "masked_lm",
        {**ELECTRA, "tie_word_embeddings": False},
    ),
    **of_family(
        "ModernBert",
        MODERNBERT,
        {
            "masked_lm": (
                {
                    "hidden_activation": "relu",
                    "classifier_activation": "silu",
                    "classifier_bias": True,
                    "norm_eps": 1e-4,
                },
                {},
            ),
            "text_classifier": (
                {"num_labels": 3, "classifier_pooling": "mean", "norm_bias": True},
                {},
            ),
            "text_regressor": ({"num_labels": 1}, CLS),
            "token_classifier": ({"num_labels": 5, "attention_bias": True}, {}),
            "question_answering": ({"mlp_bias": True}, {"end": 2}),
            "sentence_embedder": (
                {
                    "layer_types": ["sliding_attention", "full_attention"] * 2
                    + ["sliding_attention"],
                    "rope_parameters": {
                        "full_attention": {
                            "rope_type": "linear",
                            "factor": 2.0,
                            "rope_theta": 300.0,
                        },
                        "sliding_attention": {
                            "rope_type": "default",
                            "rope_theta": 50.0,
                        },
                    },
                },
                {},
            ),
        },
    ),
    "modernbert_untied": row(
        "ModernBertConfig",
        "ModernBertForMaskedLM",
        "masked_lm",
        {**MODERNBERT, "tie_word_embeddings": False, "decoder_bias": False},
    ),
    "modernbert_no_window": row(
        "ModernBertConfig",
        "ModernBertModel",
        "sentence_embedder",
        {**MODERNBERT, "global_attn_every_n_layers": 1},
    ),
}
