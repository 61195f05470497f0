"""Encoders, see `row`."""

from tests.parity.row import SMALL, row

BERT = dict(**SMALL, intermediate_size=48, max_position_embeddings=40)

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
}
