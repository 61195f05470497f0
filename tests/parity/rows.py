"""All rows of the parity table."""

from tests.parity.decoder_rows import DECODERS
from tests.parity.encoder_rows import ENCODERS
from tests.parity.seq2seq_rows import SEQ2SEQ

ROWS = {**ENCODERS, **DECODERS, **SEQ2SEQ}
