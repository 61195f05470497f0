"""Pictures of attention, masks, positions, embeddings and results.

A function returns a `matplotlib.figure.Figure` and touches no global state: no window
opens and no display is needed. `figure.savefig("file.png")` writes it, and a notebook
shows it. The attention explorer is the exception, a page for a browser.
"""

from kzoo.plots.attention import attention, attention_heads
from kzoo.plots.confusion import confusion_matrix
from kzoo.plots.curves import training_curve
from kzoo.plots.explorer import attention_explorer
from kzoo.plots.masks import mask
from kzoo.plots.positions import position_distance, position_table, rotary
from kzoo.plots.projection import embedding_projection
from kzoo.plots.saliency import saliency

__all__ = [
    "attention",
    "attention_explorer",
    "attention_heads",
    "confusion_matrix",
    "embedding_projection",
    "mask",
    "position_distance",
    "position_table",
    "rotary",
    "saliency",
    "training_curve",
]
