"""`python -m kzoo`: the command, where its script is on no path."""

from kzoo.cli import main

main()
