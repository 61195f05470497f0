"""Trains a tagger of named entities on UNER English EWT from scratch; prints F1.

    python export/recipes/tag_entities.py DATA

The data are read, and the model is trained, as in `tag_pos.py`.
"""

import argparse
from pathlib import Path

from tag_pos import train

parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("data", type=Path)
parser.add_argument("--out", type=Path, default=Path("runs/tag_entities"))
parser.add_argument("--epochs", type=int, default=15)
parser.add_argument("--splits", type=int, default=1)
args = parser.parse_args()
train(args.data, args.out, args.epochs, args.splits)
