"""Small tasks that copy words of four letters, and their data in every form."""

import keras

import kzoo
from kzoo.config import ModelConfig
from kzoo.data import padded_batch
from kzoo.tokenizers import FastTokenizer
from tests.harness import perturb
from tests.strategies import COMPILES

LETTERS = "abcd"
WORDS = [a + b + c for a in LETTERS for b in ["", *LETTERS] for c in LETTERS]  # 80
TOKENIZER = FastTokenizer.train(WORDS, 20, algorithm="character")
EAGER = not COMPILES  # op by op a step or two take less than their graph
PAIRS = list(zip(WORDS[40:50], WORDS[40:50], strict=True))


def seq2seq(tokenizer=TOKENIZER, **changes):
    config = ModelConfig.from_size(
        "tiny",
        "encoder_decoder",
        TOKENIZER.vocabulary_size,
        **{
            "num_layers": 1,
            "hidden_dim": 32,
            "intermediate_dim": 64,
            "dropout": 0.0,
            **changes,
        },
    )
    return kzoo.Seq2SeqLM(config, tokenizer=tokenizer, name="seq2seq")


def causal(tokenizer=TOKENIZER, **changes):
    return kzoo.CausalLM.from_size(
        "tiny",
        tokenizer,
        vocabulary_size=TOKENIZER.vocabulary_size,
        name="causal",
        **{
            "num_layers": 1,
            "hidden_dim": 32,
            "intermediate_dim": 64,
            "dropout": 0.0,
            **changes,
        },
    )


def compiled(model, optimizer=None, eager=False, **options):
    """Plain descent; and no graph for claims that it cannot change, which is faster."""
    optimizer = optimizer or keras.optimizers.SGD(0.1)
    model.compile(optimizer, run_eagerly=eager and EAGER, **options)
    return model


def perturbed(model):
    perturb(model.weights)
    table = model.decoder.token_embedding.embeddings
    table.assign(table.value / model.config.decoder.embedding_scale)
    return model


def ids_of(words, start=True):
    start = [1] if start else []
    return padded_batch([start + ids + [2] for ids in TOKENIZER.encode(words)])


def seq2seq_ids(sources, targets):
    """Inputs and targets as a user would make them."""
    full = ids_of(targets)
    inputs = {
        "encoder_token_ids": ids_of(sources, start=False),
        "decoder_token_ids": full[:, :-1],
    }
    return inputs, full[:, 1:]


def batches_of_ids(words, sizes):
    """Batches that differ in both lengths."""
    batches, first = [], 0
    for size in sizes:
        chosen = words[first : first + size]
        batches.append(seq2seq_ids(chosen, chosen))
        first += size
    return batches
