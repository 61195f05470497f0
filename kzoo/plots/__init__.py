"""Pictures: attention maps and training curves, as matplotlib figures.

A function returns a `matplotlib.figure.Figure` and touches no global state: no window
opens and no display is needed. `figure.savefig("file.png")` writes it.
"""

from kzoo.plots.attention import attention
from kzoo.plots.curves import training_curve

__all__ = ["attention", "training_curve"]
