"""Encoder-decoders, see `row`."""

SEQ2SEQ = {}
