"""How all figures look."""

from matplotlib.figure import Figure

# Seen apart by colour-blind readers, too (Okabe and Ito, 2008).
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
INK = "#333333"


def new_figure(width, height):
    """An empty figure of `width` by `height` inches; its parts keep apart."""
    return Figure(figsize=(width, height), dpi=150, layout="constrained")


def quiet_axes(axes):
    """Leaves of an axes' frame what is read."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#aaaaaa")
    axes.tick_params(color="#aaaaaa", labelcolor=INK)
