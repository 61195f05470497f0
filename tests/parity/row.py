"""The table: a row a family and head, tiny, with every option away from its default.

`config` is given to the class of transformers' configs; `architecture` is the model's
class there, `task` kzoo's. `left` is whether padding on the left is compared, too: some
models of transformers count positions from the row's start, padding or not.
`bfloat16` adds what transformers computes in that.
"""

SMALL = dict(vocab_size=97, hidden_size=32, num_hidden_layers=2, num_attention_heads=4)


def row(config_class, architecture, task, config, **more):
    return dict(
        config_class=config_class,
        architecture=architecture,
        task=task,
        config=config,
        **{"left": True, **more},
    )
