"""`python -m kzoo.cli`, where the script is not installed."""

from kzoo.cli import main

main()
